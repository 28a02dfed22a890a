"""Ops that combine many values: contractions, reductions, orders."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from ...ir.graph import Op
from ...ir.optable import reducer_kind
from ...ir.types import numpy_dtype
from .elementwise import total_order

Array = np.ndarray
Region = Callable[[Sequence[Array]], list[Array]]
_FAST = {"sum": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def wide(x: Array, dtype: np.dtype) -> Array:
    """What products are summed in: f32 for small floats, the result's type for integers."""
    if dtype.kind in "iub":
        return x.astype(dtype)
    return x.astype(np.float32) if x.dtype.itemsize < 4 else x


def dot_general(op: Op, x: Array, y: Array) -> Array:
    dtype = numpy_dtype(op.results[0].type.dtype)
    (cx, cy), (bx, by) = op.attrs["contract"], op.attrs["batch"]
    letters = iter(range(100))
    of_x, of_y = [-1] * x.ndim, [-1] * y.ndim
    for i, j in (*zip(bx, by, strict=True), *zip(cx, cy, strict=True)):
        of_x[i] = of_y[j] = next(letters)
    of_x = [next(letters) if n < 0 else n for n in of_x]
    of_y = [next(letters) if n < 0 else n for n in of_y]
    out = [of_x[i] for i in bx]
    out += [n for i, n in enumerate(of_x) if i not in (*bx, *cx)]
    out += [n for i, n in enumerate(of_y) if i not in (*by, *cy)]
    if dtype == np.bool_:
        return np.einsum(x.astype(int), of_x, y.astype(int), of_y, out) > 0
    with np.errstate(all="ignore"):
        return np.einsum(wide(x, dtype), of_x, wide(y, dtype), of_y, out).astype(dtype)


def ragged_dot(op: Op, x: Array, y: Array, sizes: Array) -> Array:
    """A product for each group: of its rows of x, or where y has such rows too, of these with its rows of y."""
    attrs = op.attrs
    (ragged,), groups = attrs["lhs_ragged_dimensions"], attrs["rhs_group_dimensions"]
    contract = attrs["lhs_contracting_dimensions"], attrs["rhs_contracting_dimensions"]
    batch = attrs["lhs_batching_dimensions"], attrs["rhs_batching_dimensions"]
    if groups:  # y without that dim
        contract, batch = ((mine, tuple(d - (d > groups[0]) for d in its)) for mine, its in (contract, batch))
    product = Op("dot_general", [], op.results, {"contract": contract, "batch": batch})
    free = [d for d in range(x.ndim) if d not in contract[0] and d not in batch[0]]
    of_result = len(batch[0]) + free.index(ragged) if groups else 0
    result, row = np.zeros(op.results[0].type.shape, x.dtype), np.arange(x.shape[ragged])
    for g, end in enumerate(np.cumsum(sizes)):
        rows = row[(end - sizes[g] <= row) & (row < end)]
        if groups:
            part = dot_general(product, x.take(rows, ragged), y.take(g, groups[0]))
            np.moveaxis(result, of_result, 0)[rows] = np.moveaxis(part, of_result, 0)
        else:
            its = contract[1][contract[0].index(ragged)]
            result[g] = dot_general(product, x.take(rows, ragged), y.take(rows, its))
    return result


def _reduced(ufunc: np.ufunc, x: Array) -> Array:
    """Over the first dim, in the type of the elements."""
    if ufunc in (np.maximum, np.minimum):
        return ufunc.reduce(x, axis=0)
    if ufunc is np.add and x.dtype.kind in "fc":
        # numpy starts from 0.0, which a sum of -0.0 does not survive
        return ufunc.reduce(x, axis=0, dtype=x.dtype, initial=-np.zeros((), x.dtype)[()])
    return ufunc.reduce(x, axis=0, dtype=x.dtype)


def reduce(op: Op, args: list[Array], combine: Region) -> list[Array]:
    half, dims = len(args) // 2, op.attrs["dimensions"]
    kind = reducer_kind(op.regions[0])
    keep = [d for d in range(args[0].ndim) if d not in dims]
    count = math.prod(args[0].shape[d] for d in dims)
    flat = [x.transpose(*dims, *keep).reshape(count, *(x.shape[d] for d in keep)) for x in args[:half]]
    shape = flat[0].shape[1:]
    have = [np.broadcast_to(i, shape) for i in args[half:]]
    if kind in _FAST and half == 1 and args[0].dtype.kind in "fciu" and args[0].dtype.itemsize >= 4:
        with np.errstate(all="ignore"):
            return [_FAST[kind](have[0], _reduced(_FAST[kind], flat[0])) if len(flat[0]) else have[0]]
    for k in range(len(flat[0])):
        have = combine([*have, *(x[k] for x in flat)])
    return [np.broadcast_to(x, shape) for x in have]


def scan(op: Op, args: list[Array], combine: Region) -> list[Array]:
    half, d = len(args) // 2, op.attrs["dimension"]
    rows, have = [np.moveaxis(x, d, 0) for x in args[:half]], args[half:]
    order = range(len(rows[0]))
    out = [np.empty_like(x) for x in rows]
    for k in reversed(order) if op.attrs.get("is_reverse") else order:
        both = combine([*(x[k] for x in rows), *have])
        have = both[half:]
        for made, row in zip(out, both[:half], strict=True):
            made[k] = row
    return [*(np.moveaxis(x, 0, d) for x in out), *have]


def sort(op: Op, args: list[Array], before: Region) -> list[Array]:
    """Odd-even transposition: neighbours swap where the right one belongs before the left one. Stable."""
    d = op.attrs["dimension"]
    xs = [np.moveaxis(x, d, 0).copy() for x in args]
    n = len(xs[0])
    for turn in range(n):
        left, right = slice(turn % 2, n - 1, 2), slice(turn % 2 + 1, n, 2)
        pairs = list(itertools.chain.from_iterable((x[right], x[left]) for x in xs))
        if not len(pairs[0]):
            continue
        swap = np.broadcast_to(before(pairs)[0], pairs[0].shape)
        for x in xs:
            a, b = x[left].copy(), x[right].copy()
            x[left], x[right] = np.where(swap, b, a), np.where(swap, a, b)
    return [np.moveaxis(x, 0, d) for x in xs]


def top_k(op: Op, x: Array) -> list[Array]:
    """Floats are in total order: NaN before all others, the negative NaN behind them. Ties: the lower index first."""
    k = op.attrs["k"]
    key = -(total_order(x) if x.dtype.kind in "fV" else x).astype(object)
    order = np.argsort(key, axis=-1, kind="stable")[..., :k]
    return [np.take_along_axis(x, order, -1), order.astype(numpy_dtype(op.results[1].type.dtype))]
