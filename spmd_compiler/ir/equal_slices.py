"""The slices that an all-to-all exchanges, in a form of which XLA's CPU compiler makes one kernel instead of one per slice.

On CPU an all-to-all becomes as many slices as devices, each compiled by itself, and LLVM's time for them is most of a small
program's compilation. Slices that differ only in an operand, their start, share a kernel. The starts go through a barrier,
else they would be folded into the slices. Each is the first of three numbers, because XLA still folds a constant of which
all elements are equal or an arithmetic progression.
"""

from __future__ import annotations

import numpy as np
from jaxlib.mlir import ir

from .constants import elements

FEW = 2  # slices that are as well compiled apart
_FILL = 2**32 - 1  # no start


def in_equal_slices(
    operand: ir.Value, dim: int, count: int, point: ir.InsertionPoint, loc: ir.Location
) -> ir.Value:
    """`operand` as the concatenation of `count` slices of it along `dim`; XLA takes that apart again into the slices."""
    type = ir.RankedTensorType(operand.type)
    if count <= FEW or not all(type.shape):
        return operand
    i32 = ir.IntegerType.get_signless(32)
    scalar, triple = ir.RankedTensorType.get([], i32), ir.RankedTensorType.get([3], i32)
    one = ir.RankedTensorType.get([1], i32)
    sizes = list(type.shape)
    sizes[dim] //= count
    slice_type = ir.RankedTensorType.get(sizes, type.element_type)

    def op(
        name: str, types: list[ir.Type], operands: list[ir.Value], **attrs: ir.Attribute
    ) -> list[ir.Value]:
        made = ir.Operation.create(f"stablehlo.{name}", types, operands, attrs, None, 0, loc, point)
        return list(made.results)

    def constant(value: object, type: ir.Type) -> ir.Value:
        return op("constant", [type], [], value=elements(np.array(value, np.uint32), type))[0]

    def array(*values: int) -> ir.Attribute:
        return ir.DenseI64ArrayAttr.get(list(values))

    zero = constant(0, scalar)
    triples = [constant([i * sizes[dim], _FILL, _FILL], triple) for i in range(count)]
    slices: list[ir.Value] = []
    for kept in op("optimization_barrier", [triple] * count, triples):
        (first,) = op(
            "slice", [one], [kept], start_indices=array(0), limit_indices=array(1), strides=array(1)
        )
        (start,) = op("reshape", [scalar], [first])
        starts = [start if d == dim else zero for d in range(len(sizes))]
        slices += op("dynamic_slice", [slice_type], [operand, *starts], slice_sizes=array(*sizes))
    dimension = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), dim)
    return op("concatenate", [type], slices, dimension=dimension)[0]
