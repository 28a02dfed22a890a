"""Mesh axes of which a major piece divides dims that the whole axis doesn't, searched as two axes.

Twelve rows over eight devices lie in blocks of two, of which two devices have none, and where windows over 24 rows make them no
block has its rows at hand. Over four pairs of devices they lie evenly: what a pair needs is gathered there, and either both do the
same work or share it along another dim. A search over whole axes knows pieces only behind reshapes; so the mesh is seen with the
axis as two, and what is found so is another start for the search over the real axes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ..ir.graph import Module, Value
from ..ir.layout import Axes, Layout
from ..ir.mesh import Mesh, split_axis
from ..ir.types import TensorType
from .cost import prices
from .fused_axes import Fusion, given_layouts, may_have_other_axes


def cut_of(module: Module, layouts: Iterable[tuple[Value, Layout]]) -> Fusion | None:
    """The module's mesh with the axes in two that some layouts cut dims with unevenly; None if there are none."""
    mesh = module.mesh
    majors = _majors(layouts, mesh)
    if not majors or not may_have_other_axes(module) or any(x.has_pieces for x in given_layouts(module)):
        return None
    cuts: dict[str, Axes] = {axis: split_axis(mesh, axis, major) for axis, major in majors.items()}
    bundles = {f"{axis}_{at}": (piece,) for axis, pieces in cuts.items() for at, piece in enumerate(pieces)}
    if not bundles.keys().isdisjoint(mesh.shape):
        return None
    names = {pieces: name for name, pieces in bundles.items()}
    axes = [names.get((p,), p) for axis in mesh.shape for p in cuts.get(axis, (axis,))]
    sizes = [mesh.axes_size(bundles.get(a, (a,))) for a in axes]
    cut = Mesh(list(zip(axes, sizes, strict=True)))
    cut.cache["prices"] = prices(mesh)
    return Fusion(bundles, cut, mesh, cuts)


def _majors(layouts: Iterable[tuple[Value, Layout]], mesh: Mesh) -> dict[str, int]:
    """The axes that don't divide what they cut, with the major part of each that does so for most bytes."""
    found: dict[str, Counter[int]] = {}
    for value, layout in layouts:
        type = value.type
        for size, axes in zip(type.shape if isinstance(type, TensorType) else (), layout.dims, strict=False):
            before = 1
            for axis in axes:
                n = mesh.axis_size(axis)
                if size % (before * n) == 0:
                    before *= n
                    continue
                major = max(k for k in range(1, n) if n % k == 0 and size % (before * k) == 0)
                if major > 1 and ":" not in axis:
                    found.setdefault(axis, Counter())[major] += type.nbytes
                break
    return {axis: counts.most_common(1)[0][0] for axis, counts in found.items()}
