"""Mesh axes of which a piece divides dims that the whole axis doesn't, searched as two axes.

Twelve rows over eight devices lie in blocks of two, of which two devices have none, and where windows over 24 rows make them no
block has its rows at hand. Over four pairs of devices they lie evenly: what a pair needs is gathered there, and either both do the
same work or share it along another dim. Where it is the search that brings an axis to a dim that it doesn't divide, as from a
sequence to four heads, the minor piece goes there and the major one stays: four devices share the heads of each half of the
sequence (Fang and Zhao 2024, unified sequence parallelism). A search over whole axes knows pieces only behind reshapes; so the mesh
is seen with the axis as two, and what is found so is kept where it is better.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from ...ir.graph import Module, Value
from ...ir.layout import Axes, Layout
from ...ir.mesh import Mesh, split_axis
from ...ir.types import TensorType
from .fused_axes import Fusion, given_layouts, may_have_other_axes, mesh_of

Layouts = Iterable[tuple[Value, Layout]]


def cut_of(module: Module, plain: Layouts, found: Layouts = ()) -> Fusion | None:
    """The module's mesh with the axes in two that some layouts cut dims with unevenly; None if there are none. plain, found: by plain
    propagation, and by a search."""
    mesh = module.mesh
    majors = {axis: mesh.axis_size(axis) // minor for axis, minor in _dividing(found, mesh).items()}
    majors |= _dividing(plain, mesh)
    if not majors or not may_have_other_axes(module) or any(x.has_pieces for x in given_layouts(module)):
        return None
    cuts: dict[str, Axes] = {axis: split_axis(mesh, axis, major) for axis, major in majors.items()}
    bundles = {f"{axis}_{at}": (piece,) for axis, pieces in cuts.items() for at, piece in enumerate(pieces)}
    if not bundles.keys().isdisjoint(mesh.shape):
        return None
    names = {pieces: name for name, pieces in bundles.items()}
    axes = [names.get((p,), p) for axis in mesh.shape for p in cuts.get(axis, (axis,))]
    return Fusion(bundles, mesh_of(axes, bundles, mesh), mesh, cuts)


def _dividing(layouts: Layouts, mesh: Mesh) -> dict[str, int]:
    """The axes that don't divide what they cut, with the part of each that does so for most bytes."""
    found: dict[str, Counter[int]] = {}
    for value, layout in layouts:
        if isinstance(value.type, TensorType):
            for size, axes in zip(value.type.shape, layout.dims, strict=True):
                axis, part = _part(size, axes, mesh)
                if part > 1 and ":" not in axis:
                    found.setdefault(axis, Counter())[part] += value.type.nbytes
    return {axis: counts.most_common(1)[0][0] for axis, counts in found.items()}


def _part(size: int, axes: Axes, mesh: Mesh) -> tuple[str, int]:
    """The first of some axes that doesn't divide a dim behind those before it, and its largest part that does; ("", 1) if
    all do."""
    before = 1
    for axis in axes:
        n = mesh.axis_size(axis)
        if size % (before * n):
            return axis, math.gcd(n, size // before)
        before *= n
    return "", 1
