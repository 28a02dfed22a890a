"""Transforms (FFT) read and make arrays that are laid out row-major, on CPUs.

XLA's kernel refuses others, which arrays next to a collective may be. A copy by a barrier for all elements in a row makes sure of it;
what a program takes and returns is row-major anyway.
"""

from __future__ import annotations

import math

from ...ir.graph import Block, Op, Value
from ..simplify import drop_unused


def keep_row_major(block: Block, is_program: bool = True) -> None:
    """Changes a block that no one else holds, and the blocks inside. is_program: it is the body of a whole program."""
    ops: list[Op] = []
    made: dict[Value, Value] = {}  # what transforms make, by what is a copy of it
    for op in block.ops:
        for region in op.regions:
            keep_row_major(region, False)
        if op.name == "fft":
            (source,), (result,) = op.operands, op.results
            if not (is_program and source in block.args):
                op.operands[:] = [Value(source.type)]
                ops += _copy(source, op.operands[0], op)
            op.results[:] = [Value(result.type, result.layout)]
            made[result] = op.results[0]
            ops += [op, *_copy(op.results[0], result, op)]
        else:
            ops.append(op)
    if made:
        block.ops[:] = ops
        if is_program:
            block.returns[:] = [made.get(v, v) for v in block.returns]
            drop_unused(block)


def _copy(source: Value, copy: Value, op: Op) -> list[Op]:
    flat, kept = (Value(source.type.with_shape((math.prod(source.type.shape),))) for _ in range(2))
    return [
        Op("reshape", [source], [flat], loc=op.loc),
        Op("optimization_barrier", [flat], [kept], loc=op.loc),
        Op("reshape", [kept], [copy], loc=op.loc),
    ]
