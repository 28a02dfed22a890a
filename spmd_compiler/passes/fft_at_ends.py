"""Transforms of arguments, and those that a program returns: these are laid out row-major, as XLA's kernel for CPUs wants them, and need
no copy that makes sure of it (`rules.fft_local`)."""

from __future__ import annotations

from ..ir.graph import Block, Op, Value
from .simplify import drop_unused


def drop_copies_at_ends(block: Block) -> None:
    """Changes the body of a program, which no one else holds."""
    made = {v: op for op in block.ops for v in op.results}
    transforms = [op for op in block.ops if op.name == "fft"]
    for op in transforms:
        if (value := _copied(op.operands[0], made)) in block.args:
            op.operands[:] = [value]
    for i, result in enumerate(block.returns):
        value = _copied(result, made)
        if value is not None and made.get(value) in transforms:
            value.layout, block.returns[i] = result.layout, value
    if transforms:
        drop_unused(block)


def _copied(value: Value, made: dict[Value, Op]) -> Value | None:
    """What a value is a copy of, by a barrier for all its elements in a row; None if it is no such copy."""
    whole = value.type
    for name in ("reshape", "optimization_barrier", "reshape"):
        op = made.get(value)
        if op is None or op.name != name or len(op.operands) > 1:
            return None
        if name == "optimization_barrier" and value.type.rank != 1:
            return None
        (value,) = op.operands
    return value if value.type == whole else None
