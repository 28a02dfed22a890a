"""Splits small all-reduces over several mesh axes in two, where each half can go with an all-reduce that is there anyway.

A loss that is summed over the whole mesh takes a message of its own. Summed first over one axis, together with what a layer
sums there, and then over the other, together with the gradients, it takes none.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from ..ir.clone import clone_block
from ..ir.graph import Block, Op, Value
from ..ir.layout import Axes
from ..ir.mesh import Mesh
from ..ir.optable import sends
from .combine import combine_collectives, lone_reductions, reduction_key
from .cost import prices, ring_bytes


def split_reductions(block: Block, mesh: Mesh, bucket: int) -> None:
    """Changes a block, and those inside, so that fewer collectives are left when they are combined. bucket: bytes that are
    held for one collective."""
    for op in block.ops:
        for region in op.regions:
            split_reductions(region, mesh, bucket)
    fewest: int | None = None
    for op in lone_reductions(block, bucket):
        for halves in _halves(op, block, mesh, bucket):
            if fewest is None:
                fewest = _messages(block, mesh, bucket)
            split = Block(block.args, _split(block.ops, op, *halves), block.returns)
            messages = _messages(split, mesh, bucket)
            if messages < fewest:
                block.ops[:], fewest = split.ops, messages
                break


def _halves(op: Op, block: Block, mesh: Mesh, bucket: int) -> Iterator[tuple[Axes, Axes]]:
    """The axes over which other all-reduces of a block are, in pairs that make up those of `op`; none if that is more to send
    twice than what a message weighs."""
    key = reduction_key(op, bucket)
    if key is None or len(key[0]) < 2:
        return
    axes, *shared = key
    if ring_bytes(op.name, mesh.axes_size(axes), op.operands[0].type.nbytes) > prices(mesh).message:
        return
    others = [other for x in block.ops if (other := reduction_key(x, bucket)) and [*other[1:]] == shared]
    for first, second in itertools.permutations(dict.fromkeys(x[0] for x in others), 2):
        if sorted((*first, *second)) == sorted(axes):
            yield first, second


def _split(ops: list[Op], op: Op, first: Axes, second: Axes) -> list[Op]:
    """The ops with two for one: the first as soon as its operand is there, the second in the old one's place."""
    between = Value(op.results[0].type)
    halves = (
        Op(op.name, op.operands, [between], {**op.attrs, "axes": first}, loc=op.loc),
        Op(op.name, [between], op.results, {**op.attrs, "axes": second}, loc=op.loc),
    )
    ready = next((i + 1 for i, x in enumerate(ops) if op.operands[0] in x.results), 0)
    place = ops.index(op)
    return [*ops[:ready], halves[0], *ops[ready:place], halves[1], *ops[place + 1 :]]


def _messages(block: Block, mesh: Mesh, bucket: int) -> int:
    """How many collectives a block has once they are combined."""
    copy = clone_block(block)
    combine_collectives(copy, mesh, bucket)
    return sum(sends(op) for op in copy.ops)
