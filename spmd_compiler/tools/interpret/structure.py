"""Ops that move values: shapes, slices, gathers, scatters."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...ir.graph import Op
from ...ir.types import numpy_dtype

Array = np.ndarray
Region = Callable[[Sequence[Array]], list[Array]]


def broadcast_in_dim(op: Op, x: Array) -> Array:
    shape, dims = op.results[0].type.shape, op.attrs["broadcast_dimensions"]
    spread = [1] * len(shape)
    for size, d in zip(x.shape, dims, strict=True):
        spread[d] = size
    order = np.argsort(dims) if dims else ()
    return np.broadcast_to(x.transpose(order).reshape(spread), shape)


def iota(op: Op) -> Array:
    type, d = op.results[0].type, op.attrs["iota_dimension"]
    line = np.arange(type.shape[d]).reshape([-1 if i == d else 1 for i in range(type.rank)])
    return np.broadcast_to(line, type.shape).astype(numpy_dtype(type.dtype))


def slice_(op: Op, x: Array) -> Array:
    rows = zip(op.attrs["start_indices"], op.attrs["limit_indices"], op.attrs["strides"], strict=True)
    return x[tuple(slice(*row) for row in rows)]


def pad(op: Op, x: Array, fill: Array) -> Array:
    a = op.attrs
    rows = list(zip(a["edge_padding_low"], a["edge_padding_high"], a["interior_padding"], strict=True))
    spaced = [n + max(n - 1, 0) * i for n, (_, _, i) in zip(x.shape, rows, strict=True)]
    out = np.full([n + max(lo, 0) + max(hi, 0) for n, (lo, hi, _) in zip(spaced, rows, strict=True)], fill)
    at = [slice(max(lo, 0), max(lo, 0) + n, i + 1) for n, (lo, _, i) in zip(spaced, rows, strict=True)]
    out[tuple(at)] = x
    crop = [slice(max(-lo, 0), n - max(-hi, 0)) for n, (lo, hi, _) in zip(out.shape, rows, strict=True)]
    return out[tuple(crop)]


def _window(shape: Sequence[int], sizes: Sequence[int], starts: Sequence[Array]) -> tuple[slice, ...]:
    at = [min(max(int(s), 0), n - k) for n, k, s in zip(shape, sizes, starts, strict=True)]
    return tuple(slice(s, s + k) for s, k in zip(at, sizes, strict=True))


def dynamic_slice(op: Op, x: Array, *starts: Array) -> Array:
    return x[_window(x.shape, op.attrs["slice_sizes"], starts)]


def dynamic_update_slice(op: Op, x: Array, update: Array, *starts: Array) -> Array:
    out = x.copy()
    out[_window(x.shape, update.shape, starts)] = update
    return out


def dynamic_roll(op: Op, x: Array, start: Array) -> Array:
    d = op.attrs["dimension"]
    return np.roll(x, -min(max(int(start), 0), x.shape[d]), d)


def splice(op: Op, *xs: Array) -> Array:
    d = op.attrs["dimension"]
    rows = zip(xs, op.attrs["starts"], op.attrs["limits"], strict=True)
    return np.concatenate([x[(slice(None),) * d + (slice(a, b),)] for x, a, b in rows], axis=d)


def _index_columns(indices: Array, vector_dim: int, count: int) -> list[Array]:
    """Per index component an array over the batch dims of the indices."""
    if vector_dim == indices.ndim:
        return [indices]
    return [np.take(indices, k, axis=vector_dim) for k in range(count)]


def gather(op: Op, x: Array, indices: Array) -> Array:
    a, shape = op.attrs, op.results[0].type.shape
    offset_dims, collapsed = a.get("offset_dims", ()), a.get("collapsed_slice_dims", ())
    batching, of_indices = a.get("operand_batching_dims", ()), a.get("start_indices_batching_dims", ())
    index_map, sizes = a.get("start_index_map", ()), a["slice_sizes"]
    vector = a["index_vector_dim"]
    grid = np.indices(shape) if shape else np.zeros((0,), int)
    batch = [grid[d] for d in range(len(shape)) if d not in offset_dims]
    offsets = iter([grid[d] for d in offset_dims])
    at: list[Array] = []
    for d in range(x.ndim):
        gone = d in collapsed or d in batching
        at.append(np.zeros(shape, int) if gone else next(offsets))
    for column, d in zip(_index_columns(indices, vector, len(index_map)), index_map, strict=True):
        start = np.clip(column, 0, x.shape[d] - sizes[d]).astype(np.int64)
        at[d] = at[d] + (start[tuple(batch)] if start.ndim else start)
    batch_dims = [d for d in range(indices.ndim) if d != vector]
    for d, i in zip(batching, of_indices, strict=True):
        at[d] = batch[batch_dims.index(i)]
    return x[tuple(at)]


def scatter(op: Op, args: list[Array], combine: Region) -> list[Array]:
    """As XLA does it: a window that does not fit as a whole is dropped."""
    n = len(op.results)
    outs, indices, updates = [x.copy() for x in args[:n]], args[n], args[n + 1 :]
    a = op.attrs
    window_dims, inserted = a.get("update_window_dims", ()), a.get("inserted_window_dims", ())
    batching, of_indices = a.get("input_batching_dims", ()), a.get("scatter_indices_batching_dims", ())
    index_map, vector = a.get("scatter_dims_to_operand_dims", ()), a["index_vector_dim"]
    columns = _index_columns(indices, vector, len(index_map))
    shape, rank = outs[0].shape, outs[0].ndim
    batch_dims = [d for d in range(updates[0].ndim) if d not in window_dims]
    index_dims = [d for d in range(indices.ndim) if d != vector]
    windows = iter([updates[0].shape[d] for d in window_dims])
    sizes = [1 if d in inserted or d in batching else next(windows) for d in range(rank)]
    for at in np.ndindex(*[updates[0].shape[d] for d in batch_dims]):
        start = [0] * rank
        for column, d in zip(columns, index_map, strict=True):
            start[d] += int(column[at])
        for d, i in zip(batching, of_indices, strict=True):
            start[d] = at[index_dims.index(i)]
        if any(s < 0 or s + k > m for s, k, m in zip(start, sizes, shape, strict=True)):
            continue
        where = tuple(slice(s, s + k) for s, k in zip(start, sizes, strict=True))
        chosen = dict(zip(batch_dims, at, strict=True))
        pick = tuple(chosen.get(d, slice(None)) for d in range(updates[0].ndim))
        new = [u[pick].reshape(sizes) for u in updates]
        for out, result in zip(outs, combine([*(out[where] for out in outs), *new]), strict=True):
            out[where] = result
    return outs
