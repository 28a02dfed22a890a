"""Sub-axes on JAX's side: a mesh whose axes are cut where layouts need it (axis a of size 4 -> a_0=2, a_1=2)."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from jax.sharding import PartitionSpec

from .errors import LayoutError
from .ir import layout as ir_layout
from .ir.mesh import merge_axes, parse_axis
from .mesh import Mesh

# Refined meshes that we made, by their JAX mesh: the mesh they refine, and the piece that each new axis is.
_origins: dict[Any, tuple[Mesh, dict[str, str]]] = {}


class Refinement:
    """`mesh`: the finer mesh, with the same devices in the same order (the mesh itself where nothing is cut)."""

    def __init__(self, mesh: Mesh, layouts: Iterable[ir_layout.Layout]):
        self.names: dict[str, tuple[str, ...]] = {}
        subs = {a for layout in layouts for a in layout.axes if ":" in a}
        if not subs:
            self.mesh = mesh
            return
        cuts = {name: {1, size} for name, size in mesh.axes}
        for axis in subs:
            name, pre, size = parse_axis(axis)
            assert size is not None
            cuts[name].update((pre, pre * size))
        axes: list[tuple[str, int]] = []
        pieces: dict[str, list[tuple[int, int, str]]] = {}
        origin: dict[str, str] = {}
        for name, size in mesh.axes:
            points = sorted(cuts[name])
            if len(points) <= 2:
                axes.append((name, size))
                origin[name] = name
                continue
            for k, (low, high) in enumerate(pairwise(points)):
                if high % low:
                    raise LayoutError(f"layouts cut axis {name!r} of size {size} at {low} and at {high}")
                piece = f"{name}_{k}"
                while piece in mesh.shape:
                    piece += "_"
                axes.append((piece, high // low))
                origin[piece] = f"{name}:({low}){high // low}"
                pieces.setdefault(name, []).append((low, high, piece))
        self.names = {name: tuple(p for _, _, p in parts) for name, parts in pieces.items()}
        for axis in subs:
            name, pre, size = parse_axis(axis)
            assert size is not None
            self.names[axis] = tuple(p for low, high, p in pieces[name] if pre <= low and high <= pre * size)
        self.mesh = Mesh(axes, mesh.devices, abstract_device=mesh.abstract_device)
        _origins.setdefault(self.mesh.to_jax(), (mesh, origin))

    def spec(self, layout: ir_layout.Layout) -> PartitionSpec:
        """The layout's dims on the finer mesh."""
        dims = [tuple(n for a in axes for n in self.names.get(a, (a,))) for axes in layout.dims]
        while dims and not dims[-1]:
            dims.pop()
        return PartitionSpec(*(None if not d else d[0] if len(d) == 1 else d for d in dims))


def coarsen(jax_mesh: Any) -> tuple[Mesh, dict[str, str]]:
    """The mesh that `jax_mesh` stands for, and the axis or piece that each of its axes is."""
    found = _origins.get(jax_mesh)
    if found is not None:
        return found
    mesh = Mesh.from_jax(jax_mesh)
    return mesh, {name: name for name in mesh.axis_names}


def coarse_axes(mesh: Mesh, axes: tuple[str, ...], origin: dict[str, str]) -> tuple[str, ...]:
    return merge_axes(mesh, tuple(origin[a] for a in axes))
