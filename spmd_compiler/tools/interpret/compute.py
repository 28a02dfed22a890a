"""Ops that combine many values: contractions, reductions, windows, orders, transforms."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
import scipy.linalg

from ...ir.graph import Op
from ...ir.optable import reducer_kind
from ...ir.types import numpy_dtype
from .elementwise import total_order

Array = np.ndarray
Region = Callable[[Sequence[Array]], list[Array]]
_FAST = {"sum": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def _wide(x: Array, dtype: np.dtype) -> Array:
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
        return np.einsum(_wide(x, dtype), of_x, _wide(y, dtype), of_y, out).astype(dtype)


def convolution(op: Op, x: Array, w: Array) -> Array:
    a, dtype = op.attrs, numpy_dtype(op.results[0].type.dtype)
    n = len(a["input_spatial_dimensions"])
    x = _wide(x, dtype).transpose(
        a["input_batch_dimension"], a["input_feature_dimension"], *a["input_spatial_dimensions"]
    )
    w = _wide(w, dtype).transpose(
        a["kernel_output_feature_dimension"],
        a["kernel_input_feature_dimension"],
        *a["kernel_spatial_dimensions"],
    )
    stride = a.get("window_strides") or (1,) * n
    padding = a.get("padding") or ((0, 0),) * n
    spread, gap = a.get("lhs_dilation") or (1,) * n, a.get("rhs_dilation") or (1,) * n
    groups, batches = a.get("feature_group_count", 1), a.get("batch_group_count", 1)
    for d, flipped in enumerate(a.get("window_reversal") or ()):
        if flipped:
            w = np.flip(w, 2 + d)
    x = _framed(x, [(0, 0), (0, 0), *padding], [1, 1, *spread], 0)
    taps = w.shape[2:]
    counts = [
        max(0, (x.shape[2 + d] - (taps[d] - 1) * gap[d] - 1) // stride[d] + 1) if taps[d] else 0
        for d in range(n)
    ]
    out = np.zeros(
        (x.shape[0] // batches, w.shape[0], *counts), x.dtype if dtype.kind not in "iub" else dtype
    )
    per = w.shape[0] // (groups * batches)
    for tap in np.ndindex(*taps):
        at = [
            slice(t * g, t * g + (c - 1) * s + 1, s)
            for t, g, c, s in zip(tap, gap, counts, stride, strict=True)
        ]
        if not all(counts):
            break
        seen = x[(slice(None), slice(None), *at)]
        kernel = w[(slice(None), slice(None), *tap)]
        for g in range(groups * batches):
            rows, features = seen, seen
            if batches > 1:
                rows = seen[g * out.shape[0] : (g + 1) * out.shape[0]]
                features = rows
            else:
                features = rows[:, g * w.shape[1] : (g + 1) * w.shape[1]]
            own = slice(g * per, (g + 1) * per)
            with np.errstate(all="ignore"):
                out[:, own] += np.einsum("bi...,oi->bo...", features, kernel[own])
    dims = [a["output_batch_dimension"], a["output_feature_dimension"], *a["output_spatial_dimensions"]]
    return out.transpose(np.argsort(dims)).astype(dtype)


def _framed(x: Array, padding: Sequence[tuple[int, int]], spread: Sequence[int], fill: Array | int) -> Array:
    """Dilated by `spread`, then padded (negative: cropped), with `fill`."""
    sizes = [max(0, (n - 1) * s + 1) for n, s in zip(x.shape, spread, strict=True)]
    out = np.full(
        [n + max(lo, 0) + max(hi, 0) for n, (lo, hi) in zip(sizes, padding, strict=True)], fill, x.dtype
    )
    at = [slice(max(lo, 0), max(lo, 0) + n, s) for n, (lo, _), s in zip(sizes, padding, spread, strict=True)]
    out[tuple(at)] = x
    crop = [slice(max(-lo, 0), n - max(-hi, 0)) for n, (lo, hi) in zip(out.shape, padding, strict=True)]
    return out[tuple(crop)]


def _reduced(ufunc: np.ufunc, x: Array) -> Array:
    """Over the first dim, in the type of the elements."""
    return (
        ufunc.reduce(x, axis=0)
        if ufunc in (np.maximum, np.minimum)
        else ufunc.reduce(x, axis=0, dtype=x.dtype)
    )


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


def _frame_attrs(
    op: Op, rank: int
) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[tuple[int, int]]]:
    a, ones = op.attrs, (1,) * rank
    return (
        a["window_dimensions"],
        a.get("window_strides") or ones,
        a.get("base_dilations") or ones,
        a.get("window_dilations") or ones,
        a.get("padding") or ((0, 0),) * rank,
    )


def reduce_window(op: Op, args: list[Array], combine: Region) -> list[Array]:
    half = len(args) // 2
    window, stride, spread, gap, padding = _frame_attrs(op, args[0].ndim)
    inits = args[half:]
    framed = [_framed(x, padding, spread, i) for x, i in zip(args[:half], inits, strict=True)]
    counts = op.results[0].type.shape
    if not hasattr(counts, "__len__"):
        raise AssertionError
    counts = [
        max(0, (n - (k - 1) * g - 1) // s + 1)
        for n, k, g, s in zip(framed[0].shape, window, gap, stride, strict=True)
    ]
    have = [np.broadcast_to(i, counts) for i in inits]
    if not all(counts):
        return have
    for tap in np.ndindex(*window):
        at = tuple(
            slice(t * g, t * g + (c - 1) * s + 1, s)
            for t, g, c, s in zip(tap, gap, counts, stride, strict=True)
        )
        have = combine([*have, *(x[at] for x in framed)])
    return [np.broadcast_to(x, counts) for x in have]


def select_and_scatter(op: Op, args: list[Array], choose: Region, combine: Region) -> list[Array]:
    x, source, init = args[:3]
    rank = x.ndim
    window = op.attrs.get("window_dimensions") or (1,) * rank
    stride = op.attrs.get("window_strides") or (1,) * rank
    padding = op.attrs.get("padding") or ((0, 0),) * rank
    inside = _framed(np.ones(x.shape, bool), padding, (1,) * rank, 0)
    framed = _framed(x, padding, (1,) * rank, 0)
    counts = source.shape
    best = np.zeros(counts, x.dtype)
    where = np.full(counts, -1)
    for k, tap in enumerate(np.ndindex(*window)):
        at = _strided(tap, counts, stride)
        seen, here = framed[at], inside[at]
        better = here & ((where < 0) | ~choose([best, seen])[0])
        best, where = np.where(better, seen, best), np.where(better, k, where)
    out = np.full(framed.shape, init, x.dtype)
    for k, tap in enumerate(np.ndindex(*window)):
        at = _strided(tap, counts, stride)
        out[at] = np.where(where == k, combine([out[at], source])[0], out[at])
    crop = [slice(max(lo, 0), max(lo, 0) + n) for n, (lo, _) in zip(x.shape, padding, strict=True)]
    return [out[tuple(crop)]]


def _strided(tap: Sequence[int], counts: Sequence[int], stride: Sequence[int]) -> tuple[slice, ...]:
    return tuple(
        slice(t, t + max(0, (c - 1) * s + 1), s) for t, c, s in zip(tap, counts, stride, strict=True)
    )


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


def fft(op: Op, x: Array) -> Array:
    kind, lengths = op.attrs["fft_type"], op.attrs["fft_length"]
    axes = tuple(range(x.ndim - len(lengths), x.ndim))
    run = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn}[kind]
    return run(x, s=lengths, axes=axes).astype(numpy_dtype(op.results[0].type.dtype))


def cholesky(op: Op, x: Array) -> Array:
    out = np.zeros_like(x)
    lower = op.attrs.get("lower", False)
    for at in np.ndindex(*x.shape[:-2]):
        try:
            out[at] = scipy.linalg.cholesky(x[at], lower=lower, check_finite=False)
        except (np.linalg.LinAlgError, ValueError):
            out[at] = np.nan
    return out


def triangular_solve(op: Op, a: Array, b: Array) -> Array:
    out = np.zeros_like(b)
    trans = {"NO_TRANSPOSE": 0, "TRANSPOSE": 1, "ADJOINT": 2}[op.attrs["transpose_a"]]
    for at in np.ndindex(*a.shape[:-2]):
        if not np.diagonal(a[at]).all():
            out[at] = np.nan
            continue
        left = op.attrs["left_side"]
        lower, unit = op.attrs["lower"], op.attrs["unit_diagonal"]
        if left:
            out[at] = scipy.linalg.solve_triangular(a[at], b[at], trans, lower, unit, check_finite=False)
        else:  # x a = b is aᵀ xᵀ = bᵀ
            matrix = a[at] if trans != 2 else a[at].conj()
            flipped = 1 if trans == 0 else 0
            out[at] = scipy.linalg.solve_triangular(
                matrix, b[at].T, flipped, lower, unit, check_finite=False
            ).T
    return out
