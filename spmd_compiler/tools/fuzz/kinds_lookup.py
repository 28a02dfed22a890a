"""Kinds of ops that look values up, or update them, at places that are data: gather, scatter, dynamic slices."""

from __future__ import annotations

import math
from typing import NamedTuple

from ...ir.graph import Block, Value
from ...ir.types import TensorType
from .scope import FLOATS, INTS, NUMBERS, Scope, index_dtype, indices_of, reducer, size


def dynamic_slice(s: Scope) -> None:
    x = s.array()
    if x is not None:
        sizes, dtype = _part(s, x), index_dtype(s)
        starts = [indices_of(s, (), dtype) for _ in sizes]
        attrs: dict[str, object] = {"slice_sizes": sizes}
        s.op("dynamic_slice", [x, *starts], TensorType(sizes, x.type.dtype), s.bound[x], attrs)


def dynamic_update_slice(s: Scope) -> None:
    x = s.array(*NUMBERS)
    if x is None:
        return
    sizes, dtype = _part(s, x), index_dtype(s)
    u = s.pick(lambda v: v.type.shape == sizes and v.type.dtype == x.type.dtype)
    u = u if u is not None else s.data(TensorType(sizes, x.type.dtype))
    starts = [indices_of(s, (), dtype) for _ in sizes]
    s.op("dynamic_update_slice", [x, u, *starts], x.type, max(s.bound[x], s.bound[u]))


def _part(s: Scope, x: Value) -> tuple[int, ...]:
    return tuple(s.rng.randint(min(1, n), n) for n in x.type.shape)


class _Lookup(NamedTuple):
    """Which dims of an operand are looked up, and how the result (of a gather) or the updates (of a scatter) lie."""

    indexed: tuple[int, ...]
    dropped: tuple[int, ...]  # of the indexed dims
    batching: tuple[int, ...]  # dims of the operand that go along with dims of the indices
    of_indices: tuple[int, ...]
    vector: int  # the dim of the indices that holds one index
    sizes: tuple[int, ...]  # of a window, per dim of the operand
    windows: tuple[int, ...]  # dims of the result that are of the window
    shape: tuple[int, ...]
    indices: Value


def _lookup(s: Scope, x: Value, distinct: bool = False) -> _Lookup | None:
    """A random one, None if it became too large. `distinct`: one index, so that no place is met twice."""
    rng, rank = s.rng, x.type.rank
    order = rng.sample(range(rank), rank)
    indexed = tuple(order[: rng.randint(1, min(2, rank))])
    rest = order[len(indexed) :]
    batching = tuple(d for d in rest if x.type.shape[d] and rng.random() < 0.3)[:2]
    dropped = tuple(sorted(d for d in indexed if rng.random() < 0.7))
    sizes = tuple(
        1 if d in dropped or d in batching else rng.randint(1, n) if d in indexed and n else n
        for d, n in enumerate(x.type.shape)
    )
    batch = [1 if distinct else size(rng) for _ in range(rng.randint(0, 2))]
    along: list[int] = []
    for d in batching:
        k = rng.randint(0, len(batch))
        along = [a + (a >= k) for a in along] + [k]
        batch.insert(k, x.type.shape[d])
    vector = rng.choice((len(batch), len(batch), rng.randint(0, len(batch))))
    of_indices = tuple(a + (a >= vector) for a in along)
    if len(indexed) == 1 and rng.random() < 0.3:  # one number needs no dim for it
        vector, of_indices, whole = len(batch), tuple(along), tuple(batch)
    else:
        whole = (*batch[:vector], len(indexed), *batch[vector:])
    window = [n for d, n in enumerate(sizes) if d not in dropped and d not in batching]
    out = len(window) + len(batch)
    windows = tuple(sorted(rng.sample(range(out), len(window))))
    rows, cols = iter(batch), iter(window)
    shape = tuple(next(cols) if d in windows else next(rows) for d in range(out))
    if math.prod(shape) > 900 or out > 5:
        return None
    indices = indices_of(s, whole, index_dtype(s))
    pairs = sorted(zip(batching, of_indices, strict=True))
    return _Lookup(
        indexed,
        dropped,
        tuple(d for d, _ in pairs),
        tuple(d for _, d in pairs),
        vector,
        sizes,
        windows,
        shape,
        indices,
    )


def gather(s: Scope) -> None:
    x = s.array()
    at = _lookup(s, x) if x is not None and x.type.size else None
    if x is None or at is None:
        return
    attrs: dict[str, object] = {
        "offset_dims": at.windows,
        "collapsed_slice_dims": at.dropped,
        "operand_batching_dims": at.batching,
        "start_indices_batching_dims": at.of_indices,
        "start_index_map": at.indexed,
        "index_vector_dim": at.vector,
        "slice_sizes": at.sizes,
        "indices_are_sorted": False,
    }
    s.op("gather", [x, at.indices], TensorType(at.shape, x.type.dtype), s.bound[x], attrs)


def scatter(s: Scope) -> None:
    x = s.array(*FLOATS, *INTS, "c64")
    if x is None or not x.type.size:
        return
    dtype = x.type.dtype
    names = ["add", "add", "set"] + (["maximum", "minimum"] if dtype != "c64" else [])
    names += ["multiply"] if dtype in INTS or not s.exact else []
    name = s.rng.choice(names)
    at = _lookup(s, x, distinct=name == "set")
    if at is None or (dtype in ("bf16", "f16") and name in ("add", "multiply")):
        return
    updates = s.data(TensorType(at.shape, dtype))
    attrs: dict[str, object] = {
        "update_window_dims": at.windows,
        "inserted_window_dims": at.dropped,
        "input_batching_dims": at.batching,
        "scatter_indices_batching_dims": at.of_indices,
        "scatter_dims_to_operand_dims": at.indexed,
        "index_vector_dim": at.vector,
        "indices_are_sorted": False,
        "unique_indices": False,
    }
    bound = s.bound[x] + 3 * (math.prod(at.shape) if name == "add" else 1)
    if name == "multiply" and dtype not in INTS:
        x = s.small(x)
        bound = s.bound[x] * 3.0 ** min(math.prod(at.shape), 40)
    if name == "set":
        a, b = Value(TensorType((), dtype)), Value(TensorType((), dtype))
        region = Block([a, b], [], [b])
    else:
        region = reducer(name, dtype)
    s.op("scatter", [x, at.indices, updates], x.type, bound, attrs, (region,))
