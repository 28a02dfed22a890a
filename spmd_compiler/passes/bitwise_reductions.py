"""Reductions between devices that XLA has on no CPU and no GPU: and, or, xor of integers, and xor of booleans.

They become what a ring does for the others too: each device combines one part of all terms, and gets the other parts
combined. The bytes sent are the same.
"""

from __future__ import annotations

import math
from typing import cast

from ..ir.graph import Block, Op, Value
from ..ir.layout import Axes
from ..ir.mesh import Mesh
from ..ir.optable import COMBINE
from ..ir.types import TensorType
from .builder import Builder, identity_value


def expand_bitwise(block: Block, mesh: Mesh) -> None:
    """Replaces them in a block that no one else holds."""
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            expand_bitwise(region, mesh)
        if not _lacking(op):
            ops.append(op)
            continue
        for value, result in zip(op.operands, op.results, strict=True):
            b = Builder(mesh, Block([], [], []))
            b.loc, b.cause = op.loc, op.attrs.get("cause", "")
            if op.name == "all_reduce":
                _all_reduce(b, value, op.attrs["axes"], op.attrs["kind"])
            else:
                _reduce_scatter(b, value, op.attrs["axes"], op.attrs["dim"], op.attrs["kind"])
            b.block.ops[-1].results = [result]
            ops += b.block.ops
    block.ops[:] = ops


def _lacking(op: Op) -> bool:
    if op.name not in ("all_reduce", "reduce_scatter") or "axes" not in op.attrs:
        return False
    boolean = cast(TensorType, op.results[0].type).dtype == "i1"
    return op.attrs["kind"] in (("xor",) if boolean else ("and", "or", "xor"))


def _all_reduce(b: Builder, value: Value, axes: Axes, kind: str) -> Value:
    shape, n = value.type.shape, b.mesh.axes_size(axes)
    size = math.prod(shape)
    if size < n:  # too little to share out
        terms = b.all_gather(b.reshape(value, (1, *shape)), axes, 0)
        return _combine(b, terms, 0, kind)
    part = -(-size // n)
    flat = b.pad(b.reshape(value, (size,)), 0, 0, n * part - size)
    mine = _reduce_scatter(b, flat, axes, 0, kind)
    return b.reshape(b.slice(b.all_gather(mine, axes, 0), 0, 0, size), shape)


def _reduce_scatter(b: Builder, value: Value, axes: Axes, dim: int, kind: str) -> Value:
    shape, n = value.type.shape, b.mesh.axes_size(axes)
    terms = b.all_to_all(value, axes, dim, dim)
    parts = b.reshape(terms, (*shape[:dim], n, shape[dim] // n, *shape[dim + 1 :]))
    return _combine(b, parts, dim, kind)


def _combine(b: Builder, terms: Value, dim: int, kind: str) -> Value:
    shape, scalar = terms.type.shape, TensorType((), terms.type.dtype)
    x, y, z = Value(scalar), Value(scalar), Value(scalar)
    region = Block([x, y], [Op(COMBINE[kind], [x, y], [z])], [z])
    init = b.constant(identity_value(kind, scalar.dtype), scalar)
    type = TensorType((*shape[:dim], *shape[dim + 1 :]), scalar.dtype)
    return b.op("reduce", [terms, init], type, {"dimensions": (dim,)}, (region,))
