"""The relayout planner: the cheapest sequence of steps that takes a value from one layout to another.

Steps are single collectives (or none at all: slicing and masking are local), each from one layout to the next. The plan
is a shortest path (Dijkstra) over layouts whose shard is no larger than the larger of the two ends, weighted by
`cost.step_cost`. Plans depend on types, layouts and axis sizes only, never on the number of devices.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from ..ir.layout import Axes, Layout, block_size, canonical, local_block, local_type
from ..ir.mesh import Mesh, parse_axis, split_axis
from ..ir.types import TensorType
from .cost import step_cost

MAX_ATOMS = 5  # axes are cut into prime pieces to find better paths only while there are few of them
MAX_STATES = 4000  # a search that visits more falls back to resolve, gather, slice


class Step(NamedTuple):
    """One step of a plan.

    kind: "all_reduce", "reduce_scatter", "all_gather", "all_to_all", "collective_permute", "slice", "to_partial" or
    "reblock". `axes` take part; `dim` is the dim gathered or split; for all_to_all the axes leave `dim` and go to
    `other`. `reduction` is the kind of a partial.
    """

    kind: str
    axes: Axes
    source: Layout
    target: Layout
    dim: int = -1
    other: int = -1
    reduction: str = ""


class Plan(NamedTuple):
    steps: tuple[Step, ...]
    cost: float


EMPTY = Plan((), 0.0)


def plan(type: TensorType, source: Layout, target: Layout, mesh: Mesh) -> Plan:
    """The cheapest plan from `source` to `target`; memoised on the mesh."""
    if source is target:
        return EMPTY
    cache = mesh.cache.get("plans")
    if cache is None:
        cache = mesh.cache["plans"] = {}
    key = (type, source, target)
    hit = cache.get(key)
    if hit is None:
        hit = cache[key] = _plan(type, source, target, mesh)
    return hit


def relayout_cost(type: TensorType, source: Layout, target: Layout, mesh: Mesh) -> float:
    return 0.0 if source is target else plan(type, source, target, mesh).cost


def _plan(type: TensorType, source: Layout, target: Layout, mesh: Mesh) -> Plan:
    if not isinstance(type, TensorType):
        return EMPTY
    src, dst = refine((source, target), mesh)
    straight = _straight(type, src, dst, mesh)
    if straight is not None:
        return Plan(tuple(straight), sum(step_cost(s, type, mesh) for s in straight))
    atoms = sorted(src.axes | dst.axes)
    primes = [p for a in atoms for p in _prime_pieces(mesh, a)]
    if len(primes) > len(atoms) and len(primes) <= MAX_ATOMS and _needs_pieces(src, dst):
        pieces = {a: tuple(_prime_pieces(mesh, a)) for a in atoms}
        fine = _search(type, split(src, pieces), split(dst, pieces), mesh)
        coarse = _search(type, src, dst, mesh)
        return min(coarse, fine, key=lambda p: (p.cost, len(p.steps)))
    return _search(type, src, dst, mesh)


def _needs_pieces(src: Layout, dst: Layout) -> bool:
    """Pieces help where axes trade places, not where axes only come or go."""
    return any(src.placement.get(a) != dst.placement.get(a) for a in src.axes | dst.axes)


def _prime_pieces(mesh: Mesh, axis: str) -> list[str]:
    size = mesh.axis_size(axis)
    prime = next((p for p in range(2, math.isqrt(size) + 1) if size % p == 0), None)
    if prime is None:
        return [axis]
    first, rest = split_axis(mesh, axis, prime)
    return [first, *_prime_pieces(mesh, rest)]


def split(layout: Layout, pieces: dict[str, tuple[str, ...]]) -> Layout:
    """Writes axes as their pieces, major to minor."""
    if not any(a in pieces for a in layout.axes):
        return layout
    dims = tuple(tuple(p for a in axes for p in pieces.get(a, (a,))) for axes in layout.dims)
    partial = tuple((p, kind) for a, kind in layout.partial for p in pieces.get(a, (a,)))
    return Layout(dims, partial, layout.blocks)


def refine(layouts: tuple[Layout, ...], mesh: Mesh) -> tuple[Layout, ...]:
    """The same layouts over a common set of pieces, so that two axes are either equal or disjoint."""
    names = {a for layout in layouts for a in layout.axes}
    if not any(":" in a for a in names):
        return layouts
    cuts: dict[str, set[int]] = {}
    for axis in names:
        name, pre, size = parse_axis(axis)
        cuts.setdefault(name, set()).update((pre, pre * (size if size is not None else mesh.shape[name])))
    pieces: dict[str, tuple[str, ...]] = {}
    for axis in names:
        name, pre, size = parse_axis(axis)
        end = pre * (size if size is not None else mesh.shape[name])
        points = sorted(c for c in cuts[name] if pre <= c <= end)
        if len(points) > 2:
            if any(hi % lo for lo, hi in itertools.pairwise(points)):
                raise ValueError(f"the sub-axes of {name} in {', '.join(map(str, layouts))} don't nest")
            pieces[axis] = tuple(f"{name}:({lo}){hi // lo}" for lo, hi in itertools.pairwise(points))
    return tuple(split(layout, pieces) for layout in layouts)


# ------------------------------------------------------------------------------------------------ no search needed
def _straight(type: TensorType, src: Layout, dst: Layout, mesh: Mesh) -> list[Step] | None:
    """The plan where every axis changes at most once and none is in another's way: shrink first (slices,
    reduce-scatters), then move, then reduce and gather. None if axes trade places on a dim, or blocks are uneven."""
    if src.blocks or dst.blocks:
        return None
    gone: list[tuple[int, int]] = []  # (dim, how many axes stay)
    new: list[tuple[int, Axes]] = []
    for d, (have, want) in enumerate(zip(src.dims, dst.dims, strict=True)):
        if have == want:
            continue
        if want == have[: len(want)]:
            gone.append((d, len(want)))
        elif have == want[: len(have)]:
            new.append((d, want[len(have) :]))
        else:
            return None
    moves = {
        src.dims[d][cut:]: (d, cut) for d, cut in gone if isinstance(dst.placement.get(src.dims[d][cut]), int)
    }
    owed = dict(src.partial)
    steps: list[Step] = []
    at = src
    for d, axes in new:
        if axes in moves:
            continue
        # runs of axes from the same source: sliced, or scattered while they are reduced
        for kind, run in itertools.groupby(axes, owed.get):
            some = tuple(run)
            if any(isinstance(src.placement.get(a), int) for a in some):
                return None
            target = _add(
                type,
                at if kind is None else at.with_partial(p for p in at.partial if p[0] not in some),
                d,
                some,
                mesh,
                dst,
            )
            if target is None:
                return None
            steps.append(
                Step(
                    "slice" if kind is None else "reduce_scatter",
                    some,
                    at,
                    target,
                    dim=d,
                    reduction=kind or "",
                )
            )
            at = target
    for d, axes in new:
        if axes in moves:
            old, cut = moves[axes]
            target = _add(type, _remove(type, at, old, cut, mesh), d, axes, mesh, dst)
            if target is None:
                return None
            steps.append(Step("all_to_all", axes, at, target, dim=old, other=d))
            at = target
    for kind in dict.fromkeys(k for a, k in src.partial if dst.placement.get(a) is None):
        some = tuple(a for a, k in src.partial if k == kind and dst.placement.get(a) is None)
        target = at.with_partial(p for p in at.partial if p[0] not in some)
        steps.append(Step("all_reduce", some, at, target, reduction=kind))
        at = target
    for d, cut in gone:
        if src.dims[d][cut:] not in moves:
            target = _remove(type, at, d, cut, mesh)
            steps.append(Step("all_gather", src.dims[d][cut:], at, target, dim=d))
            at = target
    for a, kind in dst.partial:
        if a not in owed:
            target = at.with_partial((*at.partial, (a, kind)))
            steps.append(Step("to_partial", (a,), at, target, reduction=kind))
            at = target
    return steps if at is dst else None


# ------------------------------------------------------------------------------------------------ one step
def _steps(type: TensorType, src: Layout, mesh: Mesh, dst: Layout) -> Iterator[Step]:
    """The steps that lead from `src` to another layout; `dst` prunes those that can't help."""
    shape = type.shape
    rank = len(shape)
    free = [a for a in dst.placement if a not in src.placement]
    # a partial: reduce it, or scatter it on a dim, several axes at once where they share a kind
    for kind in {k for _, k in src.partial}:
        axes = tuple(a for a, k in src.partial if k == kind and dst.placement.get(a) != kind)
        for some in _subsets(axes):
            rest = tuple(p for p in src.partial if p[0] not in some)
            yield Step("all_reduce", some, src, src.with_partial(rest), reduction=kind)
            for d in {w for a in some if isinstance(w := dst.placement.get(a), int)}:
                for order in itertools.permutations(some) if len(some) <= 3 else (some,):
                    target = _add(type, src.with_partial(rest), d, order, mesh, dst)
                    if target is not None:
                        yield Step("reduce_scatter", order, src, target, dim=d, reduction=kind)
    # gather a suffix of the axes of a dim
    for d, axes in enumerate(src.dims):
        for cut in range(len(axes)):
            suffix = axes[cut:]
            yield Step("all_gather", suffix, src, _remove(type, src, d, cut, mesh), dim=d)
            # or move it to another dim
            for e in range(rank):
                if e != d:
                    target = _add(type, _remove(type, src, d, cut, mesh), e, suffix, mesh, dst)
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
                target = _add(type, src, d, order, mesh, dst)
                if target is not None:
                    yield Step("slice", order, src, target, dim=d)
    # the same blocks on other devices
    for target in _permutations(type, src, dst, mesh):
        yield Step("collective_permute", (), src, target)
    # the same axes, blocks of another size
    for d, axes in enumerate(src.dims):
        if axes and axes == dst.dims[d]:
            want = local_block(dst, d, shape[d], mesh)
            if want != local_block(src, d, shape[d], mesh):
                block = 0 if want == block_size(shape[d], mesh.axes_size(axes)) else want
                yield Step("reblock", axes, src, src.with_dim(d, axes, block), dim=d)


def _subsets(axes: Axes) -> Iterator[Axes]:
    """All of them first, then single ones (and pairs of more than two)."""
    if axes:
        yield axes
    if len(axes) > 2:
        yield from itertools.combinations(axes, 2)
    if len(axes) > 1:
        for a in axes:
            yield (a,)


def _remove(type: TensorType, layout: Layout, dim: int, cut: int, mesh: Mesh) -> Layout:
    """The layout after gathering the axes of `dim` from position `cut` on."""
    axes = layout.dims[dim]
    keep = axes[:cut]
    if not keep:
        return layout.with_dim(dim, keep)
    block = local_block(layout, dim, type.shape[dim], mesh) * mesh.axes_size(axes[cut:])
    default = block_size(type.shape[dim], mesh.axes_size(keep))
    return layout.with_dim(dim, keep, 0 if block == default else block)


def _add(type: TensorType, layout: Layout, dim: int, axes: Axes, mesh: Mesh, dst: Layout) -> Layout | None:
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


def _permutations(type: TensorType, src: Layout, dst: Layout, mesh: Mesh) -> Iterator[Layout]:
    """Layouts of the same local shape in which dims have the axes that `dst` wants, as far as sizes allow."""
    if src.blocks or not src.axes:
        return
    sizes = [mesh.axes_size(axes) for axes in src.dims]
    used = [a for a in src.placement if not isinstance(src.placement[a], str)]
    partial = {a for a, _ in src.partial}
    pool = [*used, *(a for a in dst.placement if a not in src.placement)]
    pool = [a for a in pool if a not in partial]
    wishes: list[list[Axes]] = []
    for d, n in enumerate(sizes):
        if n == 1:
            wishes.append([()])
            continue
        options: list[Axes] = [src.dims[d]]
        want = dst.dims[d]
        if mesh.axes_size(want) == n:
            options.append(want)
        for k in range(1, 4):
            for combo in itertools.permutations(pool, k) if len(pool) <= MAX_ATOMS else ():
                if mesh.axes_size(combo) == n and (combo[: len(want)] == want or want[: len(combo)] == combo):
                    options.append(combo)
        wishes.append(list(dict.fromkeys(options)))
    if math.prod(map(len, wishes)) > 64:
        wishes = [w[:3] for w in wishes]
    for dims in itertools.product(*wishes):
        flat = [a for axes in dims for a in axes]
        if len(set(flat)) == len(flat) and dims != src.dims and partial.isdisjoint(flat):
            yield Layout(tuple(dims), src.partial)


# ------------------------------------------------------------------------------------------------ the search
def _search(type: TensorType, src: Layout, dst: Layout, mesh: Mesh) -> Plan:
    bound = max(local_type(type, src, mesh).nbytes, local_type(type, dst, mesh).nbytes)
    best: dict[Layout, float] = {src: 0.0}
    came: dict[Layout, Step] = {}
    queue: list[tuple[float, int, str, Layout]] = [(0.0, 0, "", src)]
    visited = 0
    while queue:
        cost, hops, _, at = heapq.heappop(queue)
        if at is dst:
            steps: list[Step] = []
            while at is not src:
                steps.append(came[at])
                at = came[at].source
            return Plan(tuple(reversed(steps)), cost)
        if cost > best[at]:
            continue
        visited += 1
        if visited > MAX_STATES:
            break
        for step in _steps(type, at, mesh, dst):
            to = step.target
            if to is not dst and local_type(type, to, mesh).nbytes > bound:
                continue
            total = cost + step_cost(step, type, mesh)
            if total < best.get(to, math.inf):
                best[to] = total
                came[to] = step
                heapq.heappush(queue, (total, hops + 1, repr(to), to))
    return _through_replicated(type, src, dst, mesh)


def _through_replicated(type: TensorType, src: Layout, dst: Layout, mesh: Mesh) -> Plan:
    """The plan that always exists: reduce, gather every dim, then slice and mask."""
    steps: list[Step] = []
    at = src

    def go(step: Step) -> None:
        nonlocal at
        steps.append(step)
        at = step.target

    for axis, kind in src.partial:
        rest = tuple(p for p in at.partial if p[0] != axis)
        go(Step("all_reduce", (axis,), at, at.with_partial(rest), reduction=kind))
    for d, axes in enumerate(src.dims):
        if axes and (axes != dst.dims[d] or src.blocks != dst.blocks):
            go(Step("all_gather", axes, at, at.with_dim(d, ()), dim=d))
    for d, axes in enumerate(dst.dims):
        if axes and axes != at.dims[d]:
            go(Step("slice", axes, at, at.with_dim(d, axes, dst.blocks[d] if dst.blocks else 0), dim=d))
    for axis, kind in dst.partial:
        go(Step("to_partial", (axis,), at, at.with_partial((*at.partial, (axis, kind))), reduction=kind))
    return Plan(tuple(steps), sum(step_cost(s, type, mesh) for s in steps))


def canonical_steps(steps: tuple[Step, ...], type: TensorType, mesh: Mesh) -> tuple[Step, ...]:
    """The steps with sub-axes merged in their layouts, for printing."""
    return tuple(
        s._replace(source=canonical(s.source, type, mesh), target=canonical(s.target, type, mesh))
        for s in steps
    )
