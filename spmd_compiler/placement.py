"""Where a call's arguments lie, and how they get to where the program wants them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding

from . import compat, compat_executables
from .errors import ArgumentError, DeletedError, LayoutError, MeshError
from .ir import layout as ir_layout
from .layout import Layout
from .mesh import Mesh


def is_placed(x: Any) -> bool:
    """True for an array that its owner has put somewhere, and for a ShapeDtypeStruct that says where."""
    if isinstance(x, jax.ShapeDtypeStruct):
        return x.sharding is not None
    return isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer) and x.committed


def mesh_of(leaves: Sequence[Any], paths: Sequence[str]) -> Mesh | None:
    """The one mesh that the arguments lie on, None if they lie on none. Raises MeshError for two."""
    found: tuple[Mesh, str] | None = None
    for leaf, path in zip(leaves, paths, strict=True):
        leaf = compat.primal_of(leaf)
        if not is_placed(leaf) or not isinstance(leaf.sharding, NamedSharding):
            continue
        mesh = Layout.from_jax(leaf.sharding, leaf.ndim).mesh
        if found is None:
            found = mesh, path
        elif found[0] != mesh:
            raise MeshError(f"{found[1]} lies on {found[0]!r}, {path} on {mesh!r}; one call has one mesh")
    return found[0] if found else None


def own_layout(leaf: Any, mesh: Mesh, path: str) -> ir_layout.Layout | None:
    """The layout that an argument already has on `mesh`, or its type if it is traced; None if it lies nowhere in particular. Raises
    MeshError if it lies on other devices or on another mesh."""
    leaf = compat.primal_of(leaf)
    if isinstance(leaf, jax.core.Tracer):
        sharding = jax.typeof(leaf).sharding
        if AxisType.Explicit not in sharding.mesh.axis_types:
            return None
        layout = Layout.from_jax(sharding, len(leaf.shape))
        return layout.ir if layout.mesh.axes == mesh.axes else None
    if not is_placed(leaf):
        return None
    sharding = leaf.sharding
    if isinstance(sharding, NamedSharding):
        layout = Layout.from_jax(sharding, len(leaf.shape))
        if layout.mesh == mesh or (layout.mesh.axes == mesh.axes and mesh.is_abstract):
            return layout.ir
    if not isinstance(leaf, jax.ShapeDtypeStruct) or not mesh.is_abstract:
        check_reachable(leaf, mesh, path)
    return None


def check_reachable(leaf: Any, mesh: Mesh, path: str) -> None:
    """Raises MeshError for an argument on devices that the mesh lacks, or sharded over another mesh."""
    if mesh.devices is None:
        return
    sharding = leaf.sharding
    outside = sharding.device_set.difference(mesh.devices)
    if outside:
        raise MeshError(
            f"{path} is committed to {_names(sharding.device_set)}, which {mesh!r} over {_names(mesh.devices)} does "
            "not have; move it with spmd.copy_to_mesh(x, layout), or jax.device_put"
        )
    if isinstance(sharding, NamedSharding) and sharding.num_devices > 1 and not sharding.is_fully_replicated:
        other = Layout.from_jax(sharding, len(leaf.shape)).mesh
        if other != mesh:
            raise MeshError(
                f"{path} is sharded over another mesh, {other!r}, than {mesh!r} of this call; relay it with "
                "spmd.relayout(x, layout)"
            )


def _names(devices: Any) -> str:
    names = sorted(str(d) for d in devices)
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


class Placer:
    """Brings arguments to where the program wants them; warns once if that moves data."""

    def __init__(self, function_name: str, quiet: bool = False):
        self._function = function_name
        self._warned = quiet

    def place(
        self, leaves: Sequence[Any], paths: Sequence[str], wanted: Sequence[NamedSharding], mesh: Mesh
    ) -> list[Any] | None:
        """The leaves, relaid where they are committed to another layout; None if none is. Raises MeshError if they can't
        get there."""
        mesh.check_runs(self._function)
        moved: list[Any] | None = None
        notes: list[str] = []
        for i, (leaf, want) in enumerate(zip(leaves, wanted, strict=True)):
            if not is_placed(leaf) or leaf.sharding.is_equivalent_to(want, leaf.ndim):
                continue
            check_reachable(leaf, mesh, paths[i])
            moved = list(leaves) if moved is None else moved
            moved[i] = jax.device_put(leaf, want)
            if leaf.size:
                there = _spell(want, leaf.ndim)
                notes.append(
                    f"{paths[i]} ({leaf.nbytes:,} bytes, {_spell(leaf.sharding, leaf.ndim)} -> {there})"
                )
        if notes and not self._warned:
            self._warned = True
            warnings.warn(
                f"{self._function}: arguments lie in another layout than in_layouts says, and are relaid at every such "
                f"call: {'; '.join(notes)}. Put them there once, or change in_layouts",
                stacklevel=5,
            )
        return moved


def _spell(sharding: Any, rank: int) -> str:
    try:
        where = str(Layout.from_jax(sharding, rank).ir)
    except LayoutError:
        where = f"on {_names(sharding.device_set)}"
    return f"{where} of {sharding.memory_kind}" if sharding.memory_kind not in (None, "device") else where


def check_deleted(leaves: Sequence[Any], paths: Sequence[str]) -> None:
    """Raises DeletedError where an argument is an array that has been deleted."""
    for leaf, path in zip(leaves, paths, strict=True):
        if compat_executables.is_deleted(leaf):
            raise DeletedError(
                f"{path} has been deleted: it was donated to an earlier call, whose result takes its place, or its delete() "
                "was called; don't donate what is needed again"
            )


def check_donations(leaves: Sequence[Any], paths: Sequence[str], donated: Sequence[int]) -> None:
    """Raises ArgumentError where a donated array is an argument twice."""
    where: dict[int, int] = {}
    gone = set(donated)
    for i, leaf in enumerate(leaves):
        if not isinstance(leaf, jax.Array):
            continue
        j = where.setdefault(id(leaf), i)
        if j != i and (i in gone or j in gone):
            raise ArgumentError(
                f"{paths[j]} and {paths[i]} are one array, and it is donated: its memory is reused, so it can be used "
                "once only; pass a copy, or don't donate it"
            )
