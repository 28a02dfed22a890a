"""Exact assignment: the layouts of a whole program as one integer program (as in Zheng et al., Alpa, 2022), by HiGHS.

Each op is a variable whose values are the ways to run it, over all mesh axes together; so is each carry of a loop and each
result of a branching, over layouts. What a value's relayouts cost couples its producer with its users: users that want the
same layout share it, and a layout may be made from another that is made anyway. Loops count by their trips. The network of
these costs shrinks (`network`) before it becomes an integer program (`network_program`).

In large programs ops that repeat each other (`folding`) run alike: the layers of an unrolled network are solved once.

The program has the default assignment as its start, so the outcome is never worse. Where the time runs out, or a program
has more ways than are tried, the outcome says so.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...ir.graph import Block, Op, Value
from ...ir.layout import Layout
from ...ir.optable import CONTROL_FLOW
from ...ir.types import TensorType, Type
from ..estimate import last_reads
from ..rules.base import Choice, distinct
from .axis_ways import FIXED, axis_wishes, placements
from .dynamic import View, improve
from .folding import alike
from .network import SLACK, Network, Role, Spread
from .network_program import Limit, minimise
from .proposal import Node

if TYPE_CHECKING:
    from .engine import Engine

WAYS = 160  # to run one op, at most; more are not tried
SHARED = 3  # users from which on each of them pays a share of what costs next to nothing
SOLVER = 0.7  # of the time, until the solver is done
NEGLIGIBLE = 1e-5  # of a program's cost
FOLDED = 3000  # ops of a program from which on those that repeat each other run alike


class Where(NamedTuple):
    """The layout of a value, per value of a variable; of no variable (-1), the one that it has."""

    variable: int
    layouts: tuple[Layout, ...]


Decided = tuple[
    list[Choice], int
]  # the ways to run an op, and the variable that says which; -1: there is one


class Outcome(NamedTuple):
    """gap: by how much, as a part of its cost, the assignment may be above the optimum. complete: all ways were tried.
    folded: the optimum is the one among those in which ops that repeat each other run alike."""

    gap: float
    complete: bool
    folded: bool = False

    def __str__(self) -> str:
        tried = "" if self.complete else ", over a part of the ways"
        among = ", with repeated layers alike" if self.folded else ""
        return f"exact search: within {100 * self.gap:.2f} % of the optimum{tried}{among}"


def solve(engine: Engine, block: Block, seconds: float, memory: float | None = None) -> Outcome:
    """Assigns the layouts of a block and all blocks in it. `seconds`: time for the search. `memory`: bytes that the values
    which are live at once may take on a device; where nothing is found that keeps to that, the assignment stays."""
    return _Exact(engine, block, memory).solve(seconds)


class _Exact:
    def __init__(self, engine: Engine, block: Block, memory: float | None = None):
        self.engine, self.block, self.mesh, self.memory = engine, block, engine.mesh, memory
        self.axes = [a for a in engine.mesh.shape if engine.mesh.axis_size(a) > 1]
        self.wished = {axis: axis_wishes(engine, block, axis) for axis in self.axes}
        self.network = Network()
        self.complete = True
        self.fold = memory is None and len(engine.choices) > FOLDED
        self.keys: dict[Op, Hashable] = {}
        self.known: dict[Hashable, Decided] = {}  # by circumstances
        self.first: dict[Hashable, Decided] = {}  # by what ops are alike
        self.options: dict[Node, tuple[list[Any], int]] = {}
        self.made: dict[Value, Where] = {}  # the layouts in which values may be made
        self.users: dict[Value, list[Where]] = {}
        self.copies: dict[Value, Op] = {}  # what any device can make for itself
        self.copied: list[Op] = []
        self.present: dict[Value, list[Layout]] = {}  # what ops want now
        self.numbers: dict[Type, dict[Layout, int]] = {}  # of the layouts of a type
        self.prices: dict[Type, np.ndarray] = {}  # of relayouts, by numbers

    def solve(self, seconds: float) -> Outcome:
        start, engine = time.perf_counter(), self.engine
        self.collect(self.block)
        self.spreads()
        limits = [] if self.memory is None else list(self.limits(self.memory))
        found = minimise(self.network, max(1.0, SOLVER * seconds - (time.perf_counter() - start)), limits)
        if found is None:
            return Outcome(1.0, self.complete, self.fold)
        before, state = engine.total(), engine.state()
        for node, (ways, variable) in self.options.items():
            engine.change(node, ways[found.values[variable]])
        for op in self.copied:
            self.remake(op)
        if self.fold:  # where layers begin and end they may differ
            engine.moved()
            improve(engine, self.block, (View.PRESENT,))
        total = engine.total()
        if self.memory is None and total > before - SLACK:
            engine.restore(state)
            total = before
        return Outcome(
            max(0.0, min(1.0, 1 - found.bound / total)) if total else 0.0, self.complete, self.fold
        )

    def remake(self, op: Op) -> None:
        """Runs an op in the way that suits its users."""
        engine, (ways, _) = self.engine, self.options[op]
        (value,) = op.results
        wanted = [engine.costs.serve(value.type, w.results[0], engine.wanted(value)) for w in ways]
        costs = [w.cost + x for w, x in zip(ways, wanted, strict=True)]
        engine.change(op, ways[costs.index(min(costs))])

    # ------------------------------------------------------------------------------------------ ways to run
    def collect(self, block: Block) -> None:
        """The ways to run each op, as variables, with the layouts that they make and want."""
        engine = self.engine
        if self.fold:
            self.keys.update(alike(engine, block))
        for v in block.args:
            self.made.setdefault(v, Where(-1, (engine.layouts[v],)))
        for op in block.ops:
            if op.name in CONTROL_FLOW:
                self.loop(op)
                continue
            ways, variable = self.decide(op)
            if variable >= 0 and self.memory is None and not any(v.type.rank for v in op.operands):
                self.copies[op.results[0]] = op
            now = engine.choices[op].demands
            for i, v in enumerate(op.operands):
                self.want(v, _where(variable, [w.demands[i] for w in ways]), now[i])
            for j, v in enumerate(op.results):
                self.made[v] = _where(variable, [w.results[j] for w in ways])
                if v in engine.free_results:
                    self.want(v, _where(variable, [engine.free_result(v.type, w.results[j]) for w in ways]))
        if block is self.block:
            for v in dict.fromkeys(block.returns):  # what the user asked for, which no op does
                present = self.present.get(v, ())
                for layout, count in engine.demands.get(v, {}).items():
                    if count > present.count(layout):
                        self.want(v, Where(-1, (layout,)))

    def decide(self, op: Op) -> Decided:
        """The ways to run an op, with one variable for all ops that repeat each other."""
        engine, key, weight = self.engine, self.keys.get(op), self.engine.weights.get(op, 1)
        circumstances: Hashable = None
        if key is not None:
            now, around = engine.choices[op], tuple([self.made[v].layouts for v in op.operands])
            wished = tuple([not self.wished[axis].isdisjoint(op.results) for axis in self.axes])
            circumstances = key, around, now.demands, now.results, now.order, wished
        decided = self.known.get(circumstances)
        if decided is None:
            decided = self.decided(self.ways(op), key)
            if key is not None:
                self.known[circumstances] = decided
        ways, variable = decided
        costs = np.array([way.cost for way in ways]) * weight
        if variable >= 0:
            self.network.costs[variable] += costs
            self.options[op] = decided
        elif op.name not in FIXED:
            self.network.offset += float(costs[0])
        return decided

    def decided(self, ways: list[Choice], key: Hashable) -> Decided:
        if len(ways) == 1:
            return ways, -1
        first = self.first.get(key) if key is not None else None
        if first is not None and {(w.demands, w.results) for w in first[0]} == {
            (w.demands, w.results) for w in ways
        }:
            return first
        decided = ways, self.network.variable([0.0] * len(ways))
        if key is not None:
            self.first.setdefault(key, decided)
        return decided

    def want(self, value: Value, where: Where, now: Layout | None = None) -> None:
        self.users.setdefault(value, []).append(where)
        if now is not None:
            self.present.setdefault(value, []).append(now)

    def ways(self, op: Op) -> list[Choice]:
        """The ways to run an op over all axes; the present one comes first."""
        engine, choice = self.engine, self.engine.choices[op]
        layouts = (*choice.demands, *choice.results)
        if op.name in FIXED or any(x.blocks for x in layouts):
            return [choice]
        rule = engine.book.rule(op)
        found = [choice]
        for axis in self.axes:
            there = [x for v in op.operands for x in self.made[v].layouts if axis in x.axes]
            if not there and self.memory is None and self.wished[axis].isdisjoint(op.results):
                continue
            kinds = frozenset(p for x in there if isinstance(p := x.placement[axis], str))
            more = (w for way in found for w in rule.variants(op, way, axis, kinds, self.mesh))
            wider = distinct([*found, *more])
            if len(wider) > WAYS:
                self.complete = False
                break
            found = wider
        return distinct([*found, *rule.turned(op, found, self.mesh)])[:WAYS]

    def loop(self, op: Op) -> None:
        """Carries of a while loop, results of a branching: a layout each, in which they enter, stay and leave."""
        engine, is_while = self.engine, op.name == "while"
        results = engine.choices[op].results
        picked: list[Where] = []
        for i, v in enumerate(op.results):
            ways, variable = self.carried(op, i, results[i]), -1
            if len(ways) > 1:
                variable = self.network.variable([0.0] * len(ways))
                self.options[op, i] = ways, variable
            where = _where(variable, ways)
            picked.append(where)
            self.made[v] = where
            if is_while:
                self.want(op.operands[i], where, results[i])
                for region in op.regions:
                    self.made[region.args[i]] = where
            if v in engine.free_results:
                self.want(v, _where(variable, [engine.free_result(v.type, x) for x in ways]))
        if not is_while:
            self.want(op.operands[0], Where(-1, (Layout.replicated(0),)), Layout.replicated(0))
        for region in op.regions:
            self.collect(region)
        if is_while:
            self.want(op.regions[0].returns[0], Where(-1, (Layout.replicated(0),)))
        for region in op.regions[is_while:]:
            for v, where, now in zip(region.returns, picked, results, strict=True):
                self.want(v, where, now)

    def carried(self, op: Op, i: int, now: Layout) -> list[Layout]:
        type = op.results[i].type
        if now.blocks or now.has_pieces or not isinstance(type, TensorType):
            return [now]
        found = {now: None}
        seen = self.engine.carried(op, i)
        for axis in self.axes:
            wants = [x for v in seen for x in (self.engine.layouts[v], *self.engine.demands.get(v, ()))]
            wants += self.made[op.operands[i]].layouts if op.name == "while" else ()
            sharded = any(axis in x.axes for x in wants) or op.results[i] in self.wished[axis]
            if not sharded and self.memory is None:
                continue
            kinds = {p for x in wants if isinstance(p := x.placement.get(axis), str)}
            for base in [x.drop((axis,)) for x in found]:
                found.update(dict.fromkeys(placements(type, base, axis, kinds, self.mesh)))
        if len(found) > WAYS:
            self.complete = False
            return [now]
        return list(found)

    # ------------------------------------------------------------------------------------------ relayouts
    def spreads(self) -> None:
        """What it costs to bring values from where they are made to where they are wanted; equal terms are one."""
        terms: dict[tuple[Type, Where, tuple[Where, ...]], int] = {}
        for v, made in self.made.items():
            if v in self.copies and len(self.users.get(v, ())) >= SHARED:
                self.copy(v)
                continue
            users = tuple(
                sorted(set(self.users.get(v, ())), key=lambda x: (x.variable, [str(y) for y in x.layouts]))
            )
            if users and isinstance(v.type, TensorType) and users != (made,):
                term = v.type, made, users
                terms[term] = terms.get(term, 0) + self.engine.weights.get(v, 1)
                for where in (made, *users):
                    numbers = self.numbers.setdefault(v.type, {})
                    for x in where.layouts:
                        numbers.setdefault(x, len(numbers))
        cost, total = self.engine.costs.relayout, self.engine.total()
        prices = {t: np.array([[cost(t, a, b) for b in xs] for a in xs]) for t, xs in self.numbers.items()}
        for (type, made, users), weight in terms.items():
            roles = [self.role(type, where) for where in (made, *users)]
            spread = Spread(weight * prices[type], roles[0], tuple(roles[1:]))
            if len(users) >= SHARED and spread.dearest() * len(users) < NEGLIGIBLE * total:
                for part in spread.parts():
                    self.network.spread(part)
            else:
                self.network.spread(spread)

    def copy(self, value: Value) -> None:
        """Each user of a value pays a share of what the value would cost if it were made for this one alone."""
        op, users = self.copies[value], self.users[value]
        ways, variable = self.options[op]
        weight, alone = self.engine.weights.get(op, 1), dict[Layout, float]()
        self.network.costs[variable] -= np.array([w.cost for w in ways]) * weight
        for where in users:
            for x in where.layouts:
                if x not in alone:
                    costs = [w.cost + self.engine.costs.relayout(value.type, w.results[0], x) for w in ways]
                    alone[x] = min(costs) * weight / len(users)
            shares = np.array([alone[x] for x in where.layouts])
            if where.variable >= 0:
                self.network.costs[where.variable] += shares
            else:
                self.network.offset += float(shares[0])
        self.copied.append(op)

    def role(self, type: Type, where: Where) -> Role:
        numbers = self.numbers[type]
        return Role(where.variable, tuple([numbers[x] for x in where.layouts]))

    # ------------------------------------------------------------------------------------------ memory
    def limits(self, memory: float) -> Iterator[Limit]:
        """At each op the values that are live, in the layouts that they are made in, fit into `memory`."""
        for block in self.blocks(self.block):
            last, args = last_reads(block), {*block.args}
            live = dict.fromkeys(block.args)
            for i, op in enumerate(block.ops):
                live.update(dict.fromkeys(op.results))
                yield from self.fits(live, memory)
                live = {v: None for v in live if last.get(v, -1) > i or v in args}

    def blocks(self, block: Block) -> Iterator[Block]:
        yield block
        for op in block.ops:
            for region in op.regions if op.name in CONTROL_FLOW else ():
                yield from self.blocks(region)

    def fits(self, live: Iterable[Value], memory: float) -> Iterator[Limit]:
        known, sizes = 0.0, dict[tuple[int, int], float]()
        for v in live:
            if v not in self.made:
                continue
            variable, layouts = self.made[v]
            for k, layout in enumerate(layouts):
                size = self.engine.costs.bytes(v.type, layout)
                if variable < 0:
                    known += size
                else:
                    sizes[variable, k] = sizes.get((variable, k), 0.0) + size
        if known + sum(sizes.values()) > memory:
            yield sizes, memory - known


def _where(variable: int, layouts: list[Layout]) -> Where:
    return Where(variable, tuple(layouts)) if len(set(layouts)) > 1 else Where(-1, (layouts[0],))
