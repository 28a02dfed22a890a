"""Kinds of ops that combine whole dims: contractions, reductions, orders, random bits."""

from __future__ import annotations

import math

import numpy as np

from ...ir.graph import Block, Op, Value
from ...ir.types import TensorType
from .scope import (
    COMPLEX,
    FLOATS,
    INTS,
    NUMBERS,
    Scope,
    comparison,
    neutral,
    reducer,
    size,
    some_dims,
    tensor,
)

_MULTIPLIED = ("f32", "f64", "i32", "c64", "u8", "i64")
_ORDERED = ("f32", "f64", *INTS)


def dot_general(s: Scope) -> None:
    x = s.array(*_MULTIPLIED)
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
    x = s.array(*NUMBERS, "i1", *COMPLEX)
    if x is None:
        return
    dims, dtype = some_dims(s, x.type.rank), x.type.dtype
    names = ["and", "or"] if dtype == "i1" else ["add"]
    names += ["add", "maximum", "minimum"] if dtype in NUMBERS else []
    names += ["multiply", "xor", "and", "or"] if dtype in INTS else []
    names += ["multiply"] if dtype in ("f32", "f64") and not s.exact else []
    name = s.rng.choice(names)
    count = math.prod(x.type.shape[d] for d in dims)
    if dtype in ("bf16", "f16") and name == "add" and s.bound[x] * count > 200:
        return
    if name == "multiply" and dtype in FLOATS:
        if count > 24:
            return
        x = s.small(x)
    shape = tuple(n for d, n in enumerate(x.type.shape) if d not in dims)
    init = neutral(s, name, dtype)
    empty = 1 if dtype == "i1" else np.inf if count == 0 and name in ("maximum", "minimum") else 2
    bound = s.bound[x] * max(count, 1) + 2 if name == "add" else max(s.bound[x], empty)
    if name == "multiply":
        bound = np.inf if dtype in INTS else 2 * s.bound[x] ** count
    if bound == np.inf and dtype not in INTS:
        return
    s.op("reduce", [x, init], TensorType(shape, dtype), bound, {"dimensions": dims}, (reducer(name, dtype),))


def argmax(s: Scope) -> None:
    x = s.array(*_ORDERED)
    if x is None:
        return
    x = s.finite(x)
    d, dtype = s.rng.randrange(x.type.rank), x.type.dtype
    index = s.op("iota", [], TensorType(x.type.shape, "i32"), max(x.type.shape), {"iota_dimension": d})
    start = neutral(s, "maximum", dtype)
    value, position = TensorType((), dtype), TensorType((), "i32")
    a, i, b, j = Value(value), Value(position), Value(value), Value(position)
    (is_more, more), (is_same, same) = comparison("GT", a, b), comparison("EQ", a, b)
    is_less, less = comparison("LT", i, j)
    tie, take = Value(more.type), Value(more.type)
    best, where = Value(value), Value(position)
    ops = [
        is_more,
        is_same,
        is_less,
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


def sort(s: Scope) -> None:
    """By one operand or by two, with up to two more that go along."""
    x = s.array(*_ORDERED, "bf16")
    if x is None:
        return
    shape, rng, xs = x.type.shape, s.rng, [x]
    while rng.random() < 0.5 and len(xs) < 4:
        y = s.pick(lambda v: v.type.shape == shape and v.type.dtype not in COMPLEX)
        xs.append(y if y is not None else x)
    xs[:2] = [s.finite(v) for v in xs[:2]]  # the keys
    args = [Value(TensorType((), v.type.dtype)) for v in xs for _ in range(2)]
    direction = rng.choice(("LT", "GT"))
    before, flag = comparison(direction, args[0], args[1])
    ops = [before]
    if x.type.dtype in FLOATS and rng.random() < 0.3:
        before.attrs["compare_type"] = "TOTALORDER"
    if len(xs) > 1 and xs[1].type.dtype in _ORDERED and rng.random() < 0.5:
        (same, equal), (second, then) = comparison("EQ", args[0], args[1]), comparison("LT", args[2], args[3])
        both, flag = Value(equal.type), Value(equal.type)
        ops += [
            same,
            second,
            Op("and", [equal, then], [both], {}),
            Op("or", [before.result, both], [flag], {}),
        ]
    types = [v.type for v in xs]
    attrs: dict[str, object] = {"dimension": rng.randrange(x.type.rank), "is_stable": True}
    s.multi("sort", xs, types, [s.bound[v] for v in xs], attrs, (Block(args, ops, [flag]),))


def top_k(s: Scope) -> None:
    x = s.array("f32", "i32", "bf16", "u8")
    if x is not None and x.type.shape[-1]:
        k = s.rng.randint(1, x.type.shape[-1])
        shape = (*x.type.shape[:-1], k)
        types = [TensorType(shape, x.type.dtype), TensorType(shape, "i32")]
        s.multi("chlo.top_k", [x], types, [s.bound[x], float(x.type.shape[-1])], {"k": k})


def random_bits(s: Scope) -> None:
    state = s.constant(
        np.random.RandomState(s.rng.randrange(2**31)).randint(0, 2**31, 2), TensorType((2,), "u64")
    )
    type = tensor(s.rng, s.rng.choice(("u32", "u32", "u64")))
    attrs: dict[str, object] = {"rng_algorithm": "THREE_FRY"}
    s.multi("rng_bit_generator", [state], [state.type, type], [np.inf, np.inf], attrs)
