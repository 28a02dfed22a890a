"""Kinds of ops that compute: elementwise, contractions, reductions, windows, orders."""

from __future__ import annotations

import math

import numpy as np

from ...ir.graph import Block, Op, Value
from ...ir.types import TensorType
from .generate import FLOATS, NUMBERS, Scope, neutral, reducer, size, some_dims


def unary(s: Scope) -> None:
    x = s.array(*NUMBERS, "c64", rank=0)
    if x is not None:
        names = ["negate", "abs", "sign"] if x.type.dtype != "c64" else ["negate"]
        names += ["floor", "ceil", "round_nearest_even"] if x.type.dtype in FLOATS else []
        s.op(s.rng.choice(names), [x], x.type, s.bound[x])


def binary(s: Scope) -> None:
    x = s.array(rank=0)
    if x is None:
        return
    y, dtype = s.like(x), x.type.dtype
    if dtype == "i1":
        s.op(s.rng.choice(("and", "or", "xor")), [x, y], x.type, 1)
        return
    names = ["add", "subtract", "multiply"]
    names += ["maximum", "minimum"] if dtype != "c64" else []
    names += ["and", "or", "xor"] if dtype == "i32" else []
    name = s.rng.choice(names)
    a, b = s.bound[x], s.bound[y]
    s.op(name, [x, y], x.type, a * b if name == "multiply" else a + b)


def compare(s: Scope) -> None:
    x = s.array(*NUMBERS)
    if x is not None:
        kind = "SIGNED" if x.type.dtype == "i32" else "FLOAT"
        direction = s.rng.choice(("EQ", "NE", "LT", "LE", "GT", "GE"))
        attrs: dict[str, object] = {"comparison_direction": direction, "compare_type": kind}
        s.op("compare", [x, s.like(x)], TensorType(x.type.shape, "i1"), 1, attrs)


def select(s: Scope) -> None:
    p = s.array("i1")
    if p is not None:
        x = s.pick(lambda v: v.type.shape == p.type.shape)
        assert x is not None
        y = s.like(x)
        s.op("select", [p, x, y], x.type, max(s.bound[x], s.bound[y]))


def convert(s: Scope) -> None:
    x = s.array("f32", "i32", "i1", rank=0)
    if x is not None:
        to = s.rng.choice([d for d in ("f32", "i32") if d != x.type.dtype])
        if s.bound[x] < 2**22:
            s.op("convert", [x], TensorType(x.type.shape, to), s.bound[x])


def dot_general(s: Scope) -> None:
    x = s.array("f32", "f64", "i32")
    if x is None:
        return
    roles = [s.rng.choice("bcf") for _ in x.type.shape]
    batch = [d for d, r in enumerate(roles) if r == "b"][:2]
    contract = [d for d, r in enumerate(roles) if r == "c"]
    free = [size(s.rng) for _ in range(s.rng.randint(0, 2))]
    sizes = [*((x.type.shape[d], ("b", d)) for d in batch), *((x.type.shape[d], ("c", d)) for d in contract)]
    sizes += [(n, ("f", i)) for i, n in enumerate(free)]
    s.rng.shuffle(sizes)
    shape = tuple(n for n, _ in sizes)
    at = {role: i for i, (_, role) in enumerate(sizes)}
    y = s.pick(lambda v: v.type.shape == shape and v.type.dtype == x.type.dtype)
    if math.prod(shape) > 900:
        return
    if y is None:
        y = s.data(TensorType(shape, x.type.dtype))
    of_y = [i for i, (_, (r, _)) in enumerate(sizes) if r == "f"]
    out = [x.type.shape[d] for d in batch]
    out += [n for d, n in enumerate(x.type.shape) if d not in (*batch, *contract)]
    out += [shape[i] for i in of_y]
    if math.prod(out) > 900 or len(out) > 5:
        return
    attrs: dict[str, object] = {
        "contract": (tuple(contract), tuple(at["c", d] for d in contract)),
        "batch": (tuple(batch), tuple(at["b", d] for d in batch)),
    }
    terms = math.prod(x.type.shape[d] for d in contract)
    s.op(
        "dot_general",
        [x, y],
        TensorType(tuple(out), x.type.dtype),
        s.bound[x] * s.bound[y] * max(terms, 1),
        attrs,
    )


def reduce(s: Scope) -> None:
    x = s.array(*NUMBERS, "i1", "c64")
    if x is None:
        return
    dims, dtype = some_dims(s, x.type.rank), x.type.dtype
    names = {"i1": ["and", "or"], "c64": ["add"]}.get(dtype, ["add", "add", "maximum", "minimum"])
    if dtype == "i32":
        names += ["multiply", "xor"]
    name = s.rng.choice(names)
    count = math.prod(x.type.shape[d] for d in dims)
    if dtype == "bf16" and name == "add" and s.bound[x] * count > 200:
        return
    shape = tuple(n for d, n in enumerate(x.type.shape) if d not in dims)
    init = neutral(s, name, dtype)
    empty = 1 if dtype == "i1" else np.inf if count == 0 and name in ("maximum", "minimum") else 2
    bound = s.bound[x] * max(count, 1) + 2 if name == "add" else max(s.bound[x], empty)
    if bound == np.inf:
        return
    s.op("reduce", [x, init], TensorType(shape, dtype), bound, {"dimensions": dims}, (reducer(name, dtype),))


def argmax(s: Scope) -> None:
    x = s.array("f32", "i32")
    if x is None:
        return
    d, dtype = s.rng.randrange(x.type.rank), x.type.dtype
    index = s.op("iota", [], TensorType(x.type.shape, "i32"), max(x.type.shape), {"iota_dimension": d})
    start = neutral(s, "maximum", dtype)
    value, position, flag = TensorType((), dtype), TensorType((), "i32"), TensorType((), "i1")
    a, i, b, j = Value(value), Value(position), Value(value), Value(position)
    kind = "SIGNED" if dtype == "i32" else "FLOAT"
    more, same, less, tie, take = (Value(flag) for _ in range(5))
    best, where = Value(value), Value(position)

    def comparison(direction: str, x: Value, y: Value, out: Value, kind: str) -> Op:
        return Op("compare", [x, y], [out], {"comparison_direction": direction, "compare_type": kind})

    ops = [
        comparison("GT", a, b, more, kind),
        comparison("EQ", a, b, same, kind),
        comparison("LT", i, j, less, "SIGNED"),
        Op("and", [same, less], [tie], {}),
        Op("or", [more, tie], [take], {}),
        Op("select", [take, a, b], [best], {}),
        Op("select", [take, i, j], [where], {}),
    ]
    shape = tuple(n for k, n in enumerate(x.type.shape) if k != d)
    if not x.type.shape[d]:
        return
    last = s.scalar("i32", 2**31 - 1)
    types = [TensorType(shape, dtype), TensorType(shape, "i32")]
    bounds = [s.bound[x] + 2, float(x.type.shape[d])]
    region = Block([a, i, b, j], ops, [best, where])
    s.multi("reduce", [x, index, start, last], types, bounds, {"dimensions": (d,)}, (region,))


def _window_shape(n: int, k: int, stride: int, gap: int, padding: tuple[int, int], spread: int) -> int:
    spaced = max(0, (n - 1) * spread + 1) + sum(padding)
    return max(0, (spaced - (k - 1) * gap - 1) // stride + 1)


def reduce_window(s: Scope) -> None:
    x = s.array("f32", "i32", "f64")
    if x is None or not x.type.size:
        return
    rank, dtype, rng = x.type.rank, x.type.dtype, s.rng
    name = rng.choice(("add", "maximum", "minimum"))
    window, padding = [1] * rank, [(0, 0)] * rank
    stride, spread, gap = [1] * rank, [1] * rank, [1] * rank
    for d in some_dims(s, rank):
        if rng.random() < 0.3:  # cumulative
            n = x.type.shape[d]
            window[d], padding[d] = n, rng.choice(((n - 1, 0), (0, n - 1)))
        else:
            window[d], padding[d] = rng.randint(1, 4), (rng.randint(0, 2), rng.randint(0, 2))
            stride[d], spread[d], gap[d] = (
                rng.choice((1, 1, 2, 3)),
                rng.choice((1, 1, 1, 2)),
                rng.choice((1, 1, 1, 2)),
            )
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
    init = s.scalar(dtype, 0) if name == "add" else s.scalar(dtype, -100 if name == "maximum" else 100)
    bound = s.bound[x] * math.prod(window) if name == "add" else max(s.bound[x], 100)
    s.op("reduce_window", [x, init], TensorType(shape, dtype), bound, attrs, (reducer(name, dtype),))


def convolution(s: Scope) -> None:
    x = s.pick(lambda v: v.type.rank in (3, 4) and v.type.dtype in ("f32", "f64") and 0 not in v.type.shape)
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


def sort(s: Scope) -> None:
    x = s.array("f32", "i32")
    if x is None:
        return
    d = s.rng.randrange(x.type.rank)
    xs = [x]
    if s.rng.random() < 0.5 and (y := s.pick(lambda v: v.type.shape == x.type.shape)) is not None:
        xs.append(y)
    args: list[Value] = []
    for v in xs:
        args += [Value(TensorType((), v.type.dtype)), Value(TensorType((), v.type.dtype))]
    out = Value(TensorType((), "i1"))
    attrs = {
        "comparison_direction": s.rng.choice(("LT", "GT")),
        "compare_type": "SIGNED" if x.type.dtype == "i32" else "FLOAT",
    }
    region = Block(args, [Op("compare", args[:2], [out], attrs)], [out])
    types = [v.type for v in xs]
    s.multi("sort", xs, types, [s.bound[v] for v in xs], {"dimension": d, "is_stable": True}, (region,))


def top_k(s: Scope) -> None:
    x = s.array("f32", "i32")
    if x is not None and x.type.shape[-1]:
        k = s.rng.randint(1, x.type.shape[-1])
        shape = (*x.type.shape[:-1], k)
        types = [TensorType(shape, x.type.dtype), TensorType(shape, "i32")]
        s.multi("chlo.top_k", [x], types, [s.bound[x], float(x.type.shape[-1])], {"k": k})
