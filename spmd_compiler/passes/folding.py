"""Which ops of a program repeat each other: those whose surroundings, in program order, look the same.

The layers of an unrolled network stand one after another in the program, and so do their parts in the backward pass and in
the optimizer. Ops are alike if the ops around them have the same rules and the same wiring.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from ..ir.graph import Block, Op
from ..ir.optable import CONTROL_FLOW
from .axis_ways import FIXED

if TYPE_CHECKING:
    from .engine import Engine

MOVING = frozenset({"slice", "pad"})  # ops that are alike wherever they cut
REACH = 12  # ops before and after one that have to look the same too; operands from further away may be any


def alike(engine: Engine, block: Block) -> dict[Op, Hashable]:
    """For the ops of a block, not of those in it, a key that ops share which repeat each other."""
    read = looks(engine, block.ops)
    around: dict[Hashable, int] = {}
    keys: dict[Op, Hashable] = {}
    for i, op in enumerate(block.ops):
        window = (*read[max(0, i - REACH) : i], -1, *read[i : i + REACH + 1])
        keys[op] = id(block), around.setdefault(window, len(around))
    return keys


def looks(engine: Engine, ops: Sequence[Op], of_kind: Sequence[Hashable] | None = None) -> list[int]:
    """For each of some ops of a block a number that ops share which look alike: they are of one kind (by default, have the same
    rule), and have operands from as far before, or of the same layout from further away. Loops and branchings look alike if
    all that is in them does."""
    numbers: dict[Hashable, int] = {}
    if of_kind is None:
        of_kind = [_kind(engine, op, numbers, frozenset()) for op in ops]
    return _looks(engine, ops, of_kind, numbers)


def kinds(engine: Engine, ops: Sequence[Op]) -> list[int]:
    """For each op a number that ops share which have the same rule. Slices and pads share that of others that cut elsewhere, if
    they run in the same ways."""
    numbers: dict[Hashable, int] = {}
    return [numbers.setdefault(_kind(engine, op, numbers, MOVING), len(numbers)) for op in ops]


def _looks(
    engine: Engine, ops: Sequence[Op], of_kind: Sequence[Hashable], numbers: dict[Hashable, int]
) -> list[int]:
    place = {v: (i, j) for i, op in enumerate(ops) for j, v in enumerate(op.results)}
    free, read = engine.free_results, list[int]()
    for at, (op, kind) in enumerate(zip(ops, of_kind, strict=True)):
        wiring: list[Hashable] = []
        for v in op.operands:
            i, j = place.get(v, (-1, 0))
            near = i >= 0 and at - i <= REACH
            wiring.append((at - i, j) if near else engine.layouts[v])
        look = kind, *wiring, *[v in free for v in op.results]
        read.append(numbers.setdefault(look, len(numbers)))
    return read


def _kind(engine: Engine, op: Op, numbers: dict[Hashable, int], anywhere: frozenset[str]) -> Hashable:
    """What an op is, apart from where its operands come from. anywhere: names of ops that may cut at any place."""
    types = tuple([v.type for v in op.results])
    if op.name in CONTROL_FLOW:
        inside: list[Hashable] = []
        for region in op.regions:
            of_kind = [_kind(engine, x, numbers, anywhere) for x in region.ops]
            inside.append(tuple(_looks(engine, region.ops, of_kind, numbers)))
        return op.name, types, tuple(inside), engine.trips(op) if op.name == "while" else 1
    if op.name in FIXED:
        return op.name, types, tuple([engine.layouts[v] for v in op.results])
    if op.name == "constant":  # of any value
        return op.name, types
    rule = engine.book.rule(op)
    if op.name in anywhere:
        ways = tuple([s._replace(exchange=None) for s in rule.strategies])
        return op.name, types, tuple([v.type for v in op.operands]), ways
    return rule
