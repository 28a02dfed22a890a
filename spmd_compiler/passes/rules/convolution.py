"""convolution: batch, output features and (contracted) input features shard; grouped convolutions shard their groups."""

from __future__ import annotations

import math

from ...ir.graph import Op, Value
from ..builder import Builder
from ..cost import FLOP, WORK
from .base import Rule, factored, shape_of


def convolution(op: Op) -> Rule:
    at = op.attrs
    lhs, rhs, out = (shape_of(v) for v in (*op.operands, op.results[0]))
    groups, batch_groups = at["feature_group_count"], at["batch_group_count"]
    b, i = at["input_batch_dimension"], at["input_feature_dimension"]
    ki, ko = at["kernel_input_feature_dimension"], at["kernel_output_feature_dimension"]
    ob, oo = at["output_batch_dimension"], at["output_feature_dimension"]
    sizes: list[int] = []
    dims: tuple[list[int | None], ...] = ([None] * len(lhs), [None] * len(rhs), [None] * len(out))

    def factor(size: int, x: int | None, k: int | None, o: int | None) -> int:
        for side, d in zip(dims, (x, k, o), strict=True):
            if d is not None:
                side[d] = len(sizes)
        sizes.append(size)
        return len(sizes) - 1

    reduced: dict[int, str] = {}
    even: list[int] = []
    if batch_groups > 1:
        # group g convolves its part of the batch with its part of the output features
        even.append(factor(batch_groups, b, ko, oo))
        reduced[factor(lhs[i], i, ki, None)] = "sum"
    else:
        factor(lhs[b], b, None, ob)
        if groups > 1:
            even.append(factor(groups, i, ko, oo))
        else:
            factor(rhs[ko], None, ko, oo)
            reduced[factor(lhs[i], i, ki, None)] = "sum"
    flops = 2.0 * math.prod(out) * math.prod(rhs) / max(1, rhs[ko])
    return factored(
        [dims[0], dims[1]],
        [dims[2]],
        sizes,
        _expand,
        reduced=reduced,
        even=even,
        linear=[((0,), ("sum",)), ((1,), ("sum",))],
        work=FLOP * flops + WORK * sum(v.type.nbytes for v in (*op.operands, *op.results)),
    )


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    at = dict(op.attrs)
    lhs, rhs = op.operands
    assert lhs.layout is not None and rhs.layout is not None
    i, ki, ko = (
        at[k]
        for k in (
            "input_feature_dimension",
            "kernel_input_feature_dimension",
            "kernel_output_feature_dimension",
        )
    )
    if at["feature_group_count"] > 1:
        at["feature_group_count"] //= b.mesh.axes_size(lhs.layout.dims[i])
    elif at["batch_group_count"] > 1:
        at["batch_group_count"] //= b.mesh.axes_size(rhs.layout.dims[ko])
    left, right = args
    if lhs.layout.dims[i] and at["feature_group_count"] == op.attrs["feature_group_count"]:
        left = b.masked(left, lhs.layout, lhs.type, (i,), 0)
        right = b.masked(right, rhs.layout, rhs.type, (ki,), 0)
    return b.local(op, [left, right], at)


RULES = {"convolution": convolution}
