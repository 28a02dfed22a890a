"""convolution: batch, output features and (contracted) input features shard; grouped convolutions shard their groups.

A spatial dim shards in two ways. Where the kernel is small, devices fetch the image rows that their results need. Where
image and kernel are both large (the gradient of a kernel), both are cut, and the results are partial sums.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ...ir.graph import Op, Value
from ...ir.layout import is_even, local_type
from ...ir.types import Type
from ..cost import Work
from ..emit.builder import Builder
from .base import R, Rule, Strategy, factored, shape_of
from .windows import Extent, fetch, window_price


class _Spatial(NamedTuple):
    """A spatial dim: where it is, what results need of the image, and what kernel positions (taps) need of it."""

    image: int
    kernel: int
    result: int
    number: int
    rows: Extent
    taps: Extent


def _spatial(op: Op) -> list[_Spatial]:
    at = op.attrs
    lhs, rhs, out = (shape_of(v) for v in (*op.operands, op.results[0]))
    n = len(at["input_spatial_dimensions"])
    ones = [1] * n
    strides = at.get("window_strides") or ones
    padding = at.get("padding") or ((0, 0),) * n
    base, dilation = at.get("lhs_dilation") or ones, at.get("rhs_dilation") or ones
    reversal = at.get("window_reversal") or (False,) * n
    found: list[_Spatial] = []
    for i in range(n):
        d, k, o = (at[f"{x}_spatial_dimensions"][i] for x in ("input", "kernel", "output"))
        low = padding[i][0]
        rows = Extent(lhs[d], out[o], strides[i], (rhs[k] - 1) * dilation[i] + 1, low, base[i])
        taps = Extent(lhs[d], rhs[k], dilation[i], (out[o] - 1) * strides[i] + 1, low, base[i], reversal[i])
        found.append(_Spatial(d, k, o, i, rows, taps))
    return found


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
    whole: list[int] = []
    extra: list[Strategy] = []
    for s in _spatial(op):
        if s.rows.trivial:
            factor(lhs[s.image], s.image, None, s.result)
            continue
        f = factor(lhs[s.image], s.image, None, None)
        whole.append(f)
        if s.rows.size > 1 and s.rows.out > 1 and rhs[s.kernel]:
            extra.append(Strategy((s.image, R), (s.result,), f, _rows_price(s)))
        if s.rows.size > 1 and s.taps.out > 1 and 1 <= s.rows.out <= s.taps.out:
            extra.append(Strategy((s.image, s.kernel), ("sum",), f, _taps_price(s)))
    flops = 2.0 * math.prod(out) * math.prod(rhs) / max(1, rhs[ko])
    return factored(
        [dims[0], dims[1]],
        [dims[2]],
        sizes,
        _expand,
        reduced=reduced,
        whole=whole,
        even=even,
        linear=[((0,), ("sum",)), ((1,), ("sum",))],
        extra=extra,
        work=Work.over(op)._replace(flops=flops, dtype=op.operands[0].type.dtype),
    )


def _rows_price(s: _Spatial) -> Any:
    def price(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        return window_price(s.rows, n, ins[0], s.image, outs[0].shape[s.result])

    return price


def _taps_price(s: _Spatial) -> Any:
    def price(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        return window_price(s.taps, n, ins[0], s.image, ins[1].shape[s.kernel])

    return price


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    at = dict(op.attrs)
    lhs, rhs = op.operands
    result = op.results[0]
    assert lhs.layout is not None and rhs.layout is not None and result.layout is not None
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
    spatial = _spatial(op)
    padding = [tuple(x) for x in at.get("padding") or ((0, 0),) * len(spatial)]
    base: list[int] = list(at.get("lhs_dilation") or [1] * len(spatial))
    local = local_type(result.type, result.layout, b.mesh)
    for s in spatial:
        axes = lhs.layout.dims[s.image]
        if not axes or s.rows.trivial:
            continue
        if rhs.layout.dims[s.kernel]:
            taps = right.type.shape[s.kernel]
            even = is_even(rhs.layout, rhs.type, b.mesh)
            right = b.masked(right, rhs.layout, rhs.type, (s.kernel,), 0)
            found = fetch(b, left, s.image, axes, s.taps, taps, 0, mask=not even)
        else:
            found = fetch(b, left, s.image, axes, s.rows, local.shape[s.result], 0)
        left, padding[s.number], base[s.number] = found.value, (found.low, found.high), found.base
    at["padding"], at["lhs_dilation"] = tuple(padding), tuple(base)
    return b.local(op, [left, right], at)


RULES = {"convolution": convolution}
