"""Kinds of ops that move values: shapes, slices, lookups, updates."""

from __future__ import annotations

import math

from ...ir.graph import Value
from ...ir.types import TensorType
from .generate import NUMBERS, Scope, indices_of, reducer, size, some_dims


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


def iota(s: Scope) -> None:
    x = s.array()
    if x is not None and max(x.type.shape) < 100:
        type = TensorType(x.type.shape, s.rng.choice(("i32", "f32")))
        s.op("iota", [], type, max(type.shape), {"iota_dimension": s.rng.randrange(type.rank)})


def dynamic_slice(s: Scope) -> None:
    x = s.array()
    if x is not None:
        sizes = tuple(s.rng.randint(min(1, n), n) for n in x.type.shape)
        starts = [indices_of(s, ()) for _ in sizes]
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
    starts = [indices_of(s, ()) for _ in sizes]
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
    return indexed, dropped, sizes, batch, indices_of(s, (*batch, len(indexed)))


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
