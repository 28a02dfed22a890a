"""Which ops of a program repeat each other: those whose surroundings, in program order, read the same.

The layers of an unrolled network stand one after another in the program, and so do their parts in the backward pass and in
the optimizer. Ops are alike if the ops around them have the same names, attributes, types and wiring.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from ..ir.graph import Block, Op, Value

if TYPE_CHECKING:
    from .engine import Engine

REACH = 12  # ops before and after one that have to be alike too


def alike(engine: Engine, block: Block) -> dict[Op, Hashable]:
    """For the ops of a block, not of those in it, a key that ops share which repeat each other."""
    place = {v: (i, j) for i, op in enumerate(block.ops) for j, v in enumerate(op.results)}
    names: dict[Hashable, int] = {}
    read = [names.setdefault(_describe(engine, op, i, place), len(names)) for i, op in enumerate(block.ops)]
    around: dict[Hashable, int] = {}
    keys: dict[Op, Hashable] = {}
    for i, op in enumerate(block.ops):
        window = (*read[max(0, i - REACH) : i], -1, *read[i : i + REACH + 1])
        keys[op] = id(block), around.setdefault(window, len(around))
    return keys


def _describe(engine: Engine, op: Op, at: int, place: dict[Value, tuple[int, int]]) -> Hashable:
    """What an op is, and how far before it its operands are made; those made far away count by their layouts now."""
    wiring: list[Hashable] = []
    for v in op.operands:
        i, j = place.get(v, (-1, 0))
        near = i >= 0 and at - i <= REACH
        wiring.append((at - i, j) if near else (i >= 0, engine.layouts[v]))
    inside = tuple([inner.name for region in op.regions for inner in region.walk()])
    ends = tuple([v in engine.free_results for v in op.results])
    types = tuple([v.type for v in (*op.operands, *op.results)])
    attrs = tuple([(k, x) for k, x in op.attrs.items() if k != "value"])
    return op.name, types, attrs, tuple(wiring), inside, ends
