"""Slices of what a device computes in passing are computed from slices.

Where a device reads a value whole, in passing, and needs a slice of it beside that, as a norm is taken over all features and scales
some of them, XLA may keep the value for both. From slices of the operands it computes the slice where that is read.
"""

from __future__ import annotations

from ...ir.graph import Block, Op, Value
from ...ir.optable import ELEMENTWISE, SLICES
from ...ir.types import TensorType
from ..estimate import is_light, last_reads, readers
from .residuals import CHEAP

_COMPUTED = CHEAP.intersection(ELEMENTWISE)
_MADE_AGAIN = CHEAP - _COMPUTED  # where they are read


def slice_operands(block: Block) -> bool:
    """Changes a block that no one else holds, and the blocks inside; whether it did."""
    changed = False
    for op in block.ops:
        for region in op.regions:
            changed |= slice_operands(region)
    users, last = readers(block), last_reads(block)
    made = block.makers()

    def in_passing(op: Op) -> bool:
        """Whether what an op makes is otherwise read by one op that XLA computes it along with."""
        value = op.results[0]
        others = [x for x in users[value] if x.name not in SLICES]
        return last[value] < len(block.ops) and len(others) == 1 and is_light(others[0])

    def lasts(value: Value, place: int) -> bool:
        """Whether a value is there behind a place anyway, or computed where it is read, or next to nothing."""
        if value not in made or not value.type.shape:
            return True
        return last[value] > place or made[value].name in _MADE_AGAIN

    ops: list[Op] = []
    for i, op in enumerate(block.ops):
        maker = made.get(op.operands[0]) if op.name in SLICES else None
        if (
            maker is not None
            and maker.name in _COMPUTED
            and in_passing(maker)
            and all(lasts(v, i) for v in maker.operands)
        ):
            ops += _from_slices(op, maker)
            changed = True
        else:
            ops.append(op)
    block.ops[:] = ops
    return changed


def _from_slices(op: Op, maker: Op) -> list[Op]:
    """What makes a slice of an elementwise op's result, of slices of its operands; those without dims are whole."""
    (result,) = op.results
    ops: list[Op] = []
    operands: list[Value] = []
    for v in maker.operands:
        if v.type.shape:
            part = Value(TensorType(result.type.shape, v.type.dtype))
            ops.append(Op(op.name, [v, *op.operands[1:]], [part], op.attrs, (), op.loc))
            v = part
        operands.append(v)
    return [*ops, Op(maker.name, operands, [result], maker.attrs, (), maker.loc)]
