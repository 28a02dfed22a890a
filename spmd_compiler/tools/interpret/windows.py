"""Ops that slide a window: convolutions, reductions, selections."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from ...ir.graph import Op
from ...ir.types import numpy_dtype
from .compute import Array, Region, wide


def convolution(op: Op, x: Array, w: Array) -> Array:
    a, dtype = op.attrs, numpy_dtype(op.results[0].type.dtype)
    n = len(a["input_spatial_dimensions"])
    x = wide(x, dtype).transpose(
        a["input_batch_dimension"], a["input_feature_dimension"], *a["input_spatial_dimensions"]
    )
    w = wide(w, dtype).transpose(
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
    counts = _counts(x.shape[2:], taps, stride, gap)
    out = np.zeros((x.shape[0] // batches, w.shape[0], *counts), x.dtype)
    rows, features, made = x.shape[0] // batches, x.shape[1] // groups, w.shape[0] // (groups * batches)
    for tap in np.ndindex(*taps) if all(counts) else ():
        seen = x[(slice(None), slice(None), *_at(tap, counts, stride, gap))]
        kernel = w[(slice(None), slice(None), *tap)]
        for b, g in itertools.product(range(batches), range(groups)):
            source = seen[b * rows : (b + 1) * rows, g * features : (g + 1) * features]
            own = slice((b + g) * made, (b + g + 1) * made)  # only one of the two counts is above 1
            with np.errstate(all="ignore"):
                out[:, own] += np.einsum("bi...,oi->bo...", source, kernel[own])
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


def _counts(
    sizes: Sequence[int], window: Sequence[int], stride: Sequence[int], gap: Sequence[int]
) -> list[int]:
    """How many windows fit, per dim."""
    rows = zip(sizes, window, stride, gap, strict=True)
    return [max(0, (n - (k - 1) * g - 1) // s + 1) if k else 0 for n, k, s, g in rows]


def _at(tap: Sequence[int], counts: Sequence[int], stride: Sequence[int], gap: Sequence[int]) -> list[slice]:
    """What all windows have at one of their positions."""
    rows = zip(tap, counts, stride, gap, strict=True)
    return [slice(t * g, t * g + max(0, (c - 1) * s + 1), s) for t, c, s, g in rows]


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
    counts = _counts(framed[0].shape, window, stride, gap)
    have = [np.broadcast_to(i, counts) for i in inits]
    if not all(counts):
        return have
    for tap in np.ndindex(*window):
        at = tuple(_at(tap, counts, stride, gap))
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
        at = tuple(_at(tap, counts, stride, (1,) * rank))
        seen, here = framed[at], inside[at]
        better = here & ((where < 0) | ~choose([best, seen])[0])
        best, where = np.where(better, seen, best), np.where(better, k, where)
    out = np.full(framed.shape, init, x.dtype)
    for k, tap in enumerate(np.ndindex(*window)):
        at = tuple(_at(tap, counts, stride, (1,) * rank))
        out[at] = np.where(where == k, combine([out[at], source])[0], out[at])
    crop = [slice(max(lo, 0), max(lo, 0) + n) for n, (lo, _) in zip(x.shape, padding, strict=True)]
    return [out[tuple(crop)]]
