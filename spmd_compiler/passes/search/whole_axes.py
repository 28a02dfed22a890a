"""Axes that a reshape cuts into pieces, seen whole by what follows.

A batch over 8 devices that is cut into 4 microbatches has a piece of the axis on the microbatches and the rest on what is left
of the batch. That costs nothing, so a forward propagation goes on with it, though a loop over the microbatches had rather
all of each over the whole axis. So the search starts once more from a forward propagation that sees that, as if the value had
been exchanged behind the reshape; whether it is, the improvement decides.
"""

from __future__ import annotations

from ...ir.layout import Layout
from ...ir.mesh import Mesh, parse_axis
from ...ir.types import TensorType, Type
from ..rules.base import with_axis


def with_whole_axes(layout: Layout, type: Type, mesh: Mesh) -> Layout:
    """The layout with each axis that is in pieces whole, on the last dim that has a piece of it and that it divides; without
    the axis if there is none."""
    if not isinstance(type, TensorType) or layout.blocks:
        return layout
    pieces = [a for a in layout.axes if ":" in a]
    whole = layout.drop(pieces)
    places: dict[str, list[int]] = {}
    for piece in pieces:
        if isinstance(place := layout.placement[piece], int):
            places.setdefault(parse_axis(piece)[0], []).append(place)
    for axis in mesh.shape:
        for place in sorted(places.get(axis, ()), reverse=True):
            new = with_axis(whole, axis, place, mesh)
            if type.shape[place] % mesh.axes_size(new.dims[place]) == 0:
                whole = new
                break
    return whole
