"""The steps that relayout plans are made of: single collectives, or local slices, each from one layout to the next."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from ...ir.layout import Axes, Layout, block_size, local_block
from ...ir.mesh import Mesh
from ...ir.types import TensorType

MAX_ATOMS = 5  # more axes than that are not permuted in every way


class Step(NamedTuple):
    """One step of a plan.

    kind: "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "collective_permute", "slice", "to_partial",
    "reblock" or "exchange". `axes` take part; `dim` is the dim gathered or split; for all_to_all the axes leave `dim` and
    go to `other`, where they may have another order (`order`). `reduction` is the kind of a partial. An exchange is an all_to_all to `between` and a permute.
    """

    kind: str
    axes: Axes
    source: Layout
    target: Layout
    dim: int = -1
    other: int = -1
    reduction: str = ""
    between: Layout | None = None

    @property
    def order(self) -> Axes:
        """Of an all_to_all: its axes, as `other` has them."""
        return (self.between or self.target).dims[self.other][-len(self.axes) :]

    @property
    def sends(self) -> bool:
        """Whether devices exchange anything in it."""
        return self.kind not in ("slice", "to_partial")


def steps(type: TensorType, src: Layout, mesh: Mesh, dst: Layout) -> Iterator[Step]:
    """The steps that lead from `src` to another layout; `dst` prunes those that can't help."""
    shape = type.shape
    rank = len(shape)
    free = [a for a in dst.placement if a not in src.placement]
    # a partial: reduce it, or scatter it on a dim, several axes at once where they share a kind
    for kind in dict.fromkeys(k for _, k in src.partial):
        axes = tuple(a for a, k in src.partial if k == kind and dst.placement.get(a) != kind)
        for some in _subsets(axes):
            rest = tuple(p for p in src.partial if p[0] not in some)
            yield Step("all_reduce", some, src, src.with_partial(rest), reduction=kind)
            for d in {w for a in some if isinstance(w := dst.placement.get(a), int)}:
                for order in itertools.permutations(some) if len(some) <= 3 else (some,):
                    target = add(type, src.with_partial(rest), d, order, mesh, dst)
                    if target is not None:
                        yield Step("reduce_scatter", order, src, target, dim=d, reduction=kind)
    # gather a suffix of the axes of a dim
    for d, axes in enumerate(src.dims):
        for cut in range(len(axes)):
            suffix = axes[cut:]
            gathered = remove(type, src, d, cut, mesh)
            yield Step("all_gather", suffix, src, gathered, dim=d)
            # or move it to another dim
            for e in range(rank):
                if e != d:
                    for order in _orders(suffix, dst.dims[e]):
                        target = add(type, gathered, e, order, mesh, dst)
                        if target is not None:
                            yield Step("all_to_all", suffix, src, target, dim=d, other=e)
    # free axes: slice, or become a partial
    for a in free:
        where = dst.placement[a]
        if isinstance(where, str):
            yield Step("to_partial", (a,), src, src.with_partial((*src.partial, (a, where))), reduction=where)
    for some in _subsets(tuple(a for a in free if not isinstance(dst.placement[a], str))):
        for d in {w for a in some if isinstance(w := dst.placement[a], int)}:
            for order in itertools.permutations(some) if len(some) <= 3 else (some,):
                target = add(type, src, d, order, mesh, dst)
                if target is not None:
                    yield Step("slice", order, src, target, dim=d)
                # or cut where another axis belongs, to change places with that
    for a in free:
        for d, want in enumerate(dst.dims):
            cut = mesh.axes_size((*src.dims[d], a))
            if want and a not in want and mesh.axes_size(want) % cut == 0:
                target = add(type, src, d, (a,), mesh, dst)
                if target is not None:
                    yield Step("slice", (a,), src, target, dim=d)
    # the same blocks on other devices
    for target in _permutations(src, dst, mesh):
        yield Step("collective_permute", (), src, target)
    # the same axes, blocks of another size, which may then be cut by others
    for d, axes in enumerate(src.dims):
        if axes and axes == dst.dims[d][: len(axes)]:
            want = local_block(dst, d, shape[d], mesh) * mesh.axes_size(dst.dims[d][len(axes) :])
            if want != local_block(src, d, shape[d], mesh):
                block = 0 if want == block_size(shape[d], mesh.axes_size(axes)) else want
                yield Step("reblock", axes, src, src.with_dim(d, axes, block), dim=d)


def permuted_axes(source: Layout, target: Layout) -> tuple[Axes, Axes]:
    """The axes of a permute: the device at a position on the first sends to the one at that position on the second."""
    have = tuple(a for axes in source.dims for a in axes)
    want = tuple(a for axes in target.dims for a in axes)
    have += tuple(a for a in want if a not in have)
    return have, want + tuple(a for a in have if a not in want)


def _orders(axes: Axes, wanted: Axes) -> Iterator[Axes]:
    """Axes as they are, and in the order in which they are wanted, if that is another one."""
    yield axes
    order = tuple(a for a in wanted if a in axes)
    if len(order) == len(axes) and order != axes:
        yield order


def _subsets(axes: Axes) -> Iterator[Axes]:
    """All of them first, then single ones (and pairs of more than two)."""
    if axes:
        yield axes
    if len(axes) > 2:
        yield from itertools.combinations(axes, 2)
    if len(axes) > 1:
        for a in axes:
            yield (a,)


def remove(type: TensorType, layout: Layout, dim: int, cut: int, mesh: Mesh) -> Layout:
    """The layout after gathering the axes of `dim` from position `cut` on."""
    axes = layout.dims[dim]
    keep = axes[:cut]
    if not keep:
        return layout.with_dim(dim, keep)
    block = local_block(layout, dim, type.shape[dim], mesh) * mesh.axes_size(axes[cut:])
    default = block_size(type.shape[dim], mesh.axes_size(keep))
    return layout.with_dim(dim, keep, 0 if block == default else block)


def add(type: TensorType, layout: Layout, dim: int, axes: Axes, mesh: Mesh, dst: Layout) -> Layout | None:
    """The layout with `axes` added as the minor ones of `dim`, or None if the blocks don't divide."""
    old = layout.dims[dim]
    new = old + axes
    size = type.shape[dim]
    if not old:
        block = dst.blocks[dim] if dst.blocks and dst.dims[dim] == new else 0
        if size < 2 and dst.dims[dim] != new:
            return None
        return layout.with_dim(dim, new, block)
    have = local_block(layout, dim, size, mesh)
    n = mesh.axes_size(axes)
    if have % n:
        return None
    block = have // n
    return layout.with_dim(dim, new, 0 if block == block_size(size, mesh.axes_size(new)) else block)


def _permutations(src: Layout, dst: Layout, mesh: Mesh) -> Iterator[Layout]:
    """Layouts of the same local shape in which dims have the axes that `dst` wants, as far as sizes allow."""
    if src.blocks or not src.axes:
        return
    sizes = [mesh.axes_size(axes) for axes in src.dims]
    used = [a for a in src.placement if not isinstance(src.placement[a], str)]
    partial = {a for a, _ in src.partial}
    pool = (*used, *(a for a in dst.placement if a not in src.placement))
    sized = _by_size(tuple([a for a in pool if a not in partial]), mesh)
    wishes: list[list[Axes]] = []
    for d, n in enumerate(sizes):
        if n == 1:
            wishes.append([()])
            continue
        options: list[Axes] = [src.dims[d]]
        want = dst.dims[d]
        if mesh.axes_size(want) == n:
            options.append(want)
        for combo in sized.get(n, ()):
            if combo[: len(want)] == want or want[: len(combo)] == combo:
                options.append(combo)
        wishes.append(list(dict.fromkeys(options)))
    if math.prod(map(len, wishes)) > 64:
        wishes = [w[:3] for w in wishes]
    for dims in itertools.product(*wishes):
        flat = [a for axes in dims for a in axes]
        if len(set(flat)) == len(flat) and dims != src.dims and partial.isdisjoint(flat):
            yield Layout(tuple(dims), src.partial)


def _by_size(pool: Axes, mesh: Mesh) -> dict[int, list[Axes]]:
    """Up to three of some axes, in every order, by their size together; memoised on the mesh."""
    known = mesh.cache.setdefault("by_size", {})
    found = known.get(pool)
    if found is None:
        found = known[pool] = {}
        for k in range(1, 4) if len(pool) <= MAX_ATOMS else ():
            for combo in itertools.permutations(pool, k):
                found.setdefault(mesh.axes_size(combo), []).append(combo)
    return found
