"""The transform of some dims on one device."""

from __future__ import annotations

import math

from ...ir.graph import Op, Value
from ...ir.types import TensorType
from ..builder import Builder


def transform(b: Builder, op: Op, value: Value, dims: list[int]) -> Value:
    """The op's transform of some of its dims. `value` holds the complex or real numbers that they start from."""
    rank = value.type.rank
    lengths = dict(zip(range(rank - len(op.attrs["fft_length"]), rank), op.attrs["fft_length"], strict=True))
    kind = op.attrs["fft_type"]
    if rank - 1 not in dims:
        kind = {"RFFT": "FFT", "IRFFT": "IFFT"}.get(kind, kind)
    order = [d for d in range(rank) if d not in dims] + dims
    value = _row_major(b, transpose(b, value, order))
    size = list(value.type.shape)
    dtype = op.results[0].type.dtype
    if kind == "RFFT":
        size[-1] = lengths[rank - 1] // 2 + 1
    elif kind == "IRFFT":
        size[-1] = lengths[rank - 1]
    else:
        dtype = value.type.dtype
    attrs = {"fft_type": kind, "fft_length": tuple(lengths[d] for d in dims)}
    value = b.op("fft", [value], TensorType(tuple(size), dtype), attrs)
    return transpose(b, _row_major(b, value), [order.index(d) for d in range(rank)])


def transpose(b: Builder, x: Value, order: list[int]) -> Value:
    if order == sorted(order):
        return x
    shape = tuple(x.type.shape[d] for d in order)
    return b.op("transpose", [x], TensorType(shape, x.type.dtype), {"permutation": tuple(order)})


def _row_major(b: Builder, x: Value) -> Value:
    """XLA's CPU kernel refuses arrays that are not laid out row-major, which those next to a collective need not be; flat
    ones are."""
    flat = b.reshape(x, (math.prod(x.type.shape),))
    kept = b.op("optimization_barrier", [flat], flat.type)
    return b.reshape(kept, x.type.shape)
