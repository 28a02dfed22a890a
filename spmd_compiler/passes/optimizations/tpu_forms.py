"""Collectives in the forms that XLA's TPU compiler keeps. In others it makes all-reduces of them, which send twice
as much or more. Found by compiling for v4, v5e and v6e with libtpu 0.0.42, and for v5e with 0.0.52:

* A reduce-scatter stays one if its numbers are f32 or bf16 and each device's part is an even number of tiles of 8 x 128. How
  the compiler lays the dims of an array out is not ours to say, but one of shape [devices, 16 k, many] it tiles by
  its last two dims, so that every part has an even number. There is no reduce-scatter of complex numbers at all.
* An all-gather of vectors stays one if their length is a multiple of 128; of matrices it always does.

Groups of all devices of two or three dims that are longer than two keep no reduce-scatter in any form.
"""

from __future__ import annotations

import math
from typing import cast

from ...ir.graph import Block, Op, Value
from ...ir.mesh import Mesh
from ...ir.types import TensorType, is_complex
from ..emit.builder import Builder
from ..emit.reduce_by_exchange import reduce_by_exchange, rewrite_collectives

ROWS, LANES = 16, 128  # two tiles, one above the other: 16 x 128 numbers
SUMMED = ("f32", "bf16")


def rewrite_for_tpu(block: Block, mesh: Mesh) -> None:
    """Changes a block that no one else holds, and the blocks inside; the bytes sent stay the same."""
    rewrite_collectives(block, mesh, _emit)


def _emit(b: Builder, op: Op, value: Value) -> Value | None:
    dtype = cast(TensorType, value.type).dtype
    if 0 in value.type.shape:
        return None
    if op.name == "reduce_scatter":
        matrix = part_as_matrix(op.results[0].type.shape) if dtype in SUMMED else None
        return reduce_by_exchange(b, op, value) if matrix is None else _reduce_scatter(b, op, value, matrix)
    if op.name == "all_reduce" and is_complex(dtype) and op.attrs["kind"] != "sum":
        return reduce_by_exchange(b, op, value)
    if op.name == "all_gather" and math.prod(value.type.shape) == max(value.type.shape, default=0):
        return _gather_vector(b, op, value)
    return None


def part_as_matrix(part: tuple[int, ...]) -> tuple[int, int] | None:
    """(rows, columns) that a device's part of a reduce-scatter is written as: the trailing dims where they make columns,
    so that XLA need not move data; a little more than the part where 16 rows don't divide it. None if it is too small."""
    size, columns = math.prod(part), 1
    for extent in reversed(part):
        columns *= extent
        if columns % LANES == 0 and size // columns % ROWS == 0:
            return size // columns, columns
    whole = size % ROWS == 0 and size >= ROWS * ROWS
    return (ROWS, -(-size // ROWS)) if whole or size >= ROWS * LANES else None


def _reduce_scatter(b: Builder, op: Op, value: Value, matrix: tuple[int, int]) -> Value:
    axes, dim = op.attrs["axes"], op.attrs["dim"]
    shape, n = value.type.shape, b.mesh.axes_size(axes)
    order = [dim, *(d for d in range(len(shape)) if d != dim)]
    moved = b.transpose(value, order)
    size, padded = math.prod(shape) // n, math.prod(matrix)
    flat = moved if size == padded else b.pad(b.reshape(moved, (n, size)), 1, 0, padded - size)
    scattered = b.reduce_scatter(b.reshape(flat, (n, *matrix)), axes, 0, op.attrs["kind"])
    mine = scattered if size == padded else b.slice(b.reshape(scattered, (padded,)), 0, 0, size)
    part = (shape[dim] // n, *moved.type.shape[1:])
    return b.transpose(b.reshape(mine, part), [order.index(d) for d in range(len(order))])


def _gather_vector(b: Builder, op: Op, value: Value) -> Value | None:
    """Of a vector, possibly with dims of one element: as a matrix of one row, which the barrier keeps a matrix."""
    shape, axes, dim = value.type.shape, op.attrs["axes"], op.attrs["dim"]
    size = math.prod(shape)
    if size == 1 or size % LANES == 0:
        return None
    row = b.reshape(value, (1, size))
    rows = b.all_gather(b.op("optimization_barrier", [row], row.type), axes, 0)
    blocks = b.reshape(rows, (b.mesh.axes_size(axes), *shape))
    return b.side_by_side(blocks, dim)
