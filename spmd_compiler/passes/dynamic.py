"""Improvement of an assignment by dynamic programming: one mesh axis at a time, all ops of a block together.

Sweeps that change one op at a time can't leave a plateau: where a reduction should move from the end of a chain of ops to
its start, every single move costs as much as it saves. Here every op may change its strategy on one axis at once:

1. Forward, each value gets a table: per layout that it may have, the cheapest cost of everything before it. A value with n
   users gives each of them an n-th of its cost.
2. Backward, each op takes the strategy that is cheapest for its operands' tables and for what its users, which have
   chosen already, want of its results.

That is exact on trees. Graphs are no trees, so the engine keeps the outcome only if its true cost is lower.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..ir.graph import Block, Op, Value
from ..ir.layout import Layout
from ..ir.types import Type
from .rules.base import Choice, Rule
from .rules.table import CONTROL

if TYPE_CHECKING:
    from .propagate import Engine

FIXED = CONTROL | {"relayout"}
Table = tuple[
    tuple[Layout, float], ...
]  # the layouts that a value may have, with the cost of what comes before


def improve(engine: Engine, block: Block, leave: Sequence[Layout | None]) -> bool:
    """Decides the ops of a block, and of the blocks inside, again. `leave`: the layouts in which the block's values
    leave it; None: as the compiler likes. True if anything changed."""
    changed = False
    for axis in engine.mesh.shape:
        if engine.mesh.axis_size(axis) > 1:
            changed |= _Pass(engine, block, leave, axis).run()
    return changed


class Memory:
    """What the passes over a program share: equal ops in equal circumstances are decided once."""

    def __init__(self) -> None:
        self.candidates: dict[Any, tuple[Choice, ...]] = {}
        self.forward: dict[Any, tuple[Table, ...]] = {}
        self.decisions: dict[Any, Choice] = {}
        self.reach: dict[Any, float] = {}
        self.tables: dict[Table, Table] = {}
        self.alive: list[Any] = []  # keeps what keys name by id

    def table(self, entries: dict[Layout, float]) -> Table:
        """An interned table whose smallest cost is 0."""
        least = min(entries.values())
        table = tuple([(layout, round(cost - least, 3)) for layout, cost in entries.items()])
        return self.tables.setdefault(table, table)


class _Pass:
    """All ops of one block, on one axis. Ops that hold blocks, and relayouts that the user wrote, stay as they are."""

    def __init__(self, engine: Engine, block: Block, leave: Sequence[Layout | None], axis: str):
        self.engine, self.block, self.axis = engine, block, axis
        self.costs, self.memory = engine.costs, engine.memory
        self.leave = list(zip(block.returns, leave, strict=True))
        self.free = {v for v, layout in self.leave if layout is None}
        self.uses: dict[Value, int] = {}
        for op in block.ops:
            for v in op.operands:
                self.uses[v] = self.uses.get(v, 0) + 1
        for v in block.returns:
            self.uses[v] = self.uses.get(v, 0) + 1

    def run(self) -> bool:
        engine = self.engine
        old = {op: engine.choices[op] for op in self.block.ops}
        new = self.backward(self.forward())
        changed = [op for op in self.block.ops if new[op] is not old[op]]
        if not changed or self.total(new) >= self.total(old) - 1e-6:
            return False
        for op in changed:
            engine.choose(op, new[op])
        return True

    def forward(self) -> list[tuple[Op, tuple[Choice, ...], tuple[Table, ...], tuple[int, ...]]]:
        engine, memory, uses = self.engine, self.memory, self.uses
        tables = {v: memory.table({engine.layouts[v]: 0.0}) for v in self.block.args}
        plan = []
        for op in self.block.ops:
            ins: list[Table] = []
            for v in op.operands:
                table = tables.get(v)
                if table is None:  # a value of an outer block
                    table = tables[v] = memory.table({engine.layouts[v]: 0.0})
                ins.append(table)
            options = self.candidates(op, ins)
            users = tuple([uses[v] for v in op.operands])
            row = (op, options, tuple(ins), users)
            plan.append(row)
            key = (id(options), *map(id, ins), users)
            results = memory.forward.get(key)
            if results is None:
                results = memory.forward[key] = self.results(*row)
            tables.update(zip(op.results, results, strict=True))
        return plan

    def candidates(self, op: Op, tables: list[Table]) -> tuple[Choice, ...]:
        """The ways to run the op that differ from the present one on this axis only; the present one comes first."""
        choice = self.engine.choices[op]
        candidates = self.memory.candidates
        if op.name in FIXED or any(x.blocks or x.has_pieces for x in (*choice.demands, *choice.results)):
            key = (choice.demands, choice.results)
            return candidates.setdefault(key, (choice._replace(cost=0.0),))
        rule = self.engine.book.rule(op)
        kinds = frozenset(
            [k for t in tables for x, _ in t if isinstance(k := x.placement.get(self.axis), str)]
        )
        key = (id(rule), id(choice.picks), self.axis, kinds)
        found = candidates.get(key)
        if found is None:
            self.memory.alive.append(choice.picks)
            found = candidates[key] = self.ways(rule, op, choice, kinds)
        return found

    def ways(self, rule: Rule, op: Op, choice: Choice, kinds: frozenset[str]) -> tuple[Choice, ...]:
        """Partials are passed on only of `kinds` that some operand may have."""
        mesh, axis = self.costs.mesh, self.axis
        order, picks = choice.order, choice.picks
        if axis not in order:
            names = list(mesh.shape)
            at = sum(names.index(a) < names.index(axis) for a in order)
            order = (*order[:at], axis, *order[at:])
            picks = (*picks[:at], rule.strategies[0], *picks[at:])
        at = order.index(axis)
        strategies = [
            s for s in rule.strategies if all(not isinstance(p, str) or p in kinds for p in s.operands)
        ]
        ways: list[Choice] = []
        for s in dict.fromkeys((picks[at], *strategies)):
            pick = (*picks[:at], s, *picks[at + 1 :])
            if s is picks[at] or rule.divides(order, pick, mesh):
                way = rule.way(order, pick, op.operands, op.results, mesh)
                if way is not None:
                    ways.append(way)
        return tuple(ways)

    def reach(self, type: Type, table: Table, users: int, layout: Layout) -> float:
        """The cheapest way to have a value in `layout`, from its table; the value's own cost is shared by its users."""
        key = (type, id(table), users, layout)
        hit = self.memory.reach.get(key)
        if hit is None:
            relayout = self.costs.relayout
            hit = self.memory.reach[key] = min([c / users + relayout(type, p, layout) for p, c in table])
        return hit

    def results(
        self, op: Op, options: tuple[Choice, ...], tables: tuple[Table, ...], users: tuple[int, ...]
    ) -> tuple[Table, ...]:
        found: list[dict[Layout, float]] = [{} for _ in op.results]
        for option in options:
            cost = option.cost + sum(
                [
                    self.reach(v.type, t, n, x)
                    for v, x, t, n in zip(op.operands, option.demands, tables, users, strict=True)
                ]
            )
            for entries, layout in zip(found, option.results, strict=True):
                entries[layout] = min(cost / len(found), entries.get(layout, cost))
        return tuple([self.memory.table(entries) for entries in found])

    def backward(
        self, plan: list[tuple[Op, tuple[Choice, ...], tuple[Table, ...], tuple[int, ...]]]
    ) -> dict[Op, Choice]:
        memory = self.memory
        demands: dict[Value, dict[Layout, None]] = {}
        for v, layout in self.leave:
            if layout is not None:
                demands.setdefault(v, {})[layout] = None
        self.captured(demands)
        chosen: dict[Op, Choice] = {}
        for op, options, tables, users in reversed(plan):
            if len(options) == 1:
                best = options[0]
            else:
                there = tuple([tuple(demands.get(v, ())) for v in op.operands])
                wanted = tuple([tuple(demands[v]) if v in demands else None for v in op.results])
                free = tuple([v in self.free for v in op.results]) if self.free else ()
                key = (id(options), *map(id, tables), users, there, wanted, free)
                hit = memory.decisions.get(key)
                if hit is None:
                    hit = memory.decisions[key] = self.decide(op, options, tables, users, there, wanted)
                best = hit
            chosen[op] = (
                best
                if best.demands != self.engine.choices[op].demands
                or best.results != self.engine.choices[op].results
                else self.engine.choices[op]
            )
            for v, layout in zip(op.operands, best.demands, strict=True):
                demands.setdefault(v, {})[layout] = None
        return chosen

    def decide(
        self,
        op: Op,
        options: tuple[Choice, ...],
        tables: tuple[Table, ...],
        users: tuple[int, ...],
        there: tuple[tuple[Layout, ...], ...],
        wanted: tuple[tuple[Layout, ...] | None, ...],
    ) -> Choice:
        best, least = options[0], float("inf")
        for option in options:
            cost = option.cost
            for v, layout, table, n, others in zip(
                op.operands, option.demands, tables, users, there, strict=True
            ):
                if layout not in others:  # else it is made for another user anyway
                    cost += self.reach(v.type, table, n, layout)
            for v, layout, demands in zip(op.results, option.results, wanted, strict=True):
                cost += self.serve(v, layout, demands)
            if cost < least - 1e-9:
                best, least = option, cost
        return best

    def serve(self, value: Value, layout: Layout, demands: tuple[Layout, ...] | None) -> float:
        if value in self.free:
            demands = (*(demands or ()), self.engine.free_result(value.type, layout))
        return self.costs.serve(value.type, layout, demands)

    def captured(self, demands: dict[Value, dict[Layout, None]]) -> None:
        """What ops in blocks inside this one want of its values."""
        for op in self.block.ops:
            if op.name in CONTROL and op.name != "manual_computation":
                for region in op.regions:
                    for inner in region.walk():
                        choice = self.engine.choices.get(inner)  # none inside reducers
                        for v, layout in zip(inner.operands, choice.demands if choice else (), strict=False):
                            if v in self.uses:
                                demands.setdefault(v, {})[layout] = None

    def total(self, choices: dict[Op, Choice]) -> float:
        """What the block costs with these choices."""
        demands: dict[Value, dict[Layout, None]] = {}
        self.captured(demands)
        for v, layout in self.leave:
            if layout is not None:
                demands.setdefault(v, {})[layout] = None
        layouts = {v: self.engine.layouts[v] for v in self.block.args}
        cost = 0.0
        for op, choice in choices.items():
            for v, layout in zip(op.operands, choice.demands, strict=True):
                demands.setdefault(v, {})[layout] = None
            layouts.update(zip(op.results, choice.results, strict=True))
            if op.name not in FIXED:
                cost += self.engine.own_cost(op, choice)
        for v, wanted in demands.items():
            if v not in self.free:
                layout = layouts.get(v)
                cost += self.serve(v, self.engine.layouts[v] if layout is None else layout, tuple(wanted))
        for v in self.free:
            layout = layouts.get(v)
            wanted = tuple(demands.get(v, ()))
            cost += self.serve(v, self.engine.layouts[v] if layout is None else layout, wanted)
        return cost
