"""The transform of some dims on one device."""

from __future__ import annotations

from ...ir.graph import Op, Value
from ...ir.types import TensorType
from ..emit.builder import Builder


def transform(b: Builder, op: Op, value: Value, dims: list[int]) -> Value:
    """The op's transform of some of its dims. `value` holds the complex or real numbers that they start from."""
    rank = value.type.rank
    lengths = dict(zip(range(rank - len(op.attrs["fft_length"]), rank), op.attrs["fft_length"], strict=True))
    order = [d for d in range(rank) if d not in dims] + dims
    value = b.transpose(value, order)
    kind = kind_along(op, rank - 1 in dims)
    value = along_last(b, value, kind, tuple(lengths[d] for d in dims))
    return b.transpose(value, [order.index(d) for d in range(rank)])


def kind_along(op: Op, last: bool) -> str:
    """The transform of some dims: of those to or from real numbers only that along the last dim is one."""
    kind: str = op.attrs["fft_type"]
    return kind if last else {"RFFT": "FFT", "IRFFT": "IFFT"}.get(kind, kind)


def along_last(b: Builder, value: Value, kind: str, lengths: tuple[int, ...]) -> Value:
    """The transform of the last dims, as many as there are `lengths`."""
    size, dtype = list(value.type.shape), value.type.dtype
    if kind == "RFFT":
        size[-1], dtype = lengths[-1] // 2 + 1, {"f32": "c64", "f64": "c128"}[dtype]
    elif kind == "IRFFT":
        size[-1], dtype = lengths[-1], {"c64": "f32", "c128": "f64"}[dtype]
    attrs = {"fft_type": kind, "fft_length": lengths}
    return b.op("fft", [value], TensorType(tuple(size), dtype), attrs)
