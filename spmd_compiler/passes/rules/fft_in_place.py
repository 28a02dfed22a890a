"""A complex fft along a sharded dim that stays sharded: Bailey's four steps (1990), with three all-to-alls of the block.

A dim of N = n M, of which device j1 has the positions j1 M + j2, is transformed over j1, multiplied by the N-th roots of unity
to the power j2 k1, and transformed over j2: that gives position k1 + n k2. All-to-alls make j1 whole, then j2, then bring
the results to their devices. For that n must divide M; else the dim is gathered.
"""

from __future__ import annotations

import math

import numpy as np

from ...ir.graph import Op, Value
from ...ir.layout import Axes, local_block
from ...ir.types import TensorType, Type
from ..builder import INDEX, Builder
from .base import Exchange
from .fft_local import transform, transpose


def place_price(size: int) -> Exchange:
    """What transforming a dim of `size` in place sends."""

    def price(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        if size % (n * n):
            return (n - 1) * ins[0].nbytes, 1
        return 3 * (n - 1) / n * ins[0].nbytes, 3

    return price


def transform_in_place(b: Builder, op: Op, value: Value, dim: int, axes: Axes) -> Value:
    """The transform along `dim`, sharded over `axes` in operand and result."""
    source, target = op.operands[0].layout, op.results[0].layout
    assert source is not None and target is not None
    size, n = op.operands[0].type.shape[dim], b.mesh.axes_size(axes)
    blocks = {local_block(x, dim, size, b.mesh) for x in (source, target)}
    if blocks == {size // n} and size % (n * n) == 0:
        return _four_steps(b, op, value, dim, axes)
    whole = b.slice(b.all_gather(value, axes, dim), dim, 0, size)
    out = transform(b, op, whole, [dim])
    block = local_block(target, dim, size, b.mesh)
    return b.dynamic_slice(b.pad(out, dim, 0, block * n - size), dim, b.offset(axes, block), block)


def _four_steps(b: Builder, op: Op, value: Value, dim: int, axes: Axes) -> Value:
    shape = value.type.shape
    n, block = b.mesh.axes_size(axes), shape[dim]
    rows = (*shape[:dim], n, block // n, *shape[dim + 1 :])
    x = b.reshape(b.all_to_all(value, axes, dim, dim), rows)
    x = _along(b, op, x, dim)
    x = b.binary("multiply", x, _roots(b, op, x.type.shape, dim, axes))
    x = b.all_to_all(b.reshape(x, shape), axes, dim, dim)
    x = _along(b, op, x, dim)
    x = b.reshape(b.all_to_all(x, axes, dim, dim), rows)
    swapped = [*range(dim), dim + 1, dim, *range(dim + 2, len(rows))]
    return b.reshape(transpose(b, x, swapped), shape)


def _along(b: Builder, op: Op, x: Value, dim: int) -> Value:
    """The transform of one dim, of any length."""
    one = Op(op.name, [x], [x], {**op.attrs, "fft_length": x.type.shape[dim:]})
    return transform(b, one, x, [dim])


def _roots(b: Builder, op: Op, shape: tuple[int, ...], dim: int, axes: Axes) -> Value:
    """Roots of unity to the power j2 k1, where k1 is along `dim` and j2 along the next, this device's part of them."""
    n, part = shape[dim], shape[dim + 1]
    rows = TensorType((n, part), INDEX)
    first = b.broadcast(b.offset(axes, part), rows.shape)
    power = b.binary("multiply", b.iota(rows, 0), b.binary("add", b.iota(rows, 1), first))
    dtype = op.results[0].type.dtype
    real = TensorType(rows.shape, "f32" if dtype == "c64" else "f64")
    sign = -1 if op.attrs["fft_type"] == "FFT" else 1
    unit = b.constant(np.float64(sign * 2 * math.pi / (n * n * part)), real)
    angle = b.binary("multiply", b.op("convert", [power], real), unit)
    parts = [b.op("cosine", [angle], real), b.op("sine", [angle], real)]
    return b.broadcast(b.op("complex", parts, TensorType(rows.shape, dtype)), shape, (dim, dim + 1))
