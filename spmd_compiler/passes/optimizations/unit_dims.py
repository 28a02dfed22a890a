"""Products over dims of one element are written without them, and so is what is computed with their results.

A device often has one head, or one row of a batch. XLA drops such dims from products, and puts a bitcast behind them; for CPUs it
then sees no softmax behind the scores, and makes and keeps them twice: attention takes two to three times as long.
"""

from __future__ import annotations

from typing import Any

from ...ir.graph import UNKNOWN_LOC, Block, Loc, Op, Value
from ...ir.optable import ELEMENTWISE
from ...ir.types import TensorType
from ..estimate import reads
from .renumber import Attrs, Places, renumber

FOLLOWING = {
    "broadcast_in_dim",
    "dot_general",
    "reduce",
    "transpose",
}  # what is written without such dims too


def drop_unit_dims(block: Block) -> None:
    """Changes a block that no one else holds, and the blocks inside."""
    for op in block.ops:
        for region in op.regions:
            drop_unit_dims(region)
    if any(map(_is_over_one, block.ops)):
        _Dropping(block).run()


def _is_over_one(op: Op) -> bool:
    """Whether an op is a product that has a dim of one element."""
    return op.name == "dot_general" and any(1 in v.type.shape for v in (*op.operands, *op.results))


class _Dropping:
    """without: values without their dims of one element, where they are read so. gone: those that are only there so."""

    def __init__(self, block: Block):
        self.block = block
        self.ops: list[Op] = []
        self.without: dict[Value, Value] = {}
        self.gone: set[Value] = set()

    def run(self) -> None:
        for op in self.block.ops:
            attrs = self.attrs(op)
            if attrs is None:
                self.restore(reads(op), op.loc)
                self.ops.append(op)
                continue
            (result,) = op.results
            operands = [self.squeezed(v, op.loc) for v in op.operands]
            type = _squeezed(result.type)
            if type is not result.type:
                self.without[result] = made = Value(type)
                self.gone.add(result)
                result = made
            self.ops.append(Op(op.name, operands, [result], attrs, op.regions, op.loc))
        self.restore(self.block.returns, UNKNOWN_LOC)
        self.block.ops[:] = self.ops

    def attrs(self, op: Op) -> Attrs | None:
        """An op's attributes without dims of one element, where it is written without them: a product over such dims, or what is
        computed with its result."""
        if not (_is_over_one(op) or any(v in self.without for v in op.operands)):
            return None
        if op.name in ELEMENTWISE:
            shapes = {v.type.shape for v in op.operands} - {()}
            return op.attrs if shapes <= {op.results[0].type.shape} else None
        if op.name not in FOLLOWING or len(op.results) > 1:
            return None
        attrs = renumber(op, _places)
        summed = attrs["contract"][0] if op.name == "dot_general" else attrs.get("dimensions", True)
        return attrs if summed else None

    def squeezed(self, value: Value, loc: Loc) -> Value:
        """The value without its dims of one element, for an op of some place in the source."""
        type = _squeezed(value.type)
        if type is value.type:
            return value
        if value not in self.without:
            self.without[value] = made = Value(type)
            self.ops.append(Op("reshape", [value], [made], loc=loc))
        return self.without[value]

    def restore(self, values: list[Value], loc: Loc) -> None:
        """Makes values as others read them."""
        for v in values:
            if v in self.gone:
                self.gone.remove(v)
                self.ops.append(Op("reshape", [self.without[v]], [v], loc=loc))


def _squeezed(type: Any) -> Any:
    if not isinstance(type, TensorType) or 1 not in type.shape:
        return type
    return type.with_shape(tuple(n for n in type.shape if n != 1))


def _places(value: Value) -> Places:
    """Where the dims of more than one element are without the others."""
    return {d: i for i, d in enumerate(d for d, n in enumerate(value.type.shape) if n != 1)}
