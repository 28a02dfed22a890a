"""Which ops of a program repeat each other: those whose surroundings, in program order, look the same.

The layers of an unrolled network stand one after another in the program, and so do their parts in the backward pass and in
the optimizer. Ops are alike if the ops around them have the same rules and the same wiring.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING

from ...ir.graph import Block, Op, Value
from ...ir.optable import CONTROL_FLOW
from .axis_ways import FIXED

if TYPE_CHECKING:
    from .engine import Engine

UNRULED = frozenset((*CONTROL_FLOW, *FIXED, "constant"))  # ops that are more, or less, than their rules say
MOVING = frozenset({"slice", "pad"})  # ops that are alike wherever they cut
REACH = 12  # ops before and after one that have to look the same too; operands from further away may be any
FAR = -REACH - 1, 0  # the place of what is made elsewhere


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
    place = dict[Value, tuple[int, int]]()
    free, layouts, read = engine.free_results, engine.layouts, list[int]()
    for at, (op, kind) in enumerate(zip(ops, of_kind, strict=True)):
        look: list[Hashable] = [kind]
        for v in op.operands:
            i, j = place.get(v, FAR)
            look.append((at - i, j) if at - i <= REACH else layouts[v])
        for j, v in enumerate(op.results):
            place[v] = at, j
            look.append(v in free)
        read.append(numbers.setdefault(tuple(look), len(numbers)))
    return read


def _kind(engine: Engine, op: Op, numbers: dict[Hashable, int], anywhere: frozenset[str]) -> Hashable:
    """What an op is, apart from where its operands come from. anywhere: names of ops that may cut at any place."""
    if op.name not in UNRULED and op.name not in anywhere:
        return engine.book.rule(op)
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
    ways = tuple([s._replace(exchange=None) for s in engine.book.rule(op).strategies])
    return op.name, types, tuple([v.type for v in op.operands]), ways
