"""Global arrays cut into what devices hold, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...ir.groups import positions
from ...ir.layout import Layout, local_block
from ...ir.mesh import Mesh

GARBAGE = {"f": np.nan, "c": np.nan, "i": 77, "u": 77, "b": True, "V": 3.5}  # by numpy kind; V: small floats


def cut(array: np.ndarray, layout: Layout, mesh: Mesh) -> list[np.ndarray]:
    """Per device its block; what lies beyond the end of a dim is garbage, so that reading it shows."""
    blocks = [local_block(layout, d, n, mesh) for d, n in enumerate(array.shape)]
    padded = np.full(
        [b * mesh.axes_size(axes) for b, axes in zip(blocks, layout.dims, strict=True)],
        GARBAGE[array.dtype.kind],
        array.dtype,
    )
    padded[tuple(slice(0, n) for n in array.shape)] = array
    places = [positions(mesh, axes) for axes in layout.dims]
    return [
        padded[tuple(slice(p[k] * b, (p[k] + 1) * b) for p, b in zip(places, blocks, strict=True))]
        for k in range(mesh.size)
    ]


def join(shards: Sequence[np.ndarray], layout: Layout, shape: tuple[int, ...], mesh: Mesh) -> np.ndarray:
    """The global array of the devices' blocks. Raises ValueError where devices that should hold the same differ."""
    blocks = [local_block(layout, d, n, mesh) for d, n in enumerate(shape)]
    whole = np.zeros(
        [b * mesh.axes_size(axes) for b, axes in zip(blocks, layout.dims, strict=True)], shards[0].dtype
    )
    places = [positions(mesh, axes) for axes in layout.dims]
    first: dict[tuple[int, ...], bytes] = {}
    for k, shard in enumerate(shards):
        at = tuple(int(p[k]) for p in places)
        where = tuple(slice(i * b, (i + 1) * b) for i, b in zip(at, blocks, strict=True))
        whole[where] = shard
        inside = whole[where][tuple(slice(0, max(0, n - s.start)) for n, s in zip(shape, where, strict=True))]
        seen = first.setdefault(at, inside.tobytes())
        if seen != inside.tobytes():
            raise ValueError(f"devices that hold the same block {at} in {layout} differ")
    return whole[tuple(slice(0, n) for n in shape)]
