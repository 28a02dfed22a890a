"""Kinds of ops that move values: shapes, slices, pads, concatenations."""

from __future__ import annotations

import math

from ...ir.graph import Value
from ...ir.types import TensorType
from .scope import NUMBERS, Scope, indices_of, size, some_dims


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
        s.op("reverse", [x], x.type, s.bound[x], {"dimensions": some_dims(s, x.type.rank)})


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
        low.append(a)
        high.append(b)
        inner.append(gap)
        shape.append(spaced + a + b)
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


def roll(s: Scope) -> None:
    """As `jnp.roll` has it: by a known number, the ends of a value change places; by data, a part of it twice is taken."""
    x = s.array()
    if x is None or x.type.size > 450:
        return
    d, shape = s.rng.randrange(x.type.rank), x.type.shape
    n, along = shape[d], {"dimension": d}
    if s.rng.random() < 0.5:
        whole = (*shape[:d], 2 * n, *shape[d + 1 :])
        twice = s.op("concatenate", [x, x], TensorType(whole, x.type.dtype), s.bound[x], {**along})
        zero = s.scalar("i32", 0)
        starts = [indices_of(s, ()) if k == d else zero for k in range(x.type.rank)]
        s.op("dynamic_slice", [twice, *starts], x.type, s.bound[x], {"slice_sizes": shape})
        return
    k = s.rng.randint(0, n)
    ends: list[Value] = []
    for low, high in ((k, n), (0, k)):
        attrs: dict[str, object] = {
            "start_indices": tuple(low if i == d else 0 for i in range(x.type.rank)),
            "limit_indices": tuple(high if i == d else m for i, m in enumerate(shape)),
            "strides": (1,) * x.type.rank,
        }
        part = TensorType((*shape[:d], high - low, *shape[d + 1 :]), x.type.dtype)
        ends.append(s.op("slice", [x], part, s.bound[x], attrs))
    s.op("concatenate", ends, x.type, s.bound[x], {**along})


def iota(s: Scope) -> None:
    x = s.array()
    if x is not None and max(x.type.shape) < 100:
        type = TensorType(x.type.shape, s.rng.choice(("i32", "f32", "i64", "u32", "f64", "c64")))
        s.op("iota", [], type, max(type.shape), {"iota_dimension": s.rng.randrange(type.rank)})
