"""The public layout: how one array lies on a mesh."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from .errors import LayoutError
from .ir import layout as ir_layout
from .ir.layout import PARTIAL_KINDS
from .ir.mesh import parse_axis
from .mesh import Mesh

UNSHARDED = None
Spec = None | str | tuple[str, ...]


class Layout:
    """`Layout(["batch", UNSHARDED], mesh)`: one spec per dim, which is UNSHARDED (None), an axis or a tuple of axes, major
    to minor. `partial={"model": "sum"}`: every device along `model` holds a term of the sum.

    Raises LayoutError for an axis that the mesh lacks, one used twice, or an unknown reduction.
    """

    __slots__ = ("ir", "mesh")

    def __init__(self, specs: Sequence[Spec], mesh: Mesh, partial: Mapping[str, str] | None = None):
        dims = tuple(() if s is None else (s,) if isinstance(s, str) else tuple(s) for s in specs)
        used = [a for axes in dims for a in axes] + list(partial or ())
        for axis in used:
            if not isinstance(axis, str) or axis not in mesh:
                raise LayoutError(f"layout {list(specs)}: {mesh!r} has no axis {axis!r}")
            if used.count(axis) > 1:
                raise LayoutError(
                    f"layout {list(specs)}: axis {axis!r} is used twice; each axis shards one dim"
                )
        for axis, kind in (partial or {}).items():
            if kind not in PARTIAL_KINDS:
                raise LayoutError(f"partial over {axis!r}: {kind!r} is not one of {', '.join(PARTIAL_KINDS)}")
        self.ir = ir_layout.Layout(dims, tuple((partial or {}).items()))
        self.mesh = mesh

    @classmethod
    def from_ir(cls, layout: ir_layout.Layout, mesh: Mesh) -> Layout:
        self = object.__new__(cls)
        self.ir, self.mesh = layout, mesh
        return self

    @property
    def specs(self) -> tuple[Spec, ...]:
        return tuple(None if not d else d[0] if len(d) == 1 else d for d in self.ir.dims)

    @property
    def partial(self) -> dict[str, str]:
        return dict(self.ir.partial)

    @property
    def rank(self) -> int:
        return self.ir.rank

    @classmethod
    def replicated(cls, mesh: Mesh, rank: int) -> Layout:
        return cls([None] * rank, mesh)

    @classmethod
    def batch_sharded(cls, mesh: Mesh, batch_dim: str, rank: int) -> Layout:
        """The first dim on axis `batch_dim`."""
        return cls([batch_dim] + [None] * (rank - 1), mesh)

    @classmethod
    def inner_sharded(cls, mesh: Mesh, inner_dim: str, rank: int) -> Layout:
        """The last dim on axis `inner_dim`."""
        return cls([None] * (rank - 1) + [inner_dim], mesh)

    def delete(self, dims: Sequence[int]) -> Layout:
        """The layout without the given dims, as after a reduction that drops them."""
        gone = {d % self.rank for d in dims}
        return Layout([s for d, s in enumerate(self.specs) if d not in gone], self.mesh, self.partial)

    @classmethod
    def from_jax(cls, sharding: NamedSharding, rank: int) -> Layout:
        mesh = Mesh.from_jax(sharding.mesh)
        return cls(spec_dims(sharding.spec, rank), mesh)

    def to_jax(self) -> NamedSharding:
        """The `NamedSharding`; over a mesh with split axes where the layout has sub-axes. A partial has none:
        LayoutError."""
        if self.ir.partial:
            raise LayoutError(f"{self} is partial: no NamedSharding says that; relayout it first")
        mesh, names = refined(self.mesh, [self.ir])
        dims = tuple(tuple(n for a in axes for n in names.get(a, (a,))) for axes in self.ir.dims)
        return NamedSharding(mesh.to_jax(), PartitionSpec(*(d if d else None for d in dims)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.ir is other.ir and self.mesh == other.mesh

    def __hash__(self) -> int:
        return hash((self.ir, self.mesh))

    def __repr__(self) -> str:
        return f"Layout({self.ir}, {self.mesh!r})"


def spec_dims(spec: PartitionSpec, rank: int) -> list[Spec]:
    """The dims of a PartitionSpec, filled up to `rank`."""
    dims: list[Any] = list(spec)
    if len(dims) > rank:
        raise LayoutError(f"{spec} has {len(dims)} dims, but the value has {rank}")
    return [*dims, *[None] * (rank - len(dims))]


def refined(mesh: Mesh, layouts: Sequence[ir_layout.Layout]) -> tuple[Mesh, dict[str, tuple[str, ...]]]:
    """The mesh with every axis cut where some layout has a sub-axis, and the names of each axis' pieces."""
    cuts: dict[str, set[int]] = {}
    subs = {a for layout in layouts for a in layout.axes if ":" in a}
    for axis in subs:
        name, pre, size = parse_axis(axis)
        assert size is not None
        cuts.setdefault(name, {1, mesh.shape[name]}).update((pre, pre * size))
    if not cuts:
        return mesh, {}
    axes: list[tuple[str, int]] = []
    pieces: dict[str, list[tuple[int, int, str]]] = {}
    for name, size in mesh.axes:
        points = sorted(cuts.get(name, {1, size}))
        if len(points) <= 2:
            axes.append((name, size))
            continue
        for k, (low, high) in enumerate(itertools.pairwise(points)):
            axes.append((f"{name}_{k}", high // low))
            pieces.setdefault(name, []).append((low, high, f"{name}_{k}"))
    names = {name: tuple(n for _, _, n in parts) for name, parts in pieces.items()}
    for axis in subs:
        name, pre, size = parse_axis(axis)
        assert size is not None
        names[axis] = tuple(n for low, high, n in pieces[name] if pre <= low and high <= pre * size)
    return Mesh(axes, mesh.devices), names


def leaf_layout(leaf: Any, mesh: Mesh, rank: int, where: str) -> ir_layout.Layout:
    """The IR layout of a user's leaf: `Layout`, `PartitionSpec` or `NamedSharding`. Raises LayoutError naming `where`."""
    if isinstance(leaf, Layout):
        if leaf.mesh != mesh:
            raise LayoutError(
                f"{where}: its layout is on {leaf.mesh!r}, the program on {mesh!r}; use one mesh"
            )
        layout = leaf
    elif isinstance(leaf, NamedSharding):
        if dict(leaf.mesh.shape) != mesh.shape:
            raise LayoutError(
                f"{where}: its sharding is on {leaf.mesh}, the program on {mesh!r}; use one mesh"
            )
        layout = Layout(spec_dims(leaf.spec, rank), mesh)
    elif isinstance(leaf, PartitionSpec):
        try:
            layout = Layout(spec_dims(leaf, rank), mesh)
        except LayoutError as error:
            raise LayoutError(f"{where}: {error}") from None
    else:
        raise LayoutError(f"{where}: {leaf!r} is no Layout, PartitionSpec, NamedSharding or None")
    if layout.rank != rank:
        raise LayoutError(f"{where}: layout {layout.ir} has {layout.rank} dims, but the value has {rank}")
    return layout.ir


def is_layout_leaf(x: Any) -> bool:
    return x is None or isinstance(x, (Layout, PartitionSpec, jax.sharding.Sharding))
