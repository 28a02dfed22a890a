"""A large program without most of the parts that repeat each other, for the search to look at in its place.

The layers of an unrolled network stand one after another, and so do their parts in the backward pass and in the optimizer.
Of each such row the first and the last few stay; what is found for one of them holds for those between. The shortened
program computes nothing that anyone wants: it is only wired like the long one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..ir.clone import clone_regions
from ..ir.graph import Block, Function, Module, Op, Value
from ..ir.optable import CONTROL_FLOW
from .axis_ways import FIXED
from .estimate import reads
from .folding import looks

if TYPE_CHECKING:
    from .engine import Engine

LARGE = 1500  # ops of a program that is worth it
ENDS = 2  # parts of a row that stay at its begin and at its end
WORTHWHILE = 0.7  # of the ops that may stay at most
PERIODS = 32  # lengths of parts that are tried


class Row(NamedTuple):
    """Parts of `period` ops each, one after another."""

    start: int
    period: int
    parts: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.parts


class Shortened(NamedTuple):
    """stand_ins: for the ops of the program those of the shortened one."""

    module: Module
    stand_ins: list[tuple[Op, Op]]


def shortened(engine: Engine, module: Module) -> Shortened | None:
    """None for a program that has too little to leave out. The engine has assigned layouts to the program."""
    ops = module.main.body.ops
    if len(ops) < LARGE:
        return None
    rows = _rows(looks(engine, module.main.body))
    previous = list(range(len(ops)))  # the last op that stays before a gap, for those in the gap
    for row in rows:
        for i in range(row.start + ENDS * row.period, row.end - ENDS * row.period):
            previous[i] = row.start + (ENDS - 1) * row.period + (i - row.start) % row.period
    kept = [i for i, p in enumerate(previous) if i == p]
    if len(kept) > WORTHWHILE * len(ops):
        return None
    copies: dict[int, Op] = {}
    short = _copy(module, kept, previous, copies)
    stand_ins = _stand_ins(module.main.body, rows)
    return Shortened(short, [(op, copies[i]) for op, i in zip(ops, stand_ins, strict=True)])


def adopt(engine: Engine, found: Engine, stand_ins: Sequence[tuple[Op, Op]]) -> None:
    """Runs ops as `found` runs those that stand for them."""
    ours, theirs = engine.choices, found.choices
    for op, other in stand_ins:
        choice = theirs.get(other)
        if choice is None or choice is ours[op] or op.name in FIXED:
            continue
        if op.name not in CONTROL_FLOW:
            engine.change(op, choice)
            continue
        for i, layout in enumerate(choice.results):
            engine.change((op, i), layout)
        for region, like in zip(op.regions, other.regions, strict=True):
            adopt(engine, found, list(zip(region.ops, like.ops, strict=True)))


def _rows(read: list[int]) -> list[Row]:
    """Rows that don't overlap, the longest first."""
    last, gaps = dict[int, int](), Counter[int]()
    for i, name in enumerate(read):
        if name in last:
            gaps[i - last[name]] += 1
        last[name] = i
    numbers, found = np.array(read), list[Row]()
    for period, _ in gaps.most_common(PERIODS):
        same = np.concatenate(([False], numbers[:-period] == numbers[period:], [False]))
        edges = np.flatnonzero(same[1:] != same[:-1])
        for start, end in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True):
            parts = (end - start) // period + 1
            if parts > 2 * ENDS + 1:
                found.append(Row(start, period, parts))
    rows: list[Row] = []
    for row in sorted(found, key=lambda r: (r.start - r.end, r.period)):
        if all(row.end <= other.start or other.end <= row.start for other in rows):
            rows.append(row)
    return sorted(rows)


def _copy(module: Module, kept: list[int], previous: list[int], copies: dict[int, Op]) -> Module:
    main = module.main
    made = {v: (i, j) for i, op in enumerate(main.body.ops) for j, v in enumerate(op.results)}
    values: dict[Value, Value] = {}
    args: list[Value] = []
    ops: list[Op] = []

    def copied(value: Value) -> Value:
        if value in made:
            i, j = made[value]
            value = main.body.ops[previous[i]].results[j]
        return values[value]

    for value in main.body.args:
        values[value] = Value(value.type, value.layout, value.name)
        args.append(values[value])
    for i in kept:
        op = main.body.ops[i]
        results = [Value(v.type, v.layout, v.name) for v in op.results]
        outer = {v: copied(v) for v in reads(op) if v in made or v in values}
        operands = [outer[v] for v in op.operands]
        copies[i] = Op(op.name, operands, results, op.attrs, clone_regions(op.regions, outer), op.loc)
        ops.append(copies[i])
        values.update(zip(op.results, results, strict=True))
    ends = [(v, attrs) for v, attrs in zip(main.body.returns, main.result_attrs, strict=True) if v in values]
    body = Block(args, ops, [values[v] for v, _ in ends])
    function = Function("main", body, True, main.arg_attrs, [attrs for _, attrs in ends])
    return Module(module.mesh, {**module.functions, "main": function}, module.name, module.attrs)


def _stand_ins(block: Block, rows: list[Row]) -> list[int]:
    """For each op one that stays. Those in a gap are like the part before it or like the one behind: whichever takes more of
    its operands from where these would take them."""
    stand_ins = list(range(len(block.ops)))
    made = {v: i for i, op in enumerate(block.ops) for v in op.results}

    def sources(i: int) -> list[int]:
        return [stand_ins[made[v]] if v in made else -1 for v in block.ops[i].operands]

    for row in rows:
        ends = (row.start + (ENDS - 1) * row.period, row.end - ENDS * row.period)
        middle = row.start + row.parts // 2 * row.period
        same = [
            sum(
                a == b
                for k in range(row.period)
                for a, b in zip(sources(middle + k), sources(end + k), strict=True)
            )
            for end in ends
        ]
        stay = ends[same[1] > same[0]]
        for i in range(row.start + ENDS * row.period, row.end - ENDS * row.period):
            stand_ins[i] = stay + (i - row.start) % row.period
    return stand_ins
