"""Clamps the starts of dynamic slices that are sliced dynamically again, as their definition does anyway.

XLA makes one slice of the two, from the sum of their starts, and clamps the first start only so far that the smaller slice
fits: one that was out of range then reads from the wrong place (openxla/xla#49122, also on one device). On CPU an all-to-all
is such slices too (`ir.cpu_forms`).
"""

from __future__ import annotations

from ..ir.graph import Block, Op, Value
from ..ir.mesh import Mesh
from .builder import Builder
from .rules.slicing import clamped


def clamp_starts(block: Block, mesh: Mesh) -> None:
    """Changes a block that no one else holds, and the blocks inside."""
    for op in block.ops:
        for region in op.regions:
            clamp_starts(region, mesh)
    sliced = {op.operands[0] for op in block.ops if op.name == "dynamic_slice"}
    sliced.update(v for op in block.ops if op.name == "all_to_all" for v in op.operands)
    new: list[Op] = []
    for op in block.ops:
        if op.name == "dynamic_slice" and op.results[0] in sliced:
            before = Block([], [], [])
            b = Builder(mesh, before)
            b.loc = op.loc
            op.operands = [op.operands[0], *_starts(b, op)]
            new += before.ops
        new.append(op)
    block.ops[:] = new


def _starts(b: Builder, op: Op) -> list[Value]:
    lasts = [n - k for n, k in zip(op.operands[0].type.shape, op.attrs["slice_sizes"], strict=True)]
    return [clamped(b, start, last) for start, last in zip(op.operands[1:], lasts, strict=True)]
