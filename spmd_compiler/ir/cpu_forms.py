"""Collectives in the forms that XLA's CPU compiler makes least work of.

* An all-gather or a reduce-scatter moves whole arrays in the order of its group. Along another dim than the first XLA
  transposes before and after; here blocks are put next to each other along a new first dim, and moved once.
* An all-to-all becomes slices, as many as devices, and their concatenation along the dim that is split. Each slice is
  compiled by itself, unless they differ only in an operand, their start. The starts go through a barrier, else they would be
  folded into the slices. Each is the first of three numbers, because XLA still folds a constant of which all elements
  are equal or an arithmetic progression. What is received is concatenated along the dim that grows: XLA takes the slices
  of concatenations, here before and there behind the all-to-all, as what was concatenated.
* Floats that XLA computes with in a wider type, as bf16 and those of 8 bits, it would also send in that. They are sent as
  integers, but for what is reduced on the way.
* The largest or smallest of some floats would be that of those that are numbers, where it has to be NaN as soon as one is.
  Integers in the same order, with NaN behind all others, are reduced instead.
"""

from __future__ import annotations

import math

from jaxlib.mlir import ir

from .forms import Collective, Forms, array, like, shape_of
from .optable import FEW_SLICES

_FILL = 2**32 - 1  # no start


class CpuForms(Forms):
    """All but all-reduces and permutes."""

    def sent(self, x: ir.Value, kind: str | None) -> ir.Value:
        width = _narrow(x.type) if kind is None else _ordered(x.type, kind)
        if not width:
            return x
        if kind is None:
            return self._cast(x, ir.IntegerType.get_unsigned(width))
        bits = self._cast(x, ir.IntegerType.get_signless(width))
        last = 2 ** (width - 1) - 1 if kind == "max" else -(2 ** (width - 1))
        return self._select("NE", x, x, self._filled(last, bits), self._turned(bits))

    def received(self, y: ir.Value, type: ir.Type, kind: str | None) -> ir.Value:
        if y.type == type:
            return y
        return self._cast(y if kind is None else self._turned(y), ir.RankedTensorType(type).element_type)

    def _turned(self, bits: ir.Value) -> ir.Value:
        """Integers in the order of the floats that have the same bits, and back: of negative ones all but the sign are the other
        way round."""
        width = ir.RankedTensorType(bits.type).element_type.width
        other = self.op("xor", [bits.type], [bits, self._filled(2 ** (width - 1) - 1, bits)])[0]
        return self._select("LT", bits, self._filled(0, bits), other, bits)

    def _select(self, direction: str, a: ir.Value, b: ir.Value, yes: ir.Value, no: ir.Value) -> ir.Value:
        """`yes` where `a` compares so with `b`, else `no`."""
        found = ir.RankedTensorType.get(shape_of(a), ir.IntegerType.get_signless(1))
        how = ir.Attribute.parse(f"#stablehlo<comparison_direction {direction}>")
        pred = self.op("compare", [found], [a, b], comparison_direction=how)[0]
        return self.op("select", [yes.type], [pred, yes, no])[0]

    def _filled(self, number: int, x: ir.Value) -> ir.Value:
        element = ir.IntegerAttr.get(ir.RankedTensorType(x.type).element_type, number)
        return self.op("constant", [x.type], [], value=ir.DenseElementsAttr.get_splat(x.type, element))[0]

    def _cast(self, x: ir.Value, element: ir.Type) -> ir.Value:
        return self.op("bitcast_convert", [ir.RankedTensorType.get(shape_of(x), element)], [x])[0]

    def all_gather(self, operand: ir.Value, dim: int, count: int, write: Collective) -> ir.Value:
        """`operand` of `count` devices, concatenated along `dim`."""
        shape = shape_of(operand)
        if math.prod(shape[:dim]) == 1:
            return write(operand, [*shape[:dim], shape[dim] * count, *shape[dim + 1 :]], dim)
        return self.side_by_side(write(self.reshape(operand, [1, *shape]), [count, *shape], 0), dim)

    def reduce_scatter(self, operand: ir.Value, dim: int, count: int, write: Collective) -> ir.Value:
        """This device's part along `dim` of the sum (or other reduction) over `count` devices."""
        shape = shape_of(operand)
        part = [*shape[:dim], shape[dim] // count, *shape[dim + 1 :]]
        if math.prod(shape[:dim]) == 1:
            return write(operand, part, dim)
        return self.reshape(write(self.blocks(operand, dim, count), [1, *part], 0), part)

    def all_to_all(
        self, operand: ir.Value, split: int, concat: int, count: int, write: Collective
    ) -> ir.Value:
        """`operand` cut along `split`, a piece for each of `count` devices; theirs are concatenated along `concat`."""
        shape = shape_of(operand)
        if count > FEW_SLICES and all(shape):
            operand = self.concatenate(self._equal_slices(operand, split, count), split)
        received = write(operand, shape, split)
        if split == concat:
            return received
        size = shape[split] // count
        pieces = [self.slice(received, split, i * size, size) for i in range(count)]
        return self.concatenate(pieces, concat)

    def _equal_slices(self, x: ir.Value, dim: int, count: int) -> list[ir.Value]:
        shape = shape_of(x)
        shape[dim] //= count
        i32 = ir.IntegerType.get_signless(32)
        triple, scalar = ir.RankedTensorType.get([3], i32), ir.RankedTensorType.get([], i32)
        zero = self.constant(0, scalar)
        triples = [self.constant([i * shape[dim], _FILL, _FILL], triple) for i in range(count)]
        slices: list[ir.Value] = []
        for kept in self.op("optimization_barrier", [triple] * count, triples):
            start = self.reshape(self.slice(kept, 0, 0, 1), [])
            starts = [start if d == dim else zero for d in range(len(shape))]
            slices += self.op("dynamic_slice", [like(x, shape)], [x, *starts], slice_sizes=array(shape))
        return slices


def _narrow(type: ir.Type) -> int:
    """The bits of floats that XLA computes with in a wider type; 0 of what it doesn't."""
    element = ir.RankedTensorType(type).element_type
    if not isinstance(element, ir.FloatType) or isinstance(element, ir.F16Type):
        return 0
    return element.width if element.width in (8, 16) else 0


def _ordered(type: ir.Type, kind: str) -> int:
    """The bits of floats of which the largest or smallest is looked for, if they have a sign and NaN of either one; else 0."""
    element = ir.RankedTensorType(type).element_type
    if kind not in ("max", "min") or not isinstance(element, ir.FloatType) or "FNU" in str(element):
        return 0
    return element.width if element.width >= 8 else 0
