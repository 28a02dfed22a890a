"""Kinds of ops that slide a window: reductions, selections, convolutions."""

from __future__ import annotations

import math

from ...ir.graph import Block, Op, Value
from ...ir.types import TensorType
from .scope import INTS, Scope, comparison, reducer, some_dims

_CONVOLVED = ("f32", "f64", "i32", "c64")


def _window_shape(n: int, k: int, stride: int, gap: int, padding: tuple[int, int], spread: int) -> int:
    spaced = max(0, (n - 1) * spread + 1) + sum(padding)
    return max(0, (spaced - (k - 1) * gap - 1) // stride + 1)


def reduce_window(s: Scope) -> None:
    x = s.array("f32", "f64", *INTS)
    if x is None or not x.type.size:
        return
    rank, dtype, rng = x.type.rank, x.type.dtype, s.rng
    name = rng.choice(("add", "add", "maximum", "minimum", *("multiply",) * (dtype in INTS)))
    window, padding = [1] * rank, [(0, 0)] * rank
    stride, spread, gap = [1] * rank, [1] * rank, [1] * rank
    for d in some_dims(s, rank):
        if rng.random() < 0.3:  # cumulative
            n = x.type.shape[d]
            window[d], padding[d] = n, rng.choice(((n - 1, 0), (0, n - 1)))
        else:
            window[d], padding[d] = rng.randint(1, 4), (rng.randint(-1, 2), rng.randint(-1, 2))
            stride[d], spread[d] = rng.choice((1, 1, 2, 3)), rng.choice((1, 1, 1, 2, 3))
            gap[d] = rng.choice((1, 1, 1, 2, 3))
    rows = zip(x.type.shape, window, stride, gap, padding, spread, strict=True)
    shape = tuple(_window_shape(*row) for row in rows)
    if not all(shape) or math.prod(shape) > 900:
        return
    attrs: dict[str, object] = {
        "window_dimensions": tuple(window),
        "window_strides": tuple(stride),
        "base_dilations": tuple(spread),
        "window_dilations": tuple(gap),
        "padding": tuple(padding),
    }
    two = name != "multiply" and rng.random() < 0.15
    start = {"add": 0, "multiply": 1, "maximum": 0 if dtype[0] == "u" else -100, "minimum": 100}[name]
    init = s.scalar(dtype, start)
    bound = s.bound[x] * math.prod(window) if name == "add" else max(s.bound[x], 100)
    type = TensorType(shape, dtype)
    if not two:
        s.op("reduce_window", [x, init], type, bound, attrs, (reducer(name, dtype),))
        return
    y = s.like(x)
    bounds = [bound, s.bound[y] * math.prod(window)]
    inits = [init, s.scalar(dtype, 0)]
    s.multi("reduce_window", [x, y, *inits], [type, type], bounds, attrs, (_pairwise(name, dtype),))


def _pairwise(name: str, dtype: str) -> Block:
    """Two reductions that know nothing of each other."""
    a, b, c, d, first, second = (Value(TensorType((), dtype)) for _ in range(6))
    return Block(
        [a, b, c, d], [Op(name, [a, c], [first], {}), Op("add", [b, d], [second], {})], [first, second]
    )


def select_and_scatter(s: Scope) -> None:
    x = s.array("f32", "f64", "i32")
    if x is None or not x.type.size:
        return
    rng, rank, dtype = s.rng, x.type.rank, x.type.dtype
    window, stride, padding = [1] * rank, [1] * rank, [(0, 0)] * rank
    for d in some_dims(s, rank):
        window[d], stride[d] = rng.choice((1, 2, 2, 3, 4)), rng.choice((1, 1, 2, 3))
        padding[d] = rng.randint(0, window[d] - 1), rng.randint(0, window[d] - 1)
    rows = zip(x.type.shape, window, stride, padding, strict=True)
    shape = tuple(_window_shape(n, k, t, 1, p, 1) for n, k, t, p in rows)
    if not all(shape) or math.prod(shape) > 900:
        return
    x = s.finite(x)  # which place a NaN gives its source to depends on when it is compared
    scalar = TensorType((), dtype)
    args = [Value(scalar), Value(scalar)]
    op, flag = comparison(rng.choice(("GE", "GE", "GT", "LE", "LT")), *args)
    attrs: dict[str, object] = {
        "window_dimensions": tuple(window),
        "window_strides": tuple(stride),
        "padding": tuple(padding),
    }
    source = s.data(TensorType(shape, dtype))
    init = s.scalar(dtype, rng.choice((0, 0, 2)))
    name = rng.choice(("add", "add", "add", "maximum"))
    bound = 3.0 * math.prod(window) + 2
    s.op(
        "select_and_scatter",
        [x, source, init],
        x.type,
        bound,
        attrs,
        (Block(args, [op], [flag]), reducer(name, dtype)),
    )


def convolution(s: Scope) -> None:
    x = s.pick(lambda v: v.type.rank in (3, 4) and v.type.dtype in _CONVOLVED and 0 not in v.type.shape)
    if x is None:
        return
    rng, rank = s.rng, x.type.rank
    order = rng.sample(range(rank), rank)
    b, f, *space = order
    n = x.type.shape
    groups = rng.choice([g for g in (1, 1, 2, 3) if n[f] % g == 0])
    batches = rng.choice([g for g in (1, 1, 1, 2) if n[b] % g == 0]) if groups == 1 else 1
    features = rng.randint(1, 3) * groups * batches
    rows = []
    for d in space:
        row = rng.randint(1, 3), rng.choice((1, 1, 2)), rng.choice((1, 1, 1, 2)), rng.choice((1, 1, 1, 2))
        edge = rng.randint(-1, 2), rng.randint(0, 2)
        k, step, apart, spaced = row
        out = _window_shape(n[d], k, step, apart, edge, spaced)
        if out < 1:
            return
        rows.append((*row, edge, out))
    window, stride, gap, spread, padding, sizes = zip(*rows, strict=True)
    kernel = [0] * rank
    where = rng.sample(range(rank), rank)
    kernel[where[0]], kernel[where[1]] = n[f] // groups, features
    for d, k in zip(where[2:], window, strict=True):
        kernel[d] = k
    out = [0] * rank
    to = rng.sample(range(rank), rank)
    out[to[0]], out[to[1]] = n[b] // batches, features
    for d, k in zip(to[2:], sizes, strict=True):
        out[d] = k
    if math.prod(out) > 900 or math.prod(kernel) > 900:
        return
    attrs: dict[str, object] = {
        "input_batch_dimension": b,
        "input_feature_dimension": f,
        "input_spatial_dimensions": tuple(space),
        "kernel_input_feature_dimension": where[0],
        "kernel_output_feature_dimension": where[1],
        "kernel_spatial_dimensions": tuple(where[2:]),
        "output_batch_dimension": to[0],
        "output_feature_dimension": to[1],
        "output_spatial_dimensions": tuple(to[2:]),
        "window_strides": tuple(stride),
        "padding": tuple(padding),
        "lhs_dilation": tuple(spread),
        "rhs_dilation": tuple(gap),
        "window_reversal": tuple(rng.random() < 0.2 for _ in space),
        "feature_group_count": groups,
        "batch_group_count": batches,
    }
    w = s.data(TensorType(tuple(kernel), x.type.dtype))
    terms = math.prod(window) * n[f]
    s.op("convolution", [x, w], TensorType(tuple(out), x.type.dtype), s.bound[x] * 3 * terms, attrs)
