"""Reductions between devices written as what a ring does: each device combines one part of all terms (an all-to-all and a
local reduce), and gets the other parts combined. The bytes sent are those of the collective that they replace."""

from __future__ import annotations

import math
from collections.abc import Callable

from ...ir.graph import Block, Op, Value
from ...ir.layout import Axes
from ...ir.mesh import Mesh
from ...ir.types import TensorType
from .builder import Builder, combiner, identity_value

Emit = Callable[[Builder, Op, Value], Value | None]


def rewrite_collectives(block: Block, mesh: Mesh, emit: Emit) -> None:
    """Replaces collectives in a block that no one else holds, and in the blocks inside. `emit` writes what one operand of
    a collective becomes, or returns None if that stays."""
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            rewrite_collectives(region, mesh, emit)
        if "axes" not in op.attrs or not op.operands:
            ops.append(op)
            continue
        kept: list[tuple[Value, Value]] = []
        for value, result in zip(op.operands, op.results, strict=True):
            b = Builder.beside(mesh, op)
            b.cause = op.attrs.get("cause", "")
            if emit(b, op, value) is None:
                kept.append((value, result))
            else:
                b.gives([result])
                ops += b.block.ops
        if kept:
            op.operands, op.results = [v for v, _ in kept], [r for _, r in kept]
            ops.append(op)
    block.ops[:] = ops


def reduce_by_exchange(b: Builder, op: Op, value: Value) -> Value:
    """One operand of an all_reduce or reduce_scatter."""
    axes, kind = op.attrs["axes"], op.attrs["kind"]
    if op.name == "all_reduce":
        return _all_reduce(b, value, axes, kind)
    return _reduce_scatter(b, value, axes, op.attrs["dim"], kind)


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
    init = b.constant(identity_value(kind, scalar.dtype), scalar)
    type = TensorType((*shape[:dim], *shape[dim + 1 :]), scalar.dtype)
    return b.op("reduce", [terms, init], type, {"dimensions": (dim,)}, (combiner(kind, scalar),))
