"""Crops what a convolution with negative padding reads, by a slice of its own: XLA for CPUs of JAX 0.10 reads beyond the operand
where one side is padded and the other cropped, also on one device."""

from __future__ import annotations

from ...ir.graph import Block, Op
from ...ir.mesh import Mesh
from ..emit.builder import Builder


def crop_windows(block: Block, mesh: Mesh) -> None:
    """Changes a block that no one else holds, and the blocks inside."""
    new: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            crop_windows(region, mesh)
        if op.name == "convolution" and any(n < 0 for side in op.attrs.get("padding") or () for n in side):
            b = Builder.beside(mesh, op)
            _crop(b, op)
            new += b.block.ops
        new.append(op)
    block.ops[:] = new


def _crop(b: Builder, op: Op) -> None:
    """The positions that negative padding takes off the ends, which lie apart by a base dilation: that is padding of its own then.
    What is more than there are comes off the padding at the other end."""
    at, x = op.attrs, op.operands[0]
    base = list(at.get("lhs_dilation") or (1,) * len(at["padding"]))
    padding: list[tuple[int, int]] = []
    for i, (d, (low, high)) in enumerate(zip(at["input_spatial_dimensions"], at["padding"], strict=True)):
        if min(low, high) < 0:
            x, base[i] = b.pad(x, d, 0, 0, between=base[i] - 1), 1
        size = x.type.shape[d]
        start = min(size, max(0, -low))
        limit = max(start, size - max(0, -high))
        low, high = low + start, high + size - limit
        x = b.slice(x, d, start, limit)
        padding.append((max(0, low + min(0, high)), max(0, high + min(0, low))))
    op.operands = [x, op.operands[1]]
    op.attrs = {**at, "padding": tuple(padding), "lhs_dilation": tuple(base)}
