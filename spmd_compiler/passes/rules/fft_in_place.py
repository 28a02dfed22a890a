"""A transform along a sharded dim that stays sharded, in the way that `fft_plan` finds best."""

from __future__ import annotations

import math

from ...ir.graph import Op, Value
from ...ir.layout import Axes, local_type
from ...ir.types import Type, numpy_dtype
from ..emit.builder import Builder
from .base import Exchange
from .fft_local import along_last, kind_along
from .fft_plan import Lines, best_way
from .fft_steps import four_steps


def goes_first(op: Op, dim: int) -> bool:
    """Whether `dim` is transformed before the other dims: real numbers become complex along the last one, and real again."""
    return (dim == op.operands[0].type.rank - 1) == (op.attrs["fft_type"] == "RFFT")


def place_price(op: Op, dim: int) -> Exchange:
    """What transforming `dim` in place sends."""

    def price(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        way = best_way(_lines(op, dim, n, ins[0], outs[0]))
        return way.sent, way.messages

    return price


def transform_in_place(b: Builder, op: Op, value: Value, dim: int, axes: Axes) -> Value:
    """The transform along `dim`, sharded over `axes` in operand and result."""
    source, result = op.operands[0], op.results[0]
    assert source.layout is not None and result.layout is not None
    n = b.mesh.axes_size(axes)
    types = [local_type(v.type, v.layout, b.mesh) for v in (source, result) if v.layout is not None]
    lines = _lines(op, dim, n, *types)
    way = best_way(lines)
    order = [*(d for d in range(source.type.rank) if d != dim), dim]
    x = b.transpose(value, order)
    others = x.type.shape[:-1]
    x = b.reshape(x, (lines.batch, lines.source[0]))
    if way.name == "steps":
        x = four_steps(b, x, lines, way, axes)
    elif way.name == "batch":
        x = _split_batch(b, x, lines, axes)
    else:
        x = _gathered(b, x, lines, axes)
    x = b.reshape(x, (*others, lines.result[0]))
    return b.transpose(x, [order.index(d) for d in range(len(order))])


def _lines(op: Op, dim: int, shards: int, source: Type, result: Type) -> Lines:
    """source, result: local types of the whole op's operand and result."""
    kind = kind_along(op, dim == source.rank - 1)
    others = (source if goes_first(op, dim) else result).shape
    complex_bytes = max(numpy_dtype(t.dtype).itemsize for t in (source, result))
    read = complex_bytes // 2 if kind == "RFFT" else complex_bytes
    written = complex_bytes // 2 if kind == "IRFFT" else complex_bytes
    return Lines(
        kind,
        op.attrs["fft_length"][dim - source.rank],
        shards,
        math.prod(n for d, n in enumerate(others) if d != dim),
        (source.shape[dim], read),
        (result.shape[dim], written),
    )


def _gathered(b: Builder, x: Value, lines: Lines, axes: Axes) -> Value:
    size, block = lines.positions, lines.result[0]
    whole = b.slice(b.all_gather(x, axes, 1), 1, 0, size[0])
    out = along_last(b, whole, lines.kind, (lines.size,))
    return b.dynamic_slice(b.pad(out, 1, 0, block * lines.shards - size[1]), 1, b.offset(axes, block), block)


def _split_batch(b: Builder, x: Value, lines: Lines, axes: Axes) -> Value:
    size, n = lines.positions, lines.shards
    x = b.pad_to_split(x, 0, -(-lines.batch // n), axes)
    x = b.slice(b.all_to_all(x, axes, 0, 1), 1, 0, size[0])
    x = along_last(b, x, lines.kind, (lines.size,))
    x = b.all_to_all(b.pad_to_split(x, 1, lines.result[0], axes), axes, 1, 0)
    return b.slice(x, 0, 0, lines.batch)
