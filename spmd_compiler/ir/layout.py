"""Layouts: how one value lies on the mesh.

Per mesh axis a value is replicated, sharded on one dim, or *partial*: every device holds a term, and the value is
their sum (or max, min, ...). A dim sharded on axes of product n is cut in n blocks of equal size; block k lies on the
devices whose position on those axes, row-major, is k. The block is ceil(size / n) unless the layout names a larger one
(`model@128`); what sticks out beyond the dim's size is padding, whose content is undefined.

Layouts are interned, so they compare and hash by identity. They don't name their mesh: a module has one mesh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from .mesh import Mesh, merge_axes, renamed_axis
from .types import TensorType, Type

PARTIAL_KINDS = ("sum", "max", "min", "mul", "and", "or", "xor")

Axes = tuple[str, ...]


class Layout:
    """`dims`: the axes of each dim, major to minor. `partial`: (axis, kind) pairs, sorted. `blocks`: per dim the block
    size where it is not the default, else 0; () when all are default."""

    __slots__ = ("_with_dim", "axes", "blocks", "dims", "has_pieces", "is_replicated", "partial", "placement")
    _interned: ClassVar[dict[tuple, Layout]] = {}

    dims: tuple[Axes, ...]
    partial: tuple[tuple[str, str], ...]
    blocks: tuple[int, ...]
    axes: frozenset[str]
    placement: dict[str, int | str]
    is_replicated: bool
    has_pieces: bool  # it uses sub-axes
    _with_dim: dict[tuple[int, Axes, int], Layout]  # what `with_dim` gave

    def __new__(
        cls, dims: tuple[Axes, ...], partial: tuple[tuple[str, str], ...] = (), blocks: tuple[int, ...] = ()
    ) -> Layout:
        key = (dims, partial, blocks)
        self = cls._interned.get(key)
        if self is not None:
            return self
        partial = tuple(sorted(partial))
        blocks = tuple(b if axes else 0 for b, axes in zip(blocks, dims, strict=True)) if any(blocks) else ()
        blocks = blocks if any(blocks) else ()
        self = cls._interned.get((dims, partial, blocks))
        if self is None:
            self = object.__new__(cls)
            self.dims, self.partial, self.blocks = dims, partial, blocks
            self.placement = {a: d for d, axes in enumerate(dims) for a in axes}
            n = len(self.placement)
            self.placement.update(partial)
            if len(self.placement) != n + len(partial) or n != sum(map(len, dims)):
                raise ValueError(f"layout {self} uses a mesh axis twice")
            self.axes = frozenset(self.placement)
            self.is_replicated = not self.placement
            self.has_pieces = any(":" in a for a in self.axes)
            self._with_dim = {}
            # another thread may have been first
            self = cls._interned.setdefault((dims, partial, blocks), self)
        cls._interned[key] = self
        return self

    @staticmethod
    def replicated(rank: int) -> Layout:
        return Layout(((),) * rank)

    @property
    def rank(self) -> int:
        return len(self.dims)

    @property
    def partial_axes(self) -> Axes:
        return tuple(a for a, _ in self.partial)

    def with_dim(self, dim: int, axes: Axes, block: int = 0) -> Layout:
        """The same layout with other axes on one dim."""
        found = self._with_dim.get((dim, axes, block))
        if found is None:
            found = self._with_dim[dim, axes, block] = self._made_with_dim(dim, axes, block)
        return found

    def _made_with_dim(self, dim: int, axes: Axes, block: int) -> Layout:
        blocks = self.blocks or (0,) * self.rank if block or self.blocks else ()
        if blocks:
            blocks = (*blocks[:dim], block, *blocks[dim + 1 :])
        return Layout((*self.dims[:dim], axes, *self.dims[dim + 1 :]), self.partial, blocks)

    def with_partial(self, partial: Iterable[tuple[str, str]]) -> Layout:
        return Layout(self.dims, tuple(partial), self.blocks)

    def without_partial(self) -> Layout:
        return Layout(self.dims, (), self.blocks) if self.partial else self

    def drop(self, axes: Iterable[str]) -> Layout:
        """The same layout, replicated over `axes`."""
        gone = self.axes.intersection(axes)
        if not gone:
            return self
        dims = tuple(tuple(a for a in d if a not in gone) for d in self.dims)
        blocks = tuple(
            b if new == old else 0 for b, new, old in zip(self.blocks, dims, self.dims, strict=False)
        )
        return Layout(dims, tuple(p for p in self.partial if p[0] not in gone), blocks)

    def renamed(self, names: Mapping[str, str]) -> Layout:
        """The same layout over axes with other names."""
        dims = tuple([tuple([renamed_axis(a, names) for a in axes]) for axes in self.dims])
        return Layout(dims, tuple([(renamed_axis(a, names), kind) for a, kind in self.partial]), self.blocks)

    def __repr__(self) -> str:
        blocks = self.blocks or (0,) * len(self.dims)
        dims = ",".join(
            (".".join(a) if a else "-") + (f"@{b}" if b else "")
            for a, b in zip(self.dims, blocks, strict=True)
        )
        if not self.partial:
            return "{" + dims + "}"
        parts = " ".join(f"+{a}" if kind == "sum" else f"{kind}:{a}" for a, kind in self.partial)
        return "{" + (dims + " " if dims else "") + "| " + parts + "}"

    def __reduce__(self):
        return (Layout, (self.dims, self.partial, self.blocks))


def block_size(size: int, shards: int) -> int:
    """The default block of a dim cut in `shards`."""
    return -(-size // shards)


def canonical(layout: Layout, type: Type, mesh: Mesh) -> Layout:
    """The one spelling of a layout: sub-axes merged, a block that equals the default left out."""
    dims = layout.dims
    if layout.has_pieces:
        dims = tuple(merge_axes(mesh, d) for d in dims)
    blocks = layout.blocks
    if blocks:
        blocks = tuple(
            0 if b == block_size(type.shape[i], mesh.axes_size(dims[i])) else b for i, b in enumerate(blocks)
        )
    return Layout(dims, layout.partial, blocks)


def local_block(layout: Layout, dim: int, size: int, mesh: Mesh) -> int:
    """How many positions of `dim` (of global `size`) each device holds, padding included."""
    axes = layout.dims[dim]
    if not axes:
        return size
    if layout.blocks and layout.blocks[dim]:
        return layout.blocks[dim]
    return -(-size // mesh.axes_size(axes))


def local_type(type: Type, layout: Layout, mesh: Mesh) -> Type:
    """The per-device type of a value of global `type` in `layout`."""
    if layout.is_replicated or not isinstance(type, TensorType):
        return type
    key = (type, layout)
    hit = mesh.local_types.get(key)
    if hit is None:
        shape = tuple(local_block(layout, d, n, mesh) for d, n in enumerate(type.shape))
        hit = mesh.local_types[key] = type.with_shape(shape)
    return hit


def even_part(layout: Layout, type: Type, mesh: Mesh) -> Layout:
    """The layout with, of each dim, only the leading axes that divide its size together: what an array can lie in. An array
    without elements is whole: XLA gives its shards the global shape (JAX 0.10)."""
    if 0 in type.shape:
        return Layout.replicated(type.rank) if layout.axes else layout
    dims: list[Axes] = []
    for d, axes in enumerate(layout.dims):
        kept = axes
        while type.shape[d] % mesh.axes_size(kept):
            kept = kept[:-1]
        dims.append(kept)
    return Layout(tuple(dims), layout.partial) if tuple(dims) != layout.dims or layout.blocks else layout


def is_even(layout: Layout, type: Type, mesh: Mesh) -> bool:
    """True if no device holds padding."""
    return all(
        not axes or local_block(layout, d, type.shape[d], mesh) * mesh.axes_size(axes) == type.shape[d]
        for d, axes in enumerate(layout.dims)
    )


def check_layout(layout: Layout, type: Type, mesh: Mesh) -> None:
    """Raises ValueError if the layout does not fit the type or the mesh; the message says how."""
    if layout.rank != type.rank:
        raise ValueError(f"layout {layout} has {layout.rank} dims, but the value {type} has {type.rank}")
    for axis in layout.axes:
        if axis not in mesh:
            raise ValueError(f"layout {layout} names axis {axis!r}, which {mesh} does not have")
    for _, kind in layout.partial:
        if kind not in PARTIAL_KINDS:
            raise ValueError(
                f"layout {layout}: unknown reduction {kind!r}, not one of {', '.join(PARTIAL_KINDS)}"
            )
    for d, axes in enumerate(layout.dims):
        if axes and local_block(layout, d, type.shape[d], mesh) * mesh.axes_size(axes) < type.shape[d]:
            raise ValueError(f"layout {layout}: the blocks of dim {d} don't cover its size {type.shape[d]}")
    seen: list[tuple[str, int, int]] = []
    for axis in layout.axes:
        stride, size = mesh.stride_and_size(axis)
        name = axis.split(":")[0]
        for other, s, n in seen:
            if other == name and stride < s * n and s < stride * size:
                raise ValueError(f"layout {layout} uses pieces of axis {name!r} that overlap")
        seen.append((name, stride, size))
