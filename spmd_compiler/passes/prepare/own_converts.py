"""own_converts: each op that reads a value which was converted from a narrower type reads a conversion of its own.

The users of one conversion may want it in different layouts, as `x @ x` does, or a product and its gradient; then the narrow value
should move to each, and be converted there. A conversion has one layout, which all but one of them would have to exchange in the
wide type. Those that end up in one layout are merged again, once they are per-device ops (`simplify`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.graph import Block, Module, Op, Value
from ...ir.types import TensorType


@dataclass(frozen=True)
class OwnConverts:
    name: ClassVar[str] = "own_converts"

    def __call__(self, module: Module) -> Module:
        block = _block(module.main.body)
        return module if block is None else module.with_body(block)


def _block(block: Block) -> Block | None:
    """The block with more conversions, if there are any."""
    widened = {op.results[0]: op for op in block.ops if _widens(op)}
    ops: list[Op] = []
    used, changed = set[Value](), False
    for op in block.ops:
        operands: list[Value] = []
        for v in op.operands:
            if v in used:
                source, own = widened[v], Value(v.type)
                ops.append(Op("convert", source.operands, [own], source.attrs, (), source.loc))
                v, changed = own, True
            elif v in widened:
                used.add(v)
            operands.append(v)
        inner = [_block(region) for region in op.regions]
        if operands != op.operands or any(inner):
            changed = True
            regions = tuple(new or old for new, old in zip(inner, op.regions, strict=True))
            op = Op(op.name, operands, op.results, op.attrs, regions, op.loc)
        ops.append(op)
    return Block(block.args, ops, block.returns) if changed else None


def _widens(op: Op) -> bool:
    """Whether an op converts an array to a larger type."""
    if op.name != "convert":
        return False
    source, result = op.operands[0].type, op.results[0].type
    return isinstance(result, TensorType) and bool(result.rank) and source.nbytes < result.nbytes
