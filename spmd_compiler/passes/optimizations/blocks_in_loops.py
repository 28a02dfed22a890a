"""Blocks that a loop takes slices of, or stacks, lie along a dim of their own, and are put together slice by slice.

XLA gathers and scatters whole arrays along their first dim only: for another one it transposes all that was gathered, or is
to be scattered. A loop over slices (the layers of a `scan`) copies each slice anyway: there it is put together from its blocks, and
what is stacked for a reduce-scatter is cut into its blocks there. As many bytes are sent; half as many are held meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from ...ir.graph import Block, Op, Value
from ...ir.mesh import Mesh
from ...ir.optable import sends
from ...ir.trips import NONE, integers_in
from ...ir.types import TensorType
from ..emit.builder import Builder
from ..estimate import readers
from .stacks import retype_carry, slices_in, sums_stacked_in


def put_together_in_loops(block: Block, mesh: Mesh, outer: Mapping[Value, int] = NONE) -> None:
    """Changes a block that no one else holds, and the blocks inside. outer: integers that are known around it."""
    known = integers_in(block, outer)
    for op in block.ops:
        for region in op.regions:
            put_together_in_loops(region, mesh, known)
    found, kept = readers(block), set(block.returns)
    used = {*found, *kept}
    before: dict[Op, list[Op]] = {}  # what replaces a collective, or is new in front of a loop
    gone: set[Op] = set()
    for op in block.ops:
        if op.name == "all_gather" and _is_inner(op):
            loops, (value,) = found.get(op.results[0], []), op.results
            sliced = all(slices_in(x, value, op.attrs["dim"], used, known) for x in loops)
            if value not in kept and loops and sliced:
                before[op] = _gather(op, loops, mesh)
                gone.add(op)
        for k, update, scatter in sums_stacked_in(op, block, found, known):
            if _is_inner(scatter):
                zeros, before[scatter] = _scatter(op, k, update, scatter, mesh)
                before.setdefault(op, []).extend(zeros)
                gone.add(scatter)
    if gone:
        block.ops[:] = [new for op in block.ops for new in (*before.get(op, ()), op) if new not in gone]


def _is_inner(op: Op) -> bool:
    """Whether a collective moves a whole array along another dim than the first."""
    shape = op.operands[0].type.shape
    return sends(op) and len(op.operands) == 1 and math.prod(shape[: op.attrs["dim"]]) > 1


def _gather(gather: Op, loops: list[Op], mesh: Mesh) -> list[Op]:
    """Gathers along a first dim of its own; the loops put together what they take of it."""
    (x,), (whole,), dim = gather.operands, gather.results, gather.attrs["dim"]
    n, b = mesh.axes_size(gather.attrs["axes"]), Builder.beside(mesh, gather)
    type = TensorType((n, *x.type.shape), x.type.dtype)
    blocks = b.op("all_gather", [b.reshape(x, (1, *x.type.shape))], type, {**gather.attrs, "dim": 0})
    for loop in loops:
        for k in [k for k, operand in enumerate(loop.operands) if operand is whole]:
            arg = loop.regions[1].args[k]
            loop.operands[k] = blocks
            retype_carry(loop, k, type)
            for op in [op for op in loop.regions[1].ops if arg in op.operands]:
                _put_together(loop.regions[1], op, dim, n, mesh)
    return b.block.ops


def _put_together(body: Block, cut: Op, dim: int, n: int, mesh: Mesh) -> None:
    """A slice of what was whole becomes one of the blocks."""
    source, *starts = cut.operands
    sizes = list(cut.attrs["slice_sizes"])
    sizes[dim] //= n
    b, type = Builder.beside(mesh, cut), TensorType((n, *sizes), source.type.dtype)
    part = b.op(
        "dynamic_slice", [source, starts[dim], *starts], type, {**cut.attrs, "slice_sizes": type.shape}
    )
    b.side_by_side(part, dim)
    b.gives(cut.results)
    at = body.ops.index(cut)
    body.ops[at : at + 1] = b.block.ops


def _scatter(loop: Op, k: int, update: Op, scatter: Op, mesh: Mesh) -> tuple[list[Op], list[Op]]:
    """The loop stacks blocks: the zeros from which it begins, and what scatters them after it."""
    body, dim, n = loop.regions[1], scatter.attrs["dim"], mesh.axes_size(scatter.attrs["axes"])
    part = cast(TensorType, scatter.results[0].type)
    type = TensorType((n, *part.shape), part.dtype)
    retype_carry(loop, k, type)
    zeros = Builder.beside(mesh, loop)
    loop.operands[k] = zeros.constant(0, type)
    inside, (stack, term, *starts) = Builder.beside(mesh, update), update.operands
    blocks = inside.blocks(term, dim, n)
    update.operands = [stack, blocks, starts[dim], *starts]
    at = body.ops.index(update)
    body.ops[at:at] = inside.block.ops
    after = Builder.beside(mesh, scatter)
    first = TensorType((1, *part.shape), part.dtype)
    after.reshape(
        after.op("reduce_scatter", [loop.results[k]], first, {**scatter.attrs, "dim": 0}), part.shape
    )
    after.gives(scatter.results)
    return zeros.block.ops, after.block.ops
