"""Improvement of an assignment by dynamic programming: one mesh axis at a time, all ops of the program together.

Moves of one op at a time can't leave a plateau: where a reduction should move from the end of a chain of ops to its start,
every single move costs as much as it saves. Here every op may change its strategy on one axis at once:

1. Forward, each value gets a table: per layout that it may have, the cheapest cost of everything before it.
2. Backward, each op takes the strategy that is cheapest for its operands' tables and for what its users, which have
   chosen already, want of its results.

The carries of a loop choose like ops do; what is inside a loop counts as often as it runs. That is exact on trees. On graphs
it is a proposal: each connected group of its changes is kept only if the program's true cost gets lower by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ir.graph import Block, Op, Value
from ...ir.layout import Layout
from ...ir.types import Type
from ..rules.base import Choice
from .assignment import exchange
from .axis_ways import AxisWays
from .memo import Table
from .proposal import Node, accept

if TYPE_CHECKING:
    from .engine import Engine

Reached = dict[Layout, float]
Others = int | tuple[Layout, ...]  # how many users share a value's cost, or what its other users want


def improve(
    engine: Engine, block: Block, views: Iterable[View], leap: bool = False, turned: bool = False
) -> float:
    """Decides everything in a program again, for each axis under each view. Returns how much cheaper it is now. `leap`:
    changes are kept also where they don't pay by themselves, as another start. turned: the last axis is decided first."""
    memory, gain = engine.memory, 0.0
    axes = [axis for axis in engine.mesh.shape if engine.mesh.axis_size(axis) > 1]
    for axis in reversed(axes) if turned else axes:
        for view in views:
            key = (memory.state, axis, view)
            known = memory.passes.get(key)
            if known is None:
                before = dict(memory.ends)
                chosen = _Pass(engine, block, axis, view).run()
                known = memory.passes[key] = (
                    chosen,
                    dict(memory.ends),
                    bool(chosen) or memory.ends != before,
                )
            chosen, ends, changes = known
            memory.ends = dict(ends)
            if changes:
                gain += accept(engine, chosen, leap)
                engine.arrive()
    return gain


class View(Enum):
    """How an op sees the other users of its operands. Graphs are no trees, so none is exact; together they find more."""

    ALONE = 0  # there are none: it pays for an operand and its relayouts alone
    SHARED = 1  # they will want what it wants: the operand's own cost is divided by their number
    PRESENT = 2  # they want what they want now: it pays for what it adds
    STEADY = 3  # as PRESENT, and a loop's carry pays for what its users inside want now; else they follow it, as sums do


class _Row(NamedTuple):
    """An op, the ways to run it, the tables of its operands, and how often it runs."""

    op: Op
    options: tuple[Choice, ...]
    tables: tuple[Table, ...]
    ids: tuple[int, ...]  # of the tables
    others: tuple[Others, ...]
    weight: int


class _Enter(NamedTuple):
    """A loop begins: per carry the layouts that it may have, and the cost of entering in each."""

    op: Op
    tables: list[Table]
    weight: int


class _Leave(NamedTuple):
    """A loop or a branching ends: per result the layouts that it may have, and the cost of all before."""

    op: Op
    tables: list[Table]
    weight: int


class _Pass:
    """All decisions of a program, on one axis. Relayouts that the user wrote and manual regions stay as they are."""

    def __init__(self, engine: Engine, block: Block, axis: str, view: View):
        self.engine, self.block, self.axis, self.view = engine, block, axis, view
        self.costs, self.memory = engine.costs, engine.memory
        self.new_wants: dict[Value, dict[Layout, int]] = {}  # what users want of values, where that changed
        self.uses = (
            {v: sum(users.values()) for v, users in engine.demands.items()} if view is View.SHARED else {}
        )
        self.tables: dict[Value, Table] = {}
        self.plan: list[_Row | _Enter | _Leave] = []
        self.chosen: dict[Node, Any] = {}
        self.ways = AxisWays(engine, block, axis)
        self.decided: dict[Value, dict[Layout, None]] = {}  # what users want that are decided already

    def run(self) -> dict[Node, Any]:
        """What should change."""
        engine = self.engine
        for v in self.block.args:
            layout = engine.layouts[v]
            cut = engine.cut_args.get(v, layout)
            costs = {layout: 0.0, cut: engine.costs.relayout(v.type, layout, cut)}
            self.tables[v] = self.memory.table(costs)
        self.forward(self.block, 1)
        for row in reversed(self.plan):
            if isinstance(row, _Row):
                self.decide(row)
            elif isinstance(row, _Leave):
                self.leave(row)
            else:
                self.enter(row)
        return self.chosen

    # ------------------------------------------------------------------------------------------ forward
    def forward(self, block: Block, weight: int) -> None:
        tables, memory = self.tables, self.memory
        for op in block.ops:
            if op.name == "while":
                self.forward_loop(op, weight)
                continue
            if op.name in ("case", "if"):
                self.forward_branches(op, weight)
                continue
            ins = tuple([tables[v] for v in op.operands])
            ids = tuple([id(t) for t in ins])
            options = self.ways.of(op, ins, ids)
            if len(options) == 1:
                for v, layout in zip(op.results, options[0].results, strict=True):
                    tables[v] = memory.only(layout)
                continue
            there = self.others(op)
            row = _Row(op, options, ins, ids, there, weight)
            self.plan.append(row)
            key = (id(options), ids, there, weight)
            results = memory.forward.get(key)
            if results is None:
                results = memory.forward[key] = self.results(row)
            tables.update(zip(op.results, results, strict=True))

    def forward_loop(self, op: Op, weight: int) -> None:
        """The body runs from what it costs to enter it and to come back to its start. What its end costs is known from
        the pass before; the first pass looks ahead."""
        body = op.regions[1]
        inner = weight * self.engine.trips(op)
        ends = self.memory.ends
        if (op, self.axis) not in ends:
            start = len(self.plan)
            self.enter_loop(op, weight, inner)
            del self.plan[start:]
        enter = self.enter_loop(op, weight, inner)
        leave: list[Table] = []
        for i, v in enumerate(body.returns):
            leave.append(
                enter[i] if self.invariant(op, i) else self.table(v, [x for x, _ in enter[i]], 1, inner)
            )
        self.tables.update(zip(op.results, leave, strict=True))
        self.plan.append(_Leave(op, leave, weight))

    def enter_loop(self, op: Op, weight: int, inner: int) -> list[Table]:
        condition, body = op.regions
        known = self.memory.ends.get((op, self.axis))
        enter: list[Table] = []
        for i, (v, there) in enumerate(zip(op.operands, self.others(op), strict=True)):
            costs = dict(self.table(v, self.placements(op, i), there, weight))
            if known is not None and self.view is View.ALONE and not self.invariant(op, i):
                costs = {p: c + self.reach(v.type, known[i], 1, p, inner) for p, c in costs.items()}
            table = self.memory.table(costs)
            enter.append(table)
            self.tables[condition.args[i]] = self.tables[body.args[i]] = table
        self.plan.append(_Enter(op, enter, weight))
        self.forward(condition, inner)
        self.forward(body, inner)
        self.memory.ends[op, self.axis] = [self.tables[v] for v in body.returns]
        return enter

    def forward_branches(self, op: Op, weight: int) -> None:
        for region in op.regions:
            self.forward(region, weight)
        leave: list[Table] = []
        for i in range(len(op.results)):
            ways = self.placements(op, i)
            tables = [dict(self.table(region.returns[i], ways, 1, weight)) for region in op.regions]
            leave.append(self.memory.table({p: sum(t[p] for t in tables) for p in ways}))
        self.tables.update(zip(op.results, leave, strict=True))
        self.plan.append(_Leave(op, leave, weight))

    def table(self, value: Value, ways: list[Layout], others: Others, weight: int) -> Table:
        """What it costs to have a value in each of some layouts."""
        table = self.tables[value]
        return self.memory.table({p: self.reach(value.type, table, others, p, weight) for p in ways})

    def invariant(self, op: Op, i: int) -> bool:
        return op.name == "while" and op.regions[1].returns[i] is op.regions[1].args[i]

    def placements(self, op: Op, i: int) -> list[Layout]:
        """The layouts that a carry (or a branch's result) may have: as now, or with the axis elsewhere."""
        engine, layout = self.engine, self.engine.choices[op].results[i]
        regions = op.result_regions
        seen = [layout, *(engine.layouts[r.returns[i]] for r in regions), *self.users(op.results[i])]
        if op.name == "while":
            seen += [x for x, _ in self.tables[op.operands[i]]]
            seen += self.users(regions[0].args[i])
            if ends := self.memory.ends.get((op, self.axis)):
                seen += [x for x, _ in ends[i]]
        return self.ways.of_carry(op.results[i], layout, seen)

    def users(self, value: Value) -> dict[Layout, int]:
        """What the users of a value want: those that are decided already and the others."""
        return self.new_wants.get(value) or self.engine.demands.get(value) or {}

    def others(self, op: Op) -> tuple[Others, ...]:
        """Per operand what the other users count for."""
        if self.view is View.ALONE:
            return (1,) * len(op.operands)
        if self.view is View.SHARED:
            return tuple([self.uses[v] for v in op.operands])
        found: list[Others] = []
        new_wants, demands = self.new_wants, self.engine.demands
        for v, own in zip(op.operands, self.engine.choices[op].demands, strict=True):
            users = new_wants.get(v) or demands[v]
            same = users[own] > 1
            # who takes a partial now would take anything
            found.append(tuple([x for x in users if (same or x is not own) and not x.partial]))
        return tuple(found)

    def results(self, row: _Row) -> tuple[Table, ...]:
        found: list[dict[Layout, float]] = [{} for _ in row.op.results]
        for option, cost in zip(row.options, self.spent(row), strict=True):
            for entries, layout in zip(found, option.results, strict=True):
                entries[layout] = min(cost / len(found), entries.get(layout, cost))
        return tuple([self.memory.table(entries) for entries in found])

    def spent(self, row: _Row) -> list[float]:
        """Per way to run an op what that and its operands cost."""
        key = (id(row.options), row.ids, row.others, row.weight)
        known = self.memory.spent.get(key)
        if known is None:
            rows = zip(row.op.operands, row.tables, row.others, strict=True)
            reached = [(v.type, t, x, self.reached(v.type, t, x, row.weight)) for v, t, x in rows]
            known = self.memory.spent[key] = [
                self.spent_on(option, row.weight, reached) for option in row.options
            ]
        return known

    def spent_on(
        self, option: Choice, weight: int, reached: list[tuple[Type, Table, Others, Reached]]
    ) -> float:
        total = 0.0
        for (type, table, others, known), layout in zip(reached, option.demands, strict=True):
            cost = known.get(layout)
            if cost is None:
                cost = known[layout] = self._reach(type, table, others, layout, weight)
            total += cost
        return option.cost * weight + total

    def reached(self, type: Type, table: Table, others: Others, weight: int) -> Reached:
        """The cheapest ways to have a value in layouts too, as far as they are known."""
        return self.memory.reach.setdefault((type, id(table), others, weight), {})

    def reach(self, type: Type, table: Table, others: Others, layout: Layout, weight: int) -> float:
        """The cheapest way to have a value in `layout` too."""
        known = self.reached(type, table, others, weight)
        cost = known.get(layout)
        if cost is None:
            cost = known[layout] = self._reach(type, table, others, layout, weight)
        return cost

    def _reach(self, type: Type, table: Table, others: Others, layout: Layout, weight: int) -> float:
        cheapest = self.costs.cheapest
        if isinstance(others, int):
            costs = table if others == 1 else [(p, c / others) for p, c in table]
            return cheapest(type, costs, (layout,), weight)
        if layout in others:
            return 0.0
        key = (type, id(table), others, weight)
        without = self.memory.without.get(key)
        if without is None:
            without = self.memory.without[key] = cheapest(type, table, others, weight)
        return cheapest(type, table, (*others, layout), weight) - without

    # ------------------------------------------------------------------------------------------ backward
    def decide(self, row: _Row) -> None:
        op, options = row.op, row.options
        new, now = self.new_wants, self.engine.demands
        guesses = self.view in (View.ALONE, View.SHARED)  # what other users want, until they are decided
        if not guesses:
            if new and not new.keys().isdisjoint(op.operands):
                row = row._replace(others=self.others(op))
        elif not self.decided.keys().isdisjoint(op.operands):
            there = [self.decided.get(v) for v in op.operands]
            others = zip(there, row.others, strict=True)
            row = row._replace(others=tuple([tuple(x) if x else n for x, n in others]))
        wanted = tuple([tuple(new.get(v) or now.get(v) or ()) for v in op.results])
        free = self.engine.free_results
        freed = tuple([v in free for v in op.results]) if free else ()
        key = (id(options), row.ids, row.others, wanted, freed, row.weight)
        best = self.memory.decisions.get(key)
        if best is None:
            best = self.memory.decisions[key] = self.best(row)
        if guesses:
            for v, x in zip(op.operands, best.demands, strict=True):
                self.decided.setdefault(v, {})[x] = None
        if best is options[0]:
            return
        self.chosen[op] = best
        for v, a, b in zip(op.operands, self.engine.choices[op].demands, best.demands, strict=True):
            self.replace(v, a, b)

    def wanted(self, value: Value) -> tuple[Layout, ...] | None:
        return tuple(self.users(value)) or None

    def replace(self, value: Value, old: Layout, new: Layout) -> None:
        if old is not new:
            users = self.new_wants.get(value)
            if users is None:
                users = self.new_wants[value] = dict(self.engine.demands[value])
            exchange(users, old, new)

    def best(self, row: _Row) -> Choice:
        op = row.op
        wanted = [self.wanted(v) for v in op.results]
        best, least = row.options[0], float("inf")
        for option, cost in zip(row.options, self.spent(row), strict=True):
            for v, layout, demands in zip(op.results, option.results, wanted, strict=True):
                if cost < least:
                    limit = (least - cost) / row.weight
                    cost += row.weight * self.serve(v, layout, demands, limit)
            if cost < least - 1e-9:
                best, least = option, cost
        return best

    def serve(
        self, value: Value, layout: Layout, demands: tuple[Layout, ...] | None, limit: float = math.inf
    ) -> float:
        if value in self.engine.free_results:
            demands = (*(demands or ()), self.engine.free_result(value.type, layout))
        return self.costs.serve(value.type, layout, demands, limit)

    def leave(self, row: _Leave) -> None:
        """The layouts in which a loop or a branching ends."""
        for i, (v, table) in enumerate(zip(row.op.results, row.tables, strict=True)):
            if len(table) > 1 and not self.invariant(row.op, i):
                wanted = self.wanted(v)
                costs = [c + row.weight * self.serve(v, p, wanted) for p, c in table]
                if self.view is View.STEADY and row.op.name == "while":
                    costs = [c + self.inside(row, i, p) for c, (p, _) in zip(costs, table, strict=True)]
                self.settle(row.op, i, table[costs.index(min(costs))][0])

    def inside(self, row: _Leave, i: int, layout: Layout) -> float:
        """What the users in a loop of its carry `i` pay, if that has some layout."""
        args = [region.args[i] for region in row.op.regions]
        inner = row.weight * self.engine.trips(row.op)
        return inner * sum(self.serve(v, layout, tuple(self.users(v))) for v in args)

    def enter(self, row: _Enter) -> None:
        """What only passes through a loop has the layout that suits its users inside and behind."""
        op, body = row.op, row.op.regions[1]
        inner = row.weight * self.engine.trips(op)
        for i, (v, table) in enumerate(zip(op.results, row.tables, strict=True)):
            arg, now = body.args[i], self.engine.choices[op].results[i]
            if len(table) > 1 and self.invariant(op, i):
                users = self.users(arg)
                inside = tuple(
                    [x for x, n in users.items() if x is not now or n > 1]
                )  # without its own return
                after = self.wanted(v)
                costs = [
                    c + inner * self.serve(arg, p, inside) + row.weight * self.serve(v, p, after)
                    for p, c in table
                ]
                self.settle(op, i, table[costs.index(min(costs))][0])
            self.replace(op.operands[i], now, self.chosen.get((op, i), now))

    def settle(self, op: Op, i: int, layout: Layout) -> None:
        now = self.engine.choices[op].results[i]
        if layout is not now:
            self.chosen[op, i] = layout
            for region in op.result_regions:
                self.replace(region.returns[i], now, layout)
