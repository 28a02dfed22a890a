"""dot_general: `bmk,bkn->bmn` with any number of batch, free and contracting dims. Bilinear, so a partial operand passes."""

from __future__ import annotations

import math

from ...ir.graph import Op, Value
from ..cost import Work
from ..emit.builder import Builder
from .base import Rule, factored, shape_of

Pair = tuple[tuple[int, ...], tuple[int, ...]]  # dims of lhs and the dims of rhs that go with them


def dot_general(op: Op) -> Rule:
    batch, contract = op.attrs["batch"], op.attrs["contract"]
    sizes: list[int] = []
    left, right, result = product_factors(op, batch, contract, sizes, {})
    flops = 2.0 * math.prod(sizes)
    return factored(
        [left, right],
        [result],
        sizes,
        _expand,
        reduced={left[i]: "sum" for i in contract[0]},
        linear=[((0,), ("sum",)), ((1,), ("sum",))],
        work=Work.over(op)._replace(flops=flops, dtype=op.operands[0].type.dtype),
    )


def product_factors(
    op: Op, batch: Pair, contract: Pair, sizes: list[int], right: dict[int, int]
) -> tuple[list[int], list[int], list[int]]:
    """The factors of the dims of lhs, rhs and of a product of these, whose sizes are added to `sizes`. right: of the dims of rhs
    that have one already."""
    lhs, rhs = shape_of(op.operands[0]), shape_of(op.operands[1])
    left: dict[int, int] = {}
    for i, j in zip(batch[0] + contract[0], batch[1] + contract[1], strict=True):
        left[i] = right[j] = len(sizes)
        sizes.append(lhs[i])
    result = [left[i] for i in batch[0]]
    for shape, factors in ((lhs, left), (rhs, right)):
        for d, size in enumerate(shape):
            if d not in factors:
                factors[d] = len(sizes)
                result.append(len(sizes))
                sizes.append(size)
    return [left[d] for d in range(len(lhs))], [right[d] for d in range(len(rhs))], result


def without_padding(b: Builder, op: Op, args: list[Value], contract: Pair) -> list[Value]:
    """Both operands of a product, with zeros for padding that would be summed."""
    masked: list[Value] = []
    for value, arg, dims in zip(op.operands[:2], args[:2], contract, strict=True):
        assert value.layout is not None
        masked.append(b.masked(arg, value.layout, value.type, dims, 0))
    return masked


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    return b.local(op, without_padding(b, op, args, op.attrs["contract"]))


RULES = {"dot_general": dot_general}
