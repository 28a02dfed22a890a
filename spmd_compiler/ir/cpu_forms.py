"""Collectives in the forms that XLA's CPU compiler makes least work of.

* An all-gather or a reduce-scatter moves whole arrays in the order of its group. Along another dim than the first XLA
  transposes before and after; here blocks are put next to each other along a new first dim, and moved once.
* An all-to-all becomes slices, as many as devices, and their concatenation along the dim that is split. Each slice is
  compiled by itself, unless they differ only in an operand, their start. The starts go through a barrier, else they would be
  folded into the slices. Each is the first of three numbers, because XLA still folds a constant of which all elements
  are equal or an arithmetic progression. What is received is concatenated along the dim that grows: XLA takes the slices
  of concatenations, here before and there behind the all-to-all, as what was concatenated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from jaxlib.mlir import ir

from .constants import elements

Collective = Callable[[ir.Value, Sequence[int], int], ir.Value]  # operand, shape of the result, dim -> result
FEW = 2  # slices that are as well compiled apart
_FILL = 2**32 - 1  # no start


class CpuForms:
    """Writes at `point`; a `Collective` is written by whoever gives it."""

    def __init__(self, point: ir.InsertionPoint, loc: ir.Location):
        self._point = point
        self._loc = loc

    def all_gather(self, operand: ir.Value, dim: int, count: int, write: Collective) -> ir.Value:
        """`operand` of `count` devices, concatenated along `dim`."""
        shape = _shape(operand)
        if math.prod(shape[:dim]) == 1:
            return write(operand, [*shape[:dim], shape[dim] * count, *shape[dim + 1 :]], dim)
        blocks = write(self._reshape(operand, [1, *shape]), [count, *shape], 0)
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1)]
        whole = [*shape[:dim], shape[dim] * count, *shape[dim + 1 :]]
        return self._reshape(self._transpose(blocks, order), whole)

    def reduce_scatter(self, operand: ir.Value, dim: int, count: int, write: Collective) -> ir.Value:
        """This device's part along `dim` of the sum (or other reduction) over `count` devices."""
        shape = _shape(operand)
        part = [*shape[:dim], shape[dim] // count, *shape[dim + 1 :]]
        if math.prod(shape[:dim]) == 1:
            return write(operand, part, dim)
        blocks = self._reshape(operand, [*shape[:dim], count, *part[dim:]])
        order = [dim, *(d for d in range(len(shape) + 1) if d != dim)]
        return self._reshape(write(self._transpose(blocks, order), [1, *part], 0), part)

    def all_to_all(
        self, operand: ir.Value, split: int, concat: int, count: int, write: Collective
    ) -> ir.Value:
        """`operand` cut along `split`, a piece for each of `count` devices; theirs are concatenated along `concat`."""
        shape = _shape(operand)
        if count > FEW and all(shape):
            operand = self._concatenate(self._equal_slices(operand, split, count), split)
        received = write(operand, shape, split)
        if split == concat:
            return received
        size = shape[split] // count
        pieces = [self._slice(received, split, i * size, size) for i in range(count)]
        return self._concatenate(pieces, concat)

    def _equal_slices(self, x: ir.Value, dim: int, count: int) -> list[ir.Value]:
        shape = _shape(x)
        shape[dim] //= count
        i32 = ir.IntegerType.get_signless(32)
        triple, scalar = ir.RankedTensorType.get([3], i32), ir.RankedTensorType.get([], i32)
        zero = self._constant(0, scalar)
        triples = [self._constant([i * shape[dim], _FILL, _FILL], triple) for i in range(count)]
        slices: list[ir.Value] = []
        for kept in self._op("optimization_barrier", [triple] * count, triples):
            start = self._reshape(self._slice(kept, 0, 0, 1), [])
            starts = [start if d == dim else zero for d in range(len(shape))]
            slices += self._op("dynamic_slice", [_like(x, shape)], [x, *starts], slice_sizes=_array(shape))
        return slices

    def _slice(self, x: ir.Value, dim: int, start: int, size: int) -> ir.Value:
        starts, limits = [0] * len(_shape(x)), _shape(x)
        starts[dim], limits[dim] = start, start + size
        shape = [b - a for a, b in zip(starts, limits, strict=True)]
        strides = _array([1] * len(shape))
        return self._op(
            "slice",
            [_like(x, shape)],
            [x],
            start_indices=_array(starts),
            limit_indices=_array(limits),
            strides=strides,
        )[0]

    def _concatenate(self, parts: list[ir.Value], dim: int) -> ir.Value:
        shape = _shape(parts[0])
        shape[dim] *= len(parts)
        dimension = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
        return self._op("concatenate", [_like(parts[0], shape)], parts, dimension=dimension)[0]

    def _transpose(self, x: ir.Value, order: list[int]) -> ir.Value:
        shape = [_shape(x)[d] for d in order]
        return self._op("transpose", [_like(x, shape)], [x], permutation=_array(order))[0]

    def _reshape(self, x: ir.Value, shape: Sequence[int]) -> ir.Value:
        return self._op("reshape", [_like(x, shape)], [x])[0]

    def _constant(self, value: object, type: ir.Type) -> ir.Value:
        return self._op("constant", [type], [], value=elements(np.array(value, np.uint32), type))[0]

    def _op(
        self, name: str, types: list[ir.Type], operands: list[ir.Value], **attrs: ir.Attribute
    ) -> list[ir.Value]:
        made = ir.Operation.create(
            f"stablehlo.{name}", types, operands, attrs, None, 0, self._loc, self._point
        )
        return list(made.results)


def _shape(x: ir.Value) -> list[int]:
    return list(ir.RankedTensorType(x.type).shape)


def _like(x: ir.Value, shape: Sequence[int]) -> ir.Type:
    return ir.RankedTensorType.get(shape, ir.RankedTensorType(x.type).element_type)


def _array(numbers: Sequence[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(numbers))
