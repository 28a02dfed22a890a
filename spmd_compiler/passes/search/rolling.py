"""A large program whose repeated parts are loops, for the search to look at in its place.

The layers of an unrolled network stand one after another, and so do their parts in the backward pass and in the optimizer,
or the time steps of a recurrence. Each such row becomes a `while` op that runs one of its parts as often as there are:
what a part takes from the one before it is carried, what all take from one place passes through, and where each takes
another value (its weights, what the forward pass left) the part reads that of one of them. So what is decided once holds
for all, what is common is paid once, and the search is that for loops. The rolled program computes nothing that anyone wants:
it is only wired like the long one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...ir.clone import clone_regions
from ...ir.graph import Block, Function, Module, Op, Value, constant
from ...ir.optable import CONTROL_FLOW
from ...ir.types import TensorType
from ..estimate import reads
from ..rules.base import Choice
from .axis_ways import FIXED
from .folding import kinds, looks

if TYPE_CHECKING:
    from .engine import Engine

LARGE = 400  # ops of a program that is worth it
PARTS = 4  # of a row at least
WORTHWHILE = 0.7  # of the ops that may be left at most
PERIODS = 32  # lengths of parts that are tried


class Row(NamedTuple):
    """Parts of `period` ops each, one after another."""

    start: int
    period: int
    parts: int

    @property
    def end(self) -> int:
        return self.start + self.period * self.parts


class Rolled(NamedTuple):
    """stand_ins: for the ops of the program those of the rolled one. A loop's attribute `trips` says how often it runs,
    `each` which values from outside are others each time."""

    module: Module
    stand_ins: list[tuple[Op, Op]]


def rolled(engine: Engine, module: Module) -> Rolled | None:
    """None for a program that has too little to roll. The engine has assigned layouts to the program."""
    body = module.main.body
    if len(body.ops) < LARGE or any("trips" in op.attrs for op in body.ops):
        return None
    # What depends on arrays: constants, and what is computed from scalars, stand in the first part that reads them.
    known = {v for v in body.args if v.type.rank}
    ops: list[Op] = []
    for op in body.ops:
        if not all(isinstance(v.type, TensorType) for v in op.results):
            return None
        if not known.isdisjoint(reads(op)):
            ops.append(op)
            known.update(op.results)
    of_kind = kinds(engine, ops)
    rows = _rows(looks(engine, ops, of_kind), of_kind)
    left = len(body.ops) - sum(row.period * (row.parts - 1) for row in rows)
    if left > WORTHWHILE * len(body.ops):
        return None
    rolling = _Rolling(module, ops, rows)
    return rolling.run() if all(map(rolling.is_wired_alike, range(len(rows)))) else None


def adopt(engine: Engine, found: Engine, stand_ins: Sequence[tuple[Op, Op]]) -> None:
    """Runs ops as `found` runs those that stand for them."""
    ours, theirs = engine.choices, found.choices
    for op, other in stand_ins:
        choice = theirs.get(other)
        if choice is None or choice is ours[op] or op.name in FIXED:
            continue
        if op.name not in CONTROL_FLOW:
            engine.change(op, _own(engine, op, other, choice))
            continue
        for i, layout in enumerate(choice.results):
            engine.change((op, i), layout)
        for region, like in zip(op.regions, other.regions, strict=True):
            adopt(engine, found, list(zip(region.ops, like.ops, strict=True)))


def _own(engine: Engine, op: Op, other: Op, choice: Choice) -> Choice:
    """The way of another op that looks like this one, as one of its own."""
    rule, like = engine.book.rule(op), engine.book.rule(other)
    if rule is like:
        return choice
    picks = tuple(rule.strategies[like.strategies.index(s)] for s in choice.picks)
    way = rule.way(choice.order, picks, op.operands, op.results, engine.mesh)
    return way if way and (way.demands, way.results) == (choice.demands, choice.results) else choice


def _rows(read: list[int], kinds: list[int]) -> list[Row]:
    """Rows that don't overlap, the longest first, from how ops look and what they are."""
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
            if parts >= PARTS:
                found.append(_with_ends(Row(start, period, parts), kinds))
    rows: list[Row] = []
    for row in sorted(found, key=lambda r: (r.start - r.end, r.period)):
        if all(row.end <= other.start or other.end <= row.start for other in rows):
            rows.append(row)
    return sorted(rows)


def _with_ends(row: Row, kinds: list[int]) -> Row:
    """With the parts before and behind that only read from elsewhere."""
    start, period, end = row.start, row.period, row.end
    while start > max(0, row.start - period) and kinds[start - 1] == kinds[start - 1 + period]:
        start -= 1
    while end < min(len(kinds), row.end + period) and kinds[end] == kinds[end - period]:
        end += 1
    return Row(start, period, (end - start) // period)


class _Place(NamedTuple):
    """The result `j` of the op at `offset` in the parts of a row."""

    row: int
    offset: int
    j: int


class _Carried(NamedTuple):
    """What a part makes and the next one reads, or what is behind the loop; the first part may read another value."""

    place: _Place
    first: Value | None


# Where a part has what it reads: made by itself, by the one before, outside.
Source = _Place | _Carried | Value


class _Wiring(NamedTuple):
    """What the parts of a row read. sources: per op of a part, where it has what it reads. through: values that all parts
    read. each: values that stand for others, one per part."""

    sources: list[list[Source]]
    carried: dict[_Carried, None]
    through: dict[Value, None]
    each: dict[Value, None]


class _Rolling:
    """Makes the rolled program."""

    def __init__(self, module: Module, ops: list[Op], rows: list[Row]):
        self.module, self.rows, self.ops = module, rows, ops
        self.made = {v: (i, j) for i, op in enumerate(self.ops) for j, v in enumerate(op.results)}
        self.row_of = {i: k for k, row in enumerate(rows) for i in range(row.start, row.end)}
        known = set(ops)
        self.constants = [op for op in module.main.body.ops if op not in known]
        self.constant = {v for op in self.constants for v in op.results}
        self.outer = {*self.made, *module.main.body.args, *self.constant}
        self.one_of: dict[Value, Value] = {}  # of values that parts read one each, one that stands for all
        self.shown: dict[_Place, None] = {}  # what is read behind its loop
        self.copies: dict[Value, Value] = {}  # of what is made in no row
        self.inside: dict[_Place, Value] = {}  # what the bodies of loops make
        self.behind: dict[_Place, Value] = {}  # what leaves them

    def run(self) -> Rolled:
        main, stand_ins, ops = self.module.main, dict[Op, Op](), list[Op]()
        wiring = [self.wiring(k) for k in range(len(self.rows))]
        for i, op in enumerate(self.ops):
            if i not in self.row_of:
                self.show(self.read(op))
        returned = Counter(place for v in main.body.returns if (place := self.place(v)))
        self.shown.update(
            (place, None) for place, n in returned.items() if 2 * n < self.rows[place.row].parts
        )
        for value in main.body.args:
            self.copies[value] = Value(value.type, value.layout, value.name)
        place = {op: i for i, op in enumerate(self.ops)}
        for op in [*self.constants, *self.ops]:
            i = place.get(op, -1)
            k = self.row_of.get(i)
            if k is None:
                ops.append(copy := _copy(op, {v: self.outside(v) for v in self.read(op)}))
                stand_ins[op] = copy
                self.copies.update(zip(op.results, copy.results, strict=True))
            elif i == self.rows[k].start:
                ops += self.loop(k, wiring[k], stand_ins)
        ends: dict[Value, dict[str, Any]] = {}
        for v, attrs in zip(main.body.returns, main.result_attrs, strict=True):
            there = self.outside(v) if self.place(v) in self.shown else self.made_once(v)
            ends.setdefault(there, attrs)
        body = Block([self.copies[v] for v in main.body.args], ops, list(ends))
        function = Function("main", body, True, main.arg_attrs, list(ends.values()))
        functions = {**self.module.functions, "main": function}
        module = Module(self.module.mesh, functions, self.module.name, self.module.attrs)
        return Rolled(module, [(op, stand_ins[op]) for op in main.body.ops])

    def read(self, op: Op) -> list[Value]:
        """What an op reads that is made outside of all regions."""
        return [v for v in reads(op) if v in self.outer] if op.regions else op.operands

    def part(self, value: Value) -> int:
        """In which part of its row a value is made."""
        i = self.made[value][0]
        row = self.rows[self.row_of[i]]
        return (i - row.start) // row.period

    def place(self, value: Value) -> _Place | None:
        """Where in a row it is made; None if in no row."""
        i, j = self.made.get(value, (-1, 0))
        if i not in self.row_of:
            return None
        row = self.rows[self.row_of[i]]
        return _Place(self.row_of[i], (i - row.start) % row.period, j)

    def made_once(self, source: Source) -> Value:
        """The copy of a value, as it is read by what runs as often: in the body of the loop that makes it."""
        assert not isinstance(source, _Carried)
        if isinstance(source, Value):
            place = self.place(source)
            return self.inside[place] if place else self.copies[source]
        return self.inside[source]

    def show(self, values: Iterable[Value]) -> None:
        self.shown.update((place, None) for v in values if (place := self.place(v)))

    def outside(self, value: Value) -> Value:
        """The copy of a value, as it is read by what is in no row."""
        place = self.place(value)
        return self.behind[place] if place else self.copies[value]

    # ------------------------------------------------------------------------------------------ what parts read
    def alike_in(self, k: int) -> Iterator[list[Op]]:
        """Per op of a part of row `k` that and those of the other parts."""
        row = self.rows[k]
        for i in range(row.start, row.start + row.period):
            yield self.ops[i : row.end : row.period]

    def is_wired_alike(self, k: int) -> bool:
        """Whether ops read as many values in all parts: regions may differ in what is of their own."""
        return all(
            len({len(self.read(op)) for op in alike}) == 1 for alike in self.alike_in(k) if alike[0].regions
        )

    def wiring(self, k: int) -> _Wiring:
        """What the parts of row `k` read; notes what they read behind other loops."""
        wiring = _Wiring([], {}, {}, {})
        for alike in self.alike_in(k):
            parts = [self.read(op) for op in alike]
            wiring.sources.append([self.source(k, values, wiring) for values in zip(*parts, strict=True)])
        self.show([*wiring.through, *(c.first for c in wiring.carried if c.first)])
        return wiring

    def source(self, k: int, values: tuple[Value, ...], wiring: _Wiring) -> Source:
        """Where the parts of row `k` have one operand of an op, which is a value for each part."""
        middle = len(values) // 2
        first, value = values[0], values[middle]
        place, start = self.place(value), self.place(first)
        if place and place.row == k:
            if self.part(value) == middle:
                return place
            usual = first.type == value.type and not (start and start.row == k)
            carried = _Carried(place, first if usual else None)
            wiring.carried[carried] = None
            return carried
        if all(v is value for v in values):
            if value not in self.constant and value.type.rank:
                wiring.through[value] = None
        elif place is None:
            value = next((self.one_of[v] for v in values if v in self.one_of), value)
            self.one_of.update(dict.fromkeys(values, value))
            wiring.each[value] = None
        return value

    # ------------------------------------------------------------------------------------------ loops
    def loop(self, k: int, wiring: _Wiring, stand_ins: dict[Op, Op]) -> list[Op]:
        """The loop that stands for a row, behind what it begins with."""
        row, ops = self.rows[k], list[Op]()
        read_on = {c.place for c in wiring.carried}
        only_shown = [_Carried(p, None) for p in self.shown if p.row == k and p not in read_on]
        carried = [*wiring.carried, *only_shown]
        starts: list[Value] = []
        for place, first in carried:
            if first is None:
                made = self.ops[row.start + place.offset].results[place.j]
                assert isinstance(made.type, TensorType)
                ops.append(constant(made.type, 0))
            starts.append(ops[-1].result if first is None else self.outside(first))
        starts += map(self.outside, wiring.through)
        args = [Value(v.type) for v in starts]
        there: dict[Source, Value] = dict(zip([*carried, *wiring.through], args, strict=True))
        body = Block(args, [], [])
        for offset, (alike, sources) in enumerate(zip(self.alike_in(k), wiring.sources, strict=True)):
            op = alike[len(alike) // 2]
            env: dict[Value, Value] = {}
            for v, source in zip(self.read(op), sources, strict=True):
                env[v] = there.get(source) or self.made_once(source)
            body.ops.append(copy := _copy(op, env))
            stand_ins.update(dict.fromkeys(alike, copy))
            self.inside.update((_Place(k, offset, j), v) for j, v in enumerate(copy.results))
        body.returns = [self.inside[c.place] for c in carried] + args[len(carried) :]
        ends = [Value(v.type) for v in starts]
        self.behind.update((c.place, v) for c, v in zip(carried, ends, strict=False))
        never = constant(TensorType((), "i1"), False)
        condition = Block([Value(v.type) for v in starts], [never], [never.result])
        each = tuple(self.copies[v] for v in wiring.each)
        ops.append(Op("while", starts, ends, {"trips": row.parts, "each": each}, (condition, body)))
        return ops


def _copy(op: Op, env: Mapping[Value, Value]) -> Op:
    results = [Value(v.type, v.layout, v.name) for v in op.results]
    operands = [env.get(v, v) for v in op.operands]
    return Op(op.name, operands, results, op.attrs, clone_regions(op.regions, env), op.loc)
