"""Splits small all-reduces over several mesh axes in two, where each half can go with an all-reduce that is there anyway.

A loss that is summed over the whole mesh takes a message of its own. Summed first over one axis, together with what a layer
sums there, and then over the other, together with the gradients, it takes none.
"""

from __future__ import annotations

import itertools

from ...ir.clone import clone_block
from ...ir.graph import Block, Op, Value
from ...ir.layout import Axes
from ...ir.mesh import Mesh
from ...ir.optable import sends
from ..cost import prices, ring_bytes
from ..estimate import reads
from .combine import ReductionKey, combine_reductions, lone_reductions, reduction_keys

TRIES = 32  # splits in vain, each of which combines all reductions anew


def split_reductions(block: Block, mesh: Mesh, bucket: int) -> None:
    """Changes a block, and those inside, so that fewer collectives are left when they are combined. Those that go with others
    over the same axes take no message of their own, and stay. bucket: bytes that are held for one collective."""
    for op in block.ops:
        for region in op.regions:
            split_reductions(region, mesh, bucket)
    keys = reduction_keys(block, bucket)
    distinct = list(dict.fromkeys(keys.values()))
    ways = {op: halves for op, key in keys.items() if (halves := _halves(op, key, distinct, mesh))}
    lone = [op for op in lone_reductions(block, keys, bucket) if op in ways] if ways else []
    fewest = _messages(block, mesh, bucket) if lone else 0
    tries = TRIES
    for op in lone:
        for (first, second), late in itertools.product(ways[op], (False, True)):
            if not tries:
                return
            split = Block(block.args, _split(block.ops, op, first, second, late), block.returns)
            messages = _messages(split, mesh, bucket)
            if messages < fewest:
                block.ops[:], fewest = split.ops, messages
                break
            tries -= 1


def _halves(op: Op, key: ReductionKey, keys: list[ReductionKey], mesh: Mesh) -> list[tuple[Axes, Axes]]:
    """The axes over which other all-reduces, with `keys`, are, in pairs that make up those of `op`; none if that is more to
    send twice than what a message weighs."""
    axes, *shared = key
    if len(axes) < 2:
        return []
    if ring_bytes(op.name, mesh.axes_size(axes), op.operands[0].type.nbytes) > prices(mesh).message:
        return []
    pairs = itertools.permutations([other for other, *rest in keys if rest == shared], 2)
    return [(first, second) for first, second in pairs if sorted((*first, *second)) == sorted(axes)]


def _split(ops: list[Op], op: Op, first: Axes, second: Axes, late: bool) -> list[Op]:
    """The ops with two for one: the first as soon as its operand is there, the second in the old one's place, or behind all that
    doesn't wait for it."""
    between = Value(op.results[0].type)
    halves = (
        Op(op.name, op.operands, [between], {**op.attrs, "axes": first}, loc=op.loc),
        Op(op.name, [between], op.results, {**op.attrs, "axes": second}, loc=op.loc),
    )
    ready = next((i + 1 for i, x in enumerate(ops) if op.operands[0] in x.results), 0)
    place = ops.index(op)
    before = [*ops[:ready], halves[0], *ops[ready:place]]
    if not late:
        return [*before, halves[1], *ops[place + 1 :]]
    waiting, others, behind = {*op.results}, list[Op](), list[Op]()
    for x in ops[place + 1 :]:
        waits = not waiting.isdisjoint(reads(x))
        waiting.update(x.results if waits else ())
        (behind if waits else others).append(x)
    return [*before, *others, halves[1], *behind]


def _messages(block: Block, mesh: Mesh, bucket: int) -> int:
    """How many collectives a block has once its all-reduces are combined."""
    copy = clone_block(block)
    combine_reductions(copy, mesh, bucket)
    return sum(sends(op) for op in copy.ops)
