"""What a random program may contain: each kind adds an op (or a few) to a scope, or nothing where it does not fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ...ir.graph import Block, Op, Value
from ...ir.types import TensorType
from .generate import Scope, size

FLOATS = ("f32", "f64", "bf16")
NUMBERS = (*FLOATS, "i32")
Kind = Callable[[Scope], object]


def reducer(name: str, dtype: str) -> Block:
    scalar = TensorType((), dtype)
    a, b, out = Value(scalar), Value(scalar), Value(scalar)
    return Block([a, b], [Op(name, [a, b], [out], {})], [out])


def neutral(s: Scope, name: str, dtype: str) -> Value:
    """What leaves the other operand as it is, or sometimes not."""
    if s.rng.random() < 0.15:
        return s.scalar(dtype, 2)
    if name in ("maximum", "minimum"):
        low = -(2**31) if dtype == "i32" else -np.inf
        high = 2**31 - 1 if dtype == "i32" else np.inf
        return s.scalar(dtype, low if name == "maximum" else high)
    return s.scalar(dtype, 1 if name in ("multiply", "and") else 0)


def _dims(s: Scope, rank: int, least: int = 1) -> tuple[int, ...]:
    return tuple(sorted(s.rng.sample(range(rank), s.rng.randint(least, rank))))


# ------------------------------------------------------------------------------------------ elementwise
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


# ------------------------------------------------------------------------------------------ shapes
def broadcast(s: Scope) -> None:
    x = s.array(rank=0)
    if x is None:
        return
    dims, shape = [], []
    for n in x.type.shape:
        if s.rng.random() < 0.4:
            shape.append(size(s.rng))
        dims.append(len(shape))
        shape.append(size(s.rng) if n == 1 and s.rng.random() < 0.5 else n)
    if len(shape) == x.type.rank or s.rng.random() < 0.3:
        shape.append(size(s.rng))
    if len(shape) <= 5 and math.prod(shape) <= 900:
        attrs: dict[str, object] = {"broadcast_dimensions": tuple(dims)}
        s.op("broadcast_in_dim", [x], TensorType(tuple(shape), x.type.dtype), s.bound[x], attrs)


def transpose(s: Scope) -> None:
    x = s.array(rank=2)
    if x is not None:
        order = tuple(s.rng.sample(range(x.type.rank), x.type.rank))
        shape = tuple(x.type.shape[d] for d in order)
        s.op("transpose", [x], TensorType(shape, x.type.dtype), s.bound[x], {"permutation": order})


def reshape(s: Scope) -> None:
    x = s.array()
    if x is None:
        return
    shape: list[int] = []
    for n in x.type.shape:  # split, then merge neighbours
        cut = s.rng.choice([d for d in range(1, n + 1) if n % d == 0]) if n else 1
        shape += [cut, n // cut] if s.rng.random() < 0.5 and n else [n]
    while len(shape) > 4 or (len(shape) > 1 and s.rng.random() < 0.5):
        k = s.rng.randrange(len(shape) - 1)
        shape[k : k + 2] = [shape[k] * shape[k + 1]]
    s.op("reshape", [x], TensorType(tuple(shape), x.type.dtype), s.bound[x])


def reverse(s: Scope) -> None:
    x = s.array()
    if x is not None:
        s.op("reverse", [x], x.type, s.bound[x], {"dimensions": _dims(s, x.type.rank)})


def slice_(s: Scope) -> None:
    x = s.array()
    if x is None:
        return
    starts = tuple(s.rng.randint(0, n // 2) for n in x.type.shape)
    limits = tuple(s.rng.randint(min(a + 1, n), n) for a, n in zip(starts, x.type.shape, strict=True))
    strides = tuple(s.rng.choice((1, 1, 1, 2, 3)) for _ in starts)
    shape = tuple(-(-(b - a) // k) for a, b, k in zip(starts, limits, strides, strict=True))
    attrs: dict[str, object] = {"start_indices": starts, "limit_indices": limits, "strides": strides}
    s.op("slice", [x], TensorType(shape, x.type.dtype), s.bound[x], attrs)


def pad(s: Scope) -> None:
    x = s.array(*NUMBERS)
    if x is None:
        return
    low, high, inner, shape = [], [], [], []
    for n in x.type.shape:
        gap = s.rng.choice((0, 0, 0, 1, 2))
        spaced = n + max(n - 1, 0) * gap
        a = s.rng.randint(-min(2, spaced), 3)
        b = s.rng.randint(-min(2, max(0, spaced + min(a, 0))), 3)
        low.append(a), high.append(b), inner.append(gap), shape.append(spaced + a + b)
    if math.prod(shape) > 900 or min(shape) < 0:
        return
    attrs: dict[str, object] = {
        "edge_padding_low": tuple(low),
        "edge_padding_high": tuple(high),
        "interior_padding": tuple(inner),
    }
    fill = s.scalar(x.type.dtype, s.rng.choice((0, 0, 2)))
    s.op("pad", [x, fill], TensorType(tuple(shape), x.type.dtype), max(2, s.bound[x]), attrs)


def concatenate(s: Scope) -> None:
    x = s.array()
    if x is None:
        return
    d = s.rng.randrange(x.type.rank)

    def fits(v: Value) -> bool:
        a, b = v.type.shape, x.type.shape
        return (
            v.type.dtype == x.type.dtype and len(a) == len(b) and a[:d] == b[:d] and a[d + 1 :] == b[d + 1 :]
        )

    parts = [x, *(v for v in (s.pick(fits) for _ in range(s.rng.randint(1, 2))) if v is not None)]
    shape = (*x.type.shape[:d], sum(v.type.shape[d] for v in parts), *x.type.shape[d + 1 :])
    if math.prod(shape) <= 900:
        bound = max(s.bound[v] for v in parts)
        s.op("concatenate", parts, TensorType(shape, x.type.dtype), bound, {"dimension": d})


def iota(s: Scope) -> None:
    x = s.array()
    if x is not None and max(x.type.shape) < 100:
        type = TensorType(x.type.shape, s.rng.choice(("i32", "f32")))
        s.op("iota", [], type, max(type.shape), {"iota_dimension": s.rng.randrange(type.rank)})


# ------------------------------------------------------------------------------------------ contractions, reductions
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
    dims, dtype = _dims(s, x.type.rank), x.type.dtype
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
    for d in _dims(s, rank):
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
    window, stride, spread, gap, padding, sizes = [], [], [], [], [], []
    for d in space:
        row = rng.randint(1, 3), rng.choice((1, 1, 2)), rng.choice((1, 1, 1, 2)), rng.choice((1, 1, 1, 2))
        edge = rng.randint(-1, 2), rng.randint(0, 2)
        k, st, ga, sp = row
        out = _window_shape(n[d], k, st, ga, edge, sp)
        if out < 1:
            return
        (
            window.append(k),
            stride.append(st),
            gap.append(ga),
            spread.append(sp),
            padding.append(edge),
            sizes.append(out),
        )
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


# ------------------------------------------------------------------------------------------ orders
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


# ------------------------------------------------------------------------------------------ indices
def _indices(s: Scope, shape: tuple[int, ...]) -> Value:
    known = s.pick(lambda v: v.type.shape == shape and v.type.dtype == "i32")
    return known if known is not None and s.rng.random() < 0.5 else s.data(TensorType(shape, "i32"), -2, 9)


def dynamic_slice(s: Scope) -> None:
    x = s.array()
    if x is not None:
        sizes = tuple(s.rng.randint(min(1, n), n) for n in x.type.shape)
        starts = [_indices(s, ()) for _ in sizes]
        s.op(
            "dynamic_slice", [x, *starts], TensorType(sizes, x.type.dtype), s.bound[x], {"slice_sizes": sizes}
        )


def dynamic_update_slice(s: Scope) -> None:
    x = s.array(*NUMBERS)
    if x is None:
        return
    sizes = tuple(s.rng.randint(min(1, n), n) for n in x.type.shape)
    u = s.pick(lambda v: v.type.shape == sizes and v.type.dtype == x.type.dtype)
    u = u if u is not None else s.data(TensorType(sizes, x.type.dtype))
    starts = [_indices(s, ()) for _ in sizes]
    s.op("dynamic_update_slice", [x, u, *starts], x.type, max(s.bound[x], s.bound[u]))


def _lookup(s: Scope, x: Value) -> tuple[tuple[int, ...], tuple[int, ...], list[int], tuple[int, ...], Value]:
    """(indexed dims, dims that a lookup drops, window sizes, batch shape, indices)."""
    rank = x.type.rank
    indexed = tuple(s.rng.sample(range(rank), s.rng.randint(1, min(2, rank))))
    dropped = tuple(sorted(d for d in indexed if s.rng.random() < 0.7))
    sizes = [
        1 if d in dropped else s.rng.randint(1, n) if d in indexed and n else n
        for d, n in enumerate(x.type.shape)
    ]
    batch = tuple(size(s.rng) for _ in range(s.rng.randint(0, 2)))
    return indexed, dropped, sizes, batch, _indices(s, (*batch, len(indexed)))


def gather(s: Scope) -> None:
    x = s.array()
    if x is None or not x.type.size:
        return
    indexed, dropped, sizes, batch, indices = _lookup(s, x)
    window = [n for d, n in enumerate(sizes) if d not in dropped]
    rank = len(window) + len(batch)
    offsets = tuple(sorted(s.rng.sample(range(rank), len(window))))
    shape, rows, cols = [], iter(batch), iter(window)
    for d in range(rank):
        shape.append(next(cols) if d in offsets else next(rows))
    if math.prod(shape) > 900 or rank > 5:
        return
    attrs: dict[str, object] = {
        "offset_dims": offsets,
        "collapsed_slice_dims": dropped,
        "operand_batching_dims": (),
        "start_indices_batching_dims": (),
        "start_index_map": indexed,
        "index_vector_dim": len(batch),
        "slice_sizes": tuple(sizes),
        "indices_are_sorted": False,
    }
    s.op("gather", [x, indices], TensorType(tuple(shape), x.type.dtype), s.bound[x], attrs)


def scatter(s: Scope) -> None:
    x = s.array("f32", "i32", "f64")
    if x is None or not x.type.size:
        return
    indexed, dropped, sizes, batch, indices = _lookup(s, x)
    window = [n for d, n in enumerate(sizes) if d not in dropped]
    rank = len(window) + len(batch)
    places = tuple(sorted(s.rng.sample(range(rank), len(window))))
    shape, rows, cols = [], iter(batch), iter(window)
    for d in range(rank):
        shape.append(next(cols) if d in places else next(rows))
    if math.prod(shape) > 900 or rank > 5:
        return
    updates = s.data(TensorType(tuple(shape), x.type.dtype))
    name = s.rng.choice(("add", "maximum", "minimum"))
    attrs: dict[str, object] = {
        "update_window_dims": places,
        "inserted_window_dims": dropped,
        "input_batching_dims": (),
        "scatter_indices_batching_dims": (),
        "scatter_dims_to_operand_dims": indexed,
        "index_vector_dim": len(batch),
        "indices_are_sorted": False,
        "unique_indices": False,
    }
    bound = s.bound[x] + 3 * (math.prod(batch) if name == "add" else 1)
    s.op("scatter", [x, indices, updates], x.type, bound, attrs, (reducer(name, x.type.dtype),))


# ------------------------------------------------------------------------------------------ control flow
def _inner(s: Scope, args: list[Value], outer: Sequence[Value]) -> Scope:
    inner = Scope(s.rng, Block(args, [], []), s.depth + 1)
    inner.values = [*outer, *args]
    inner.bound = {**s.bound, **dict.fromkeys(args, 4.0)}
    return inner


def _fill(inner: Scope, count: int) -> None:
    kinds, weights = zip(*[k for k in KINDS if k[0] not in (loop, branch)], strict=True)
    for _ in range(3 * count):
        if len(inner.block.ops) >= count:
            return
        inner.rng.choices(kinds, weights)[0](inner)


def _returned(inner: Scope, like: Value) -> Value:
    """A tamed value of a type, made in the block where there is one."""
    made = [v for v in inner.values if v.type is like.type]
    v = inner.rng.choice(made) if made else like
    return inner.tame(v) if v.type.dtype in NUMBERS else v


def loop(s: Scope) -> None:
    if s.depth:
        return
    carried = [
        v for v in (s.pick() for _ in range(s.rng.randint(1, 2))) if v is not None and v.type.dtype in NUMBERS
    ]
    if not carried:
        return
    count, trips = TensorType((), "i32"), s.rng.randint(1, 4)
    start = s.scalar("i32", 0)
    tamed = [s.tame(v) for v in carried]
    types = [count, *(v.type for v in tamed)]
    checked = [Value(t) for t in types]
    flag = Value(TensorType((), "i1"))
    condition = Scope(s.rng, Block(checked, [], [flag]), 1)
    limit = condition.scalar("i32", trips)
    attrs = {"comparison_direction": "LT", "compare_type": "SIGNED"}
    condition.block.ops.append(Op("compare", [checked[0], limit], [flag], attrs))
    args = [Value(t) for t in types]
    inner = _inner(s, args, s.values[-6:])
    _fill(inner, s.rng.randint(2, 8))
    one = inner.scalar("i32", 1)
    following = Value(count)
    inner.block.ops.append(Op("add", [args[0], one], [following], {}))
    inner.block.returns = [following, *(_returned(inner, v) for v in args[1:])]
    bounds = [float(trips), *(4.0 for _ in tamed)]
    s.multi("while", [start, *tamed], types, bounds, {}, (condition.block, inner.block))


def branch(s: Scope) -> None:
    x = s.array("f32", "i32")
    if s.depth or x is None:
        return
    index = _indices(s, ())
    regions: list[Block] = []
    for _ in range(s.rng.randint(1, 3)):
        inner = _inner(s, [], [*s.values[-6:], x])
        _fill(inner, s.rng.randint(1, 6))
        inner.block.returns = [_returned(inner, x)]
        regions.append(inner.block)
    s.op("case", [index], x.type, 4.0, {}, tuple(regions))


KINDS: list[tuple[Kind, float]] = [
    (unary, 2),
    (binary, 8),
    (compare, 1),
    (select, 2),
    (convert, 1),
    (broadcast, 3),
    (transpose, 3),
    (reshape, 4),
    (reverse, 2),
    (slice_, 4),
    (pad, 3),
    (concatenate, 3),
    (iota, 1),
    (dot_general, 5),
    (reduce, 4),
    (argmax, 1),
    (reduce_window, 3),
    (convolution, 3),
    (sort, 2),
    (top_k, 1),
    (dynamic_slice, 2),
    (dynamic_update_slice, 2),
    (gather, 3),
    (scatter, 3),
    (loop, 1),
    (branch, 1),
]
