"""Collectives in other forms than the plain ones, with the local ops around them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np
from jaxlib.mlir import ir

from .constants import elements

Collective = Callable[[ir.Value, Sequence[int], int], ir.Value]  # operand, shape of the result, dim -> result


class Forms:
    """Writes at `point`; a `Collective` is written by whoever gives it."""

    def __init__(self, point: ir.InsertionPoint, loc: ir.Location):
        self._point = point
        self._loc = loc

    def sent(self, x: ir.Value, kind: str | None) -> ir.Value:
        """What devices send each other for `x`: of as many bytes. kind: of the reduction on the way, if there is one."""
        return x

    def received(self, y: ir.Value, type: ir.Type, kind: str | None) -> ir.Value:
        """What they make of it, of a type."""
        return y

    def blocks(self, x: ir.Value, dim: int, count: int) -> ir.Value:
        """`x` cut along `dim` into `count` blocks, along a first dim of their own."""
        shape = shape_of(x)
        cut = self.reshape(x, [*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]])
        return self.transpose(cut, [dim, *(d for d in range(len(shape) + 1) if d != dim)])

    def side_by_side(self, blocks: ir.Value, dim: int) -> ir.Value:
        """Blocks along a first dim of their own, one behind the other along what is dim `dim` of each."""
        count, *shape = shape_of(blocks)
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1)]
        whole = [*shape[:dim], count * shape[dim], *shape[dim + 1 :]]
        return self.reshape(self.transpose(blocks, order), whole)

    def gather_together(self, operands: list[ir.Value], count: int, write: Collective) -> list[ir.Value]:
        """What an all-gather over `count` devices makes of each of some operands, along a first dim of one element: in one
        buffer."""
        shapes = [shape_of(x) for x in operands]
        sizes = [math.prod(shape) for shape in shapes]
        rows = [self.reshape(x, [1, size]) for x, size in zip(operands, sizes, strict=True)]
        whole = write(self.concatenate(rows, 1), [count, sum(sizes)], 0)
        starts = accumulate((0, *sizes[:-1]))
        return [
            self.reshape(self.slice(whole, 1, start, size), [count, *shape[1:]])
            for start, size, shape in zip(starts, sizes, shapes, strict=True)
        ]

    def slice(self, x: ir.Value, dim: int, start: int, size: int) -> ir.Value:
        starts, limits = [0] * len(shape_of(x)), shape_of(x)
        starts[dim], limits[dim] = start, start + size
        shape = [b - a for a, b in zip(starts, limits, strict=True)]
        strides = array([1] * len(shape))
        return self.op(
            "slice",
            [like(x, shape)],
            [x],
            start_indices=array(starts),
            limit_indices=array(limits),
            strides=strides,
        )[0]

    def concatenate(self, parts: list[ir.Value], dim: int) -> ir.Value:
        shape = shape_of(parts[0])
        shape[dim] = sum(shape_of(x)[dim] for x in parts)
        dimension = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
        return self.op("concatenate", [like(parts[0], shape)], parts, dimension=dimension)[0]

    def transpose(self, x: ir.Value, order: list[int]) -> ir.Value:
        shape = [shape_of(x)[d] for d in order]
        return self.op("transpose", [like(x, shape)], [x], permutation=array(order))[0]

    def reshape(self, x: ir.Value, shape: Sequence[int]) -> ir.Value:
        return self.op("reshape", [like(x, shape)], [x])[0]

    def constant(self, value: object, type: ir.Type) -> ir.Value:
        return self.op("constant", [type], [], value=elements(np.array(value, np.uint32), type))[0]

    def op(
        self, name: str, types: list[ir.Type], operands: list[ir.Value], **attrs: ir.Attribute
    ) -> list[ir.Value]:
        made = ir.Operation.create(
            f"stablehlo.{name}", types, operands, attrs, None, 0, self._loc, self._point
        )
        return list(made.results)


class GpuForms(Forms):
    """An all-to-all moves blocks along a new first dim, as XLA's partitioner has it. With the plain form XLA moves transposes
    across it into matrix products, where its Triton compiler finds no tiles for dims merged from odd sizes (JAX 0.10)."""

    def all_to_all(
        self, operand: ir.Value, split: int, concat: int, count: int, write: Collective
    ) -> ir.Value:
        """`operand` cut along `split`, a piece for each of `count` devices; theirs are concatenated along `concat`."""
        blocks = self.blocks(operand, split, count)
        return self.side_by_side(write(blocks, shape_of(blocks), 0), concat)


def shape_of(x: ir.Value) -> list[int]:
    return list(ir.RankedTensorType(x.type).shape)


def like(x: ir.Value, shape: Sequence[int]) -> ir.Type:
    return ir.RankedTensorType.get(shape, ir.RankedTensorType(x.type).element_type)


def array(numbers: Sequence[int]) -> ir.Attribute:
    return ir.DenseI64ArrayAttr.get(list(numbers))
