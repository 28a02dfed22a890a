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

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import networkx as nx

from ..ir.graph import Block, Op, Value
from ..ir.layout import Layout
from ..ir.types import Type
from .rules.base import Choice, Rule
from .rules.table import CONTROL

if TYPE_CHECKING:
    from .propagate import Engine

Others = int | tuple[Layout, ...]
FIXED = CONTROL | {"relayout"}
Table = tuple[
    tuple[Layout, float], ...
]  # the layouts that a value may have, with the cost of what comes before


def improve(engine: Engine, block: Block) -> bool:
    """Decides the ops of a block again, twice per axis: once in the hope that the users of a value will agree, once with
    what they want now. True if anything changed."""
    changed = False
    for axis in engine.mesh.shape:
        if engine.mesh.axis_size(axis) > 1:
            for hope in (True, False):
                changed |= _Pass(engine, block, axis, hope).run()
    return changed


class _Row(NamedTuple):
    """An op, the ways to run it, and the tables of its operands."""

    op: Op
    options: tuple[Choice, ...]
    tables: tuple[Table, ...]


class Memory:
    """What the passes over a program share: equal ops in equal circumstances are decided once."""

    def __init__(self) -> None:
        self.candidates: dict[Any, tuple[Choice, ...]] = {}
        self.forward: dict[Any, tuple[Table, ...]] = {}
        self.decisions: dict[Any, Choice] = {}
        self.reach: dict[Any, float] = {}
        self.tables: dict[Table, Table] = {}
        self.kinds: dict[Any, frozenset[str] | None] = {}
        self.alive: list[Any] = []  # keeps what keys name by id

    def table(self, entries: dict[Layout, float]) -> Table:
        """An interned table whose smallest cost is 0."""
        least = min(entries.values())
        table = tuple([(layout, round(cost - least, 3)) for layout, cost in entries.items()])
        return self.tables.setdefault(table, table)


class _Pass:
    """All ops of one block, on one axis. Ops that hold blocks, and relayouts that the user wrote, stay as they are."""

    def __init__(self, engine: Engine, block: Block, axis: str, hope: bool):
        self.engine, self.block, self.axis, self.hope = engine, block, axis, hope
        self.costs, self.memory = engine.costs, engine.memory
        self.wants = {v: dict(engine.demands.get(v, ())) for v in _values(block)}

    def run(self) -> bool:
        engine = self.engine
        new = self.backward(self.forward())
        changed = [op for op, choice in new.items() if choice is not engine.choices[op]]
        taken = [self.take(ops, new) for ops in self.components(changed, new)]
        return any(taken)

    # ------------------------------------------------------------------------------------------ forward
    def forward(self) -> list[_Row]:
        engine, memory = self.engine, self.memory
        tables = {v: memory.table({engine.layouts[v]: 0.0}) for v in self.block.args}
        plan: list[_Row] = []
        for op in self.block.ops:
            ins: list[Table] = []
            for v in op.operands:
                table = tables.get(v)
                if table is None:  # a value of an outer block
                    table = tables[v] = memory.table({engine.layouts[v]: 0.0})
                ins.append(table)
            options = self.candidates(op, ins)
            row = _Row(op, options, tuple(ins))
            plan.append(row)
            if len(options) == 1:
                for v, layout in zip(op.results, options[0].results, strict=True):
                    tables[v] = memory.table({layout: 0.0})
                continue
            there = self.others(op)
            key = (id(options), *map(id, ins), there)
            results = memory.forward.get(key)
            if results is None:
                results = memory.forward[key] = self.results(row, there)
            tables.update(zip(op.results, results, strict=True))
        return plan

    def others(self, op: Op) -> tuple[Others, ...]:
        """Per operand what the other users count for: how many there are, or which layouts they want."""
        choice = self.engine.choices[op]
        found: list[Others] = []
        for v, own in zip(op.operands, choice.demands, strict=True):
            wants = self.wants.get(v)
            if wants is None:
                found.append(1 if self.hope else ())
            elif self.hope:
                found.append(sum(wants.values()))
            else:
                found.append(tuple([x for x, n in wants.items() if x is not own or n > 1]))
        return tuple(found)

    def candidates(self, op: Op, tables: list[Table]) -> tuple[Choice, ...]:
        """The ways to run the op that differ from the present one on this axis only; the present one comes first."""
        choice = self.engine.choices[op]
        candidates = self.memory.candidates
        if op.name in FIXED or any(x.blocks or x.has_pieces for x in (*choice.demands, *choice.results)):
            key = (choice.demands, choice.results)
            return candidates.setdefault(key, (choice._replace(cost=0.0),))
        kinds = self.kinds(tables)
        if kinds is None and not any(self.axis in x.axes for v in op.results for x in self.wants[v]):
            return candidates.setdefault(choice, (choice,))  # the axis has no business here
        rule = self.engine.book.rule(op)
        key = (id(rule), id(choice.picks), self.axis, kinds)
        found = candidates.get(key)
        if found is None:
            self.memory.alive.append(choice.picks)
            found = candidates[key] = self.ways(rule, op, choice, kinds)
        return found

    def kinds(self, tables: list[Table]) -> frozenset[str] | None:
        """The kinds of partials over the axis that some operand may be; None if none has the axis at all."""
        found: frozenset[str] | None = None
        known = self.memory.kinds
        for table in tables:
            key = (id(table), self.axis)
            if key not in known:
                places = [x.placement[self.axis] for x, _ in table if self.axis in x.axes]
                known[key] = frozenset(p for p in places if isinstance(p, str)) if places else None
            kinds = known[key]
            if kinds is not None:
                found = kinds if found is None else found | kinds
        return found

    def ways(self, rule: Rule, op: Op, choice: Choice, kinds: frozenset[str] | None) -> tuple[Choice, ...]:
        """Partials are passed on only of `kinds` that some operand may have."""
        mesh, axis = self.costs.mesh, self.axis
        order, picks = choice.order, choice.picks
        if any(":" in a for a in order):
            return (choice,)  # pieces of axes stay as they are
        if axis not in order:
            names = list(mesh.shape)
            at = sum(names.index(a) < names.index(axis) for a in order)
            order = (*order[:at], axis, *order[at:])
            picks = (*picks[:at], rule.strategies[0], *picks[at:])
        at = order.index(axis)
        passed = kinds or frozenset()
        strategies = [
            s for s in rule.strategies if all(not isinstance(p, str) or p in passed for p in s.operands)
        ]
        ways: list[Choice] = []
        for s in dict.fromkeys((picks[at], *strategies)):
            pick = (*picks[:at], s, *picks[at + 1 :])
            if s is picks[at] or rule.divides(order, pick, mesh):
                way = rule.way(order, pick, op.operands, op.results, mesh)
                if way is not None:
                    ways.append(way)
        return tuple(ways)

    def results(self, row: _Row, there: tuple[Others, ...]) -> tuple[Table, ...]:
        found: list[dict[Layout, float]] = [{} for _ in row.op.results]
        for option in row.options:
            cost = option.cost + self.inputs(row, option, there)
            for entries, layout in zip(found, option.results, strict=True):
                entries[layout] = min(cost / len(found), entries.get(layout, cost))
        return tuple([self.memory.table(entries) for entries in found])

    def inputs(self, row: _Row, option: Choice, there: tuple[Others, ...]) -> float:
        cost = 0.0
        reach = self.memory.reach
        for v, layout, table, others in zip(row.op.operands, option.demands, row.tables, there, strict=True):
            key = (v.type, id(table), others, layout)
            hit = reach.get(key)
            if hit is None:
                hit = reach[key] = self.reach(v.type, table, others, layout)
            cost += hit
        return cost

    def reach(self, type: Type, table: Table, others: Others, layout: Layout) -> float:
        """The cheapest way to have a value in `layout` too."""
        costs = self.costs
        if isinstance(others, int):
            return min([c / others + costs.relayout(type, p, layout) for p, c in table])
        without = min([c + costs.serve(type, p, others) for p, c in table])
        both = others if layout in others else (*others, layout)
        return min([c + costs.serve(type, p, both) for p, c in table]) - without

    # ------------------------------------------------------------------------------------------ backward
    def backward(self, plan: list[_Row]) -> dict[Op, Choice]:
        engine, memory, wants = self.engine, self.memory, self.wants
        decided: dict[Value, dict[Layout, None]] = {}
        chosen: dict[Op, Choice] = {}
        for row in reversed(plan):
            op, options, tables = row
            old = engine.choices[op]
            if len(options) == 1:
                chosen[op] = old
            else:
                there = self.others(op)
                made = tuple([tuple(decided.get(v, ())) for v in op.operands]) if self.hope else ()
                wanted = tuple([self.wanted(v) for v in op.results])
                free = tuple([v in engine.free_results for v in op.results]) if engine.free_results else ()
                key = (id(options), *map(id, tables), there, made, wanted, free)
                best = memory.decisions.get(key)
                if best is None:
                    best = memory.decisions[key] = self.decide(row, there, made, wanted)
                chosen[op] = old if best is options[0] else best
            new = chosen[op]
            for v, a, b in zip(op.operands, old.demands, new.demands, strict=True):
                if self.hope:
                    decided.setdefault(v, {})[b] = None
                if a is not b and v in wants:
                    users = wants[v]
                    users[a] -= 1
                    if not users[a]:
                        del users[a]
                    users[b] = users.get(b, 0) + 1
        return chosen

    def wanted(self, value: Value) -> tuple[Layout, ...] | None:
        users = self.wants[value]
        return tuple(users) if users else None

    def decide(
        self,
        row: _Row,
        there: tuple[Others, ...],
        made: tuple[tuple[Layout, ...], ...],
        wanted: tuple[tuple[Layout, ...] | None, ...],
    ) -> Choice:
        op = row.op
        best, least = row.options[0], float("inf")
        for option in row.options:
            cost = option.cost + self.inputs(row, option, there)
            for v, layout, table, others, n in zip(
                op.operands, option.demands, row.tables, made, there, strict=False
            ):
                if layout in others:  # it is made for another user anyway
                    cost -= self.reach(v.type, table, n, layout)
            for v, layout, demands in zip(op.results, option.results, wanted, strict=True):
                cost += self.serve(v, layout, demands)
            if cost < least - 1e-9:
                best, least = option, cost
        return best

    def serve(self, value: Value, layout: Layout, demands: tuple[Layout, ...] | None) -> float:
        if value in self.engine.free_results:
            demands = (*(demands or ()), self.engine.free_result(value.type, layout))
        return self.costs.serve(value.type, layout, demands)

    # ------------------------------------------------------------------------------------------ acceptance
    def components(self, changed: list[Op], new: dict[Op, Choice]) -> list[list[Op]]:
        """The changed ops in groups that touch each other through a value whose layout they change."""
        graph: nx.Graph[Any] = nx.Graph()
        for op in changed:
            graph.add_node(op)
            for v in self.touched(op, new[op]):
                graph.add_edge(op, v)
        groups = nx.connected_components(graph)
        position = {op: i for i, op in enumerate(changed)}
        return [sorted((x for x in group if x in position), key=position.__getitem__) for group in groups]

    def touched(self, op: Op, new: Choice) -> Iterator[Value]:
        old = self.engine.choices[op]
        for v, a, b in zip(
            (*op.operands, *op.results),
            (*old.demands, *old.results),
            (*new.demands, *new.results),
            strict=True,
        ):
            if a is not b:
                yield v

    def take(self, ops: list[Op], new: dict[Op, Choice]) -> bool:
        """Changes a group of ops if that makes the program cheaper."""
        engine = self.engine
        old = {op: engine.choices[op] for op in ops}
        values = dict.fromkeys(v for op in ops for v in self.touched(op, new[op]))
        before = self.price(values, old)
        for op in ops:
            engine.choose(op, new[op])
        if self.price(values, new, ops) < before - 1e-6:
            return True
        for op in ops:
            engine.choose(op, old[op])
        return False

    def price(
        self, values: Iterable[Value], choices: dict[Op, Choice], ops: Iterable[Op] | None = None
    ) -> float:
        engine = self.engine
        own = sum(engine.own_cost(op, choices[op]) for op in (choices if ops is None else ops))
        return own + sum(self.costs.serve(v.type, engine.layouts[v], engine.wanted(v)) for v in values)


def _values(block: Block) -> Iterator[Value]:
    yield from block.args
    for op in block.ops:
        yield from op.results
