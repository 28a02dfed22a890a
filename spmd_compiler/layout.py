"""The public layout: how one array lies on a mesh."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from . import compat
from .errors import LayoutError, MeshError
from .ir import layout as ir_layout
from .ir.layout import PARTIAL_KINDS
from .ir.types import TensorType
from .mesh import Mesh, as_mesh
from .refinement import Refinement, coarse_axes, coarsen

UNSHARDED = "unsharded"
Spec = str | tuple[str, ...] | None


class Layout:
    """`Layout(["batch", UNSHARDED], mesh)`: a spec per dim, which is UNSHARDED (or None), an axis, or a tuple of axes,
    major to minor. `partial={"model": "sum"}`: every device along `model` holds a term of the sum.

    Raises LayoutError for an axis that the mesh lacks, one used twice, or an unknown reduction.
    """

    __slots__ = ("ir", "mesh")

    def __init__(self, specs: Sequence[Spec], mesh: Mesh, partial: Mapping[str, str] | None = None):
        mesh = as_mesh(mesh, "the mesh of a layout")
        if isinstance(specs, str) or not isinstance(specs, Iterable):
            raise LayoutError(f"layout {specs!r}: give a list with a spec per dim")
        if not isinstance(partial, Mapping | None):
            raise LayoutError(f"partial={partial!r}: give a dict of mesh axes and what reduces over them")
        specs = list(specs)
        dims = tuple(_axes(s, specs) for s in specs)
        partial = partial or {}
        used = [a for axes in dims for a in axes] + list(partial)
        text = f"layout {list(specs)}" + (f" partial {dict(partial)}" if partial else "")
        for axis in used:
            if not isinstance(axis, str) or axis not in mesh:
                raise LayoutError(
                    f"{text}: {mesh!r} has no axis {axis!r}; it has {', '.join(mesh.axis_names)}"
                )
            if used.count(axis) > 1:
                raise LayoutError(
                    f"{text}: axis {axis!r} is used twice; an axis shards one dim, or is partial"
                )
        for axis, kind in partial.items():
            if kind not in PARTIAL_KINDS:
                raise LayoutError(f"{text}: {kind!r} over {axis!r} is not one of {', '.join(PARTIAL_KINDS)}")
        self.ir = ir_layout.Layout(dims, tuple(partial.items()))
        self.mesh = mesh

    @classmethod
    def from_ir(cls, layout: ir_layout.Layout, mesh: Mesh) -> Layout:
        """A layout of the IR, on a mesh that has its axes."""
        self = object.__new__(cls)
        self.ir, self.mesh = layout, mesh
        return self

    @classmethod
    def replicated(cls, mesh: Mesh, rank: int) -> Layout:
        """Every device has the whole array. Raises LayoutError for a negative rank."""
        if rank < 0:
            raise LayoutError(f"a layout has 0 dims or more, not {rank}")
        return cls.from_ir(ir_layout.Layout.replicated(rank), as_mesh(mesh, "the mesh of a layout"))

    @classmethod
    def batch_sharded(cls, mesh: Mesh, batch_dim: str, rank: int, axis: int = 0) -> Layout:
        """Dim `axis` (the first) on mesh axis `batch_dim`."""
        if not -rank <= axis < rank:
            raise LayoutError(f"a layout of rank {rank} has no dim {axis} to shard on {batch_dim!r}")
        axis %= rank
        return cls([batch_dim if d == axis else None for d in range(rank)], mesh)

    @classmethod
    def inner_sharded(cls, mesh: Mesh, inner_dim: str, rank: int) -> Layout:
        """The last dim on mesh axis `inner_dim`."""
        return cls.batch_sharded(mesh, inner_dim, rank, axis=-1)

    @classmethod
    def from_jax(cls, sharding: NamedSharding, rank: int) -> Layout:
        """From a NamedSharding of an array with `rank` dims. Raises LayoutError for another kind of sharding."""
        if not isinstance(sharding, NamedSharding):
            raise LayoutError(f"{sharding} names no mesh axes; a Layout comes from a NamedSharding")
        mesh, origin = coarsen(sharding.mesh)
        specs = spec_dims(sharding.spec, rank)
        dims = tuple(coarse_axes(mesh, _axes(s, specs), origin) for s in specs)
        return cls(dims, mesh, _unreduced(sharding.spec))

    def to_jax(self) -> NamedSharding:
        """The `NamedSharding`; over a mesh with split axes where the layout has sub-axes. LayoutError for a partial
        layout, which has none."""
        refinement = self._refinement()
        return NamedSharding(refinement.mesh.to_jax(), refinement.spec(self.ir))

    def auto_sharding(self) -> NamedSharding:
        """The same on axes of type Auto, as programs are traced."""
        refinement = self._refinement()
        return NamedSharding(refinement.mesh.auto, refinement.spec(self.ir))

    def _refinement(self) -> Refinement:
        if self.ir.partial:
            raise LayoutError(f"{self} is partial, which no NamedSharding says; relayout it first")
        return Refinement(self.mesh, [self.ir])

    @property
    def specs(self) -> tuple[Spec, ...]:
        """The spec of each dim; None for an unsharded one."""
        return tuple(None if not d else d[0] if len(d) == 1 else d for d in self.ir.dims)

    @property
    def partial(self) -> dict[str, str]:
        """Per axis over which devices have terms, how they are to be reduced: "sum", "max", …"""
        return dict(self.ir.partial)

    @property
    def rank(self) -> int:
        """The number of dims."""
        return self.ir.rank

    def is_fully_replicated(self) -> bool:
        """Whether every device has the whole array, and no partial term of it."""
        return self.ir.is_replicated

    def num_shards(self, dim: int) -> int:
        """In how many blocks `dim` is cut."""
        return self.mesh.axes_size(self.ir.dims[dim])

    def local_shape_from_global_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of each device's block, padding included. Raises LayoutError for a shape of another rank."""
        self._check_rank(shape)
        return ir_layout.local_type(TensorType(tuple(shape), "i8"), self.ir, self.mesh).shape

    def global_shape_from_local_shape(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape of the whole, of which each device has a block of `shape`. Raises LayoutError for a shape of another rank."""
        self._check_rank(shape)
        return tuple(n * self.num_shards(d) for d, n in enumerate(shape))

    def stored(self, shape: Sequence[int]) -> Layout:
        """The layout that a `jax.Array` of `shape` gets where this one is asked for: on each dim the longest prefix of its axes
        whose sizes multiply to a divisor of the dim's size. Raises LayoutError for a partial layout, or a shape of another rank."""
        self._check_rank(shape)
        check_storable(self.ir, "stored")
        return Layout.from_ir(stored_layout(self.ir, shape, self.mesh), self.mesh)

    def _check_rank(self, shape: Sequence[int]) -> None:
        if len(shape) != self.rank:
            raise LayoutError(f"layout {self.ir} has {self.rank} dims, a shape {tuple(shape)} does not")

    def delete(self, dims: int | Iterable[int]) -> Layout:
        """The layout without the given dims, as after a reduction that drops them; negative ones count from the end. Raises
        LayoutError for a dim that there is not."""
        gone: set[int] = set()
        for d in (dims,) if isinstance(dims, int) else dims:
            if not -self.rank <= d < self.rank:
                raise LayoutError(f"layout {self.ir} has {self.rank} dims, none of which is {d}")
            gone.add(d % self.rank)
        kept = tuple(axes for d, axes in enumerate(self.ir.dims) if d not in gone)
        return Layout.from_ir(ir_layout.Layout(kept, self.ir.partial), self.mesh)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Layout) and self.ir is other.ir and self.mesh == other.mesh

    def __hash__(self) -> int:
        return hash((self.ir, self.mesh))

    def __repr__(self) -> str:
        return f"Layout({self.ir}, {self.mesh!r})"


def _axes(spec: Spec, specs: Sequence[Spec]) -> tuple[str, ...]:
    """The axes of one of `specs`."""
    if spec is None or spec == UNSHARDED:
        return ()
    if isinstance(spec, str):
        return (spec,)
    if not isinstance(spec, Iterable) or spec is PartitionSpec.UNCONSTRAINED:
        raise LayoutError(f"layout {list(specs)}: {spec!r} is no axis, tuple of axes, or None")
    return tuple(spec)


def spec_dims(spec: PartitionSpec, rank: int) -> list[Any]:
    """The dims of a PartitionSpec, filled up to `rank`."""
    dims: list[Any] = list(compat.partitions(spec))
    if len(dims) > rank:
        raise LayoutError(f"{spec} has {len(dims)} dims, but the value has {rank}")
    if any(d is PartitionSpec.UNCONSTRAINED for d in dims):
        raise LayoutError(f"{spec}: an unconstrained dim is no layout; give None for the whole leaf")
    return [*dims, *[None] * (rank - len(dims))]


def _unreduced(spec: PartitionSpec) -> dict[str, str]:
    return dict.fromkeys(getattr(spec, "unreduced", None) or (), "sum")


LayoutLeaf = Layout | PartitionSpec | NamedSharding


def is_layout_leaf(x: Any) -> bool:
    return x is None or isinstance(x, LayoutLeaf)


def leaf_layout(leaf: LayoutLeaf, mesh: Mesh, rank: int, where: str) -> ir_layout.Layout:
    """The IR layout of a user's leaf for a value of `rank` dims. Raises LayoutError or MeshError naming `where`."""
    try:
        if isinstance(leaf, PartitionSpec):
            layout = Layout(spec_dims(leaf, rank), mesh, _unreduced(leaf))
        else:
            layout = leaf if isinstance(leaf, Layout) else Layout.from_jax(leaf, rank)
    except LayoutError as error:
        raise LayoutError(f"{where}: {error}") from None
    if layout.mesh != mesh and (mesh.is_abstract == layout.mesh.is_abstract or layout.mesh.axes != mesh.axes):
        raise MeshError(
            f"{where}: its layout is on {_describe(layout.mesh)}, the program on {_describe(mesh)}; "
            "one call has one mesh"
        )
    if layout.rank != rank:
        raise LayoutError(f"{where}: layout {layout.ir} has {layout.rank} dims, but the value has {rank}")
    return layout.ir


def _describe(mesh: Mesh) -> str:
    if mesh.devices is None:
        return f"an abstract {mesh!r}"
    ids = ",".join(str(d.id) for d in mesh.devices[:8])
    return f"{mesh!r} of devices {ids}{',...' if mesh.size > 8 else ''}"


def check_storable(layout: ir_layout.Layout, where: str) -> None:
    """Raises LayoutError for a partial layout: no array can lie so."""
    if layout.partial:
        raise LayoutError(f"{where}: layout {layout} is partial; partial sums exist only inside a program")


def stored_layout(layout: ir_layout.Layout, shape: Sequence[int], mesh: Mesh) -> ir_layout.Layout:
    """The layout in which an array of `shape` that is wanted in `layout` lies."""
    return ir_layout.even_part(layout, TensorType(tuple(shape), "i8"), mesh)
