"""dot_general: `bmk,bkn->bmn` with any number of batch, free and contracting dims. Bilinear, so a partial operand passes."""

from __future__ import annotations

import math

from ...ir.graph import Op, Value
from ..builder import Builder
from ..cost import Work
from .base import Rule, factored, shape_of


def dot_general(op: Op) -> Rule:
    lhs, rhs = shape_of(op.operands[0]), shape_of(op.operands[1])
    (lhs_batch, rhs_batch), (lhs_contract, rhs_contract) = op.attrs["batch"], op.attrs["contract"]
    sizes: list[int] = []
    left: dict[int, int] = {}
    right: dict[int, int] = {}
    for i, j in zip(lhs_batch + lhs_contract, rhs_batch + rhs_contract, strict=True):
        left[i] = right[j] = len(sizes)
        sizes.append(lhs[i])
    reduced = {left[i]: "sum" for i in lhs_contract}
    result = [left[i] for i in lhs_batch]
    for shape, factors in ((lhs, left), (rhs, right)):
        for d, size in enumerate(shape):
            if d not in factors:
                factors[d] = len(sizes)
                result.append(len(sizes))
                sizes.append(size)
    flops = 2.0 * math.prod(sizes)
    return factored(
        [[left[d] for d in range(len(lhs))], [right[d] for d in range(len(rhs))]],
        [result],
        sizes,
        _expand,
        reduced=reduced,
        linear=[((0,), ("sum",)), ((1,), ("sum",))],
        work=Work.over(op)._replace(flops=flops, dtype=op.operands[0].type.dtype),
    )


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    masked: list[Value] = []
    for value, arg, dims in zip(op.operands, args, op.attrs["contract"], strict=True):
        assert value.layout is not None
        masked.append(b.masked(arg, value.layout, value.type, dims, 0))
    return b.local(op, masked)


RULES = {"dot_general": dot_general}
