"""Mesh axes that no layout of the program names, taken by arguments that share another axis with the rest.

Where batch and weights are both sharded over an axis and a second one of its size is idle, the batch may lie on that: then
the two don't compete for the axis, and the work is spread over more devices. A search that decides one axis after the other
has to pass through assignments in which the batch is on both, which its size may not even allow. So it starts once more from
a forward propagation that sees the smallest such arguments there.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.graph import Module, Value
from ...ir.layout import Layout
from .fused_axes import given_layouts


def on_idle_axes(module: Module) -> Mapping[Value, Layout]:
    """The arguments to move, with the layouts in which they are to be seen; empty if no axis is idle, or none is shared."""
    mesh = module.mesh
    named = {axis.split(":")[0] for layout in given_layouts(module) for axis in layout.axes}
    groups: dict[frozenset[str], list[Value]] = {}
    for value in module.main.body.args:
        if value.layout is not None and value.layout.axes:
            groups.setdefault(frozenset(value.layout.axes), []).append(value)
    by_size = sorted(groups, key=lambda axes: sum(v.type.nbytes for v in groups[axes]))
    seen: dict[Value, Layout] = {}
    for idle in mesh.shape:
        if idle in named or mesh.axis_size(idle) == 1:
            continue
        for axes in by_size:
            shared = sorted(
                a
                for a in axes
                if mesh.axis_size(a) == mesh.axis_size(idle) and any(a in x for x in groups if x != axes)
            )
            moved = [v for v in groups[axes] if v not in seen]
            if shared and moved:
                for v in moved:
                    assert v.layout is not None
                    seen[v] = _renamed(v.layout, shared[0], idle)
                break
    return seen


def _renamed(layout: Layout, axis: str, new: str) -> Layout:
    dims = tuple(tuple(new if a == axis else a for a in axes) for axes in layout.dims)
    partial = tuple((new if a == axis else a, kind) for a, kind in layout.partial)
    return Layout(dims, partial, layout.blocks)
