"""Exact assignment: the layouts of a whole program as one integer program (as in Zheng et al., Alpa, 2022), by HiGHS.

Each op has one binary variable per way to run it, over all mesh axes together; each carry of a loop and each result of a
branching one per layout. What a value's relayouts cost couples its producer with its users: users that want the same layout
share it, and a layout may be made from another that is made anyway. Loops count by their trips.

The program has the default assignment as its start, so the outcome is never worse. Where the time runs out, or a program
has more ways than are tried, the outcome says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import UnsupportedError
from ..ir.graph import Block, Op, Value
from ..ir.layout import Layout
from ..ir.types import TensorType
from .dynamic import FIXED, LOOPS, axis_wishes
from .estimate import last_reads
from .linear_program import LinearProgram
from .proposal import Node, take
from .rules.base import Choice, with_axis, worth_cutting

if TYPE_CHECKING:
    from .propagate import Engine

WAYS = 160  # to run one op, at most; more are not tried
Terms = tuple[
    int, ...
]  # variables of which exactly one or none is 1; their sum tells whether something is so
Wants = dict[Layout, Terms | None]  # per layout when it is so; None: always


class Outcome(NamedTuple):
    """gap: by how much, as a part of its cost, the assignment may be above the optimum. complete: all ways were tried."""

    gap: float
    complete: bool

    def __str__(self) -> str:
        tried = "" if self.complete else ", over a part of the ways"
        return f"exact search: within {100 * self.gap:.2f} % of the optimum{tried}"


def solve(engine: Engine, block: Block, seconds: float, memory: float | None = None) -> Outcome:
    """Assigns the layouts of a block and all blocks in it. `seconds`: time for the solver. `memory`: bytes that the values
    which are live at once may take on a device. Raises UnsupportedError if nothing keeps to that."""
    return _Exact(engine, block, memory).solve(seconds)


class _Exact:
    def __init__(self, engine: Engine, block: Block, memory: float | None = None):
        self.engine, self.block, self.mesh, self.memory = engine, block, engine.mesh, memory
        self.axes = [a for a in engine.mesh.shape if engine.mesh.axis_size(a) > 1]
        self.wished = {axis: axis_wishes(engine, block, axis) for axis in self.axes}
        self.program = LinearProgram()
        self.complete = True
        self.options: dict[Node, tuple[list[Any], Terms]] = {}
        self.made: dict[Value, Wants] = {}  # the layouts in which values may be made
        self.users: dict[Value, list[Wants]] = {}

    def solve(self, seconds: float) -> Outcome:
        memory = self.memory
        self.collect(self.block)
        for v, made in self.made.items():
            self.relayouts(v, made)
        if memory is not None:
            self.limit(memory)
        if not self.options:
            return Outcome(0.0, self.complete)
        found = self.program.solve(seconds)
        if found is None:
            if memory is None:
                return Outcome(1.0, self.complete)
            raise UnsupportedError(
                f"no assignment of layouts was found that keeps to {memory:,.0f} bytes per device"
            )
        chosen: dict[Node, Any] = {}
        for node, (ways, terms) in self.options.items():
            best = max(range(len(ways)), key=lambda k: found.values[terms[k]])
            if best:
                chosen[node] = ways[best]
        if chosen and memory is None:
            take(self.engine, chosen)
        else:
            for node, new in chosen.items():
                self.engine.change(node, new)
        return Outcome(found.gap, self.complete)

    # ------------------------------------------------------------------------------------------ ways to run
    def collect(self, block: Block) -> None:
        """The ways to run each op, as variables, with the layouts that they make and want."""
        engine = self.engine
        for v in block.args:
            self.made.setdefault(v, {engine.layouts[v]: None})
        for op in block.ops:
            if op.name in LOOPS:
                self.loop(op)
                continue
            ways = self.ways(op)
            weight = engine.weights.get(op, 1)
            terms = self.decide(op, ways, [w.cost * weight for w in ways]) if len(ways) > 1 else None
            for i, v in enumerate(op.operands):
                self.want(v, [w.demands[i] for w in ways], terms)
            for j, v in enumerate(op.results):
                self.made[v] = _by_layout([w.results[j] for w in ways], terms)
                if v in engine.free_results:
                    leaves = [engine.free_result(v.type, w.results[j]) for w in ways]
                    self.want(v, leaves, terms)
        if block is self.block:
            for v in dict.fromkeys(block.returns):  # what the user asked for, which no op does
                present = [next(iter(wants)) for wants in self.users.get(v, ())]
                for layout, count in engine.demands.get(v, {}).items():
                    if count > present.count(layout):
                        self.want(v, [layout], None)

    def decide(self, node: Node, ways: list[Any], costs: list[float]) -> Terms:
        """A variable per way, of which one is 1; the first way is the present one."""
        terms = tuple(self.program.choice(costs))
        self.options[node] = ways, terms
        return terms

    def want(self, value: Value, layouts: list[Layout], terms: Terms | None) -> None:
        self.users.setdefault(value, []).append(_by_layout(layouts, terms))

    def ways(self, op: Op) -> list[Choice]:
        """The ways to run an op over all axes; the present one comes first."""
        engine, choice = self.engine, self.engine.choices[op]
        layouts = (*choice.demands, *choice.results)
        if op.name in FIXED or any(x.blocks or x.has_pieces for x in layouts):
            return [choice]
        rule = engine.book.rule(op)
        found = [choice._replace(cost=rule.own_cost(op, choice, self.mesh))]
        for axis in self.axes:
            there = [x for v in op.operands for x in self.made[v] if axis in x.axes]
            if not there and self.memory is None and self.wished[axis].isdisjoint(op.results):
                continue
            kinds = frozenset(p for x in there if isinstance(p := x.placement[axis], str))
            more = {(w.demands, w.results): w for w in found}
            for way in found:
                for w in rule.variants(op, way, axis, kinds, self.mesh):
                    more.setdefault((w.demands, w.results), w)
            if len(more) > WAYS:
                self.complete = False
                break
            found = list(more.values())
        return found

    def loop(self, op: Op) -> None:
        """Carries of a while loop, results of a branching: a layout each, in which they enter, stay and leave."""
        engine, is_while = self.engine, op.name == "while"
        results = engine.choices[op].results
        picked: list[tuple[list[Layout], Terms | None]] = []
        for i, v in enumerate(op.results):
            ways = self.carried(op, i, results[i])
            terms = self.decide((op, i), ways, [0.0] * len(ways)) if len(ways) > 1 else None
            picked.append((ways, terms))
            self.made[v] = _by_layout(ways, terms)
            if is_while:
                self.want(op.operands[i], ways, terms)
                for region in op.regions:
                    self.made[region.args[i]] = self.made[v]
            if v in engine.free_results:
                self.want(v, [engine.free_result(v.type, x) for x in ways], terms)
        if not is_while:
            self.want(op.operands[0], [Layout.replicated(0)], None)
        for region in op.regions:
            self.collect(region)
        if is_while:
            self.want(op.regions[0].returns[0], [Layout.replicated(0)], None)
        for region in op.regions[is_while:]:
            for v, (ways, terms) in zip(region.returns, picked, strict=True):
                self.want(v, ways, terms)

    def carried(self, op: Op, i: int, now: Layout) -> list[Layout]:
        type = op.results[i].type
        if now.blocks or now.has_pieces or not isinstance(type, TensorType):
            return [now]
        found = {now: None}
        seen = self.engine.carried(op, i)
        for axis in self.axes:
            wants = [x for v in seen for x in (self.engine.layouts[v], *self.engine.demands.get(v, ()))]
            wants += list(self.made.get(op.operands[i], ())) if op.name == "while" else []
            sharded = any(axis in x.axes for x in wants) or op.results[i] in self.wished[axis]
            if not sharded and self.memory is None:
                continue
            kinds = {p for x in wants if isinstance(p := x.placement.get(axis), str)}
            for base in [x.drop((axis,)) for x in found]:
                found[base] = None
                for place in (*range(type.rank), *sorted(kinds)):
                    new = with_axis(base, axis, place, self.mesh)
                    if isinstance(place, str) or worth_cutting(type.shape[place], new.dims[place], self.mesh):
                        found[new] = None
        if len(found) > WAYS:
            self.complete = False
            return [now]
        return list(found)

    # ------------------------------------------------------------------------------------------ relayouts
    def relayouts(self, value: Value, made: Wants) -> None:
        """What it costs to bring a value from where it is made to where it is wanted."""
        users = self.users.get(value, [])
        wanted = dict.fromkeys(x for wants in users for x in wants)
        if not wanted or not isinstance(value.type, TensorType) or (len(made) == len(wanted) == 1):
            return
        weight = self.engine.weights.get(value, 1)
        program = self.program

        def cost(a: Layout, b: Layout) -> float:
            return weight * self.engine.costs.relayout(value.type, a, b)

        if len(users) == 1 and len(made) > 1:
            (wants,) = users
            pairs = {(p, d): program.variable(cost(p, d)) for p in made for d in wants}
            for p, terms in made.items():
                program.equal([pairs[p, d] for d in wants], terms)
            for d, terms in wants.items():
                program.equal([pairs[p, d] for p in made], terms)
            return
        direct = {
            (p, d): program.variable(cost(p, d)) for d in wanted for p in made if p is not d or len(made) > 1
        }
        for (p, _), pair in direct.items():
            if made[p] is not None:
                program.at_most([pair], made[p])
        for d in wanted:
            sources = [direct[p, d] for p in made if (p, d) in direct]
            if not sources:
                continue  # it is made so, always
            least = min(cost(p, d) for p in made)
            for other in wanted:
                if other is not d and cost(other, d) < least:
                    onward = program.variable(cost(other, d))
                    program.at_most([onward], [direct[p, other] for p in made if (p, other) in direct])
                    sources.append(onward)
            for wants in users:
                if d in wants:
                    program.at_least(sources, wants[d])

    # ------------------------------------------------------------------------------------------ memory
    def limit(self, memory: float) -> None:
        """At each op the values that are live, in the layouts that they are made in, fit into `memory`."""
        for block in self.blocks(self.block):
            last = last_reads(block)
            live = dict.fromkeys(block.args)
            for i, op in enumerate(block.ops):
                live.update(dict.fromkeys(op.results))
                self.fits(live, memory)
                live = {v: None for v in live if last.get(v, -1) > i or v in block.args}

    def blocks(self, block: Block) -> Iterator[Block]:
        yield block
        for op in block.ops:
            for region in op.regions if op.name in LOOPS else ():
                yield from self.blocks(region)

    def fits(self, live: Iterable[Value], memory: float) -> None:
        known, sizes = 0.0, dict[int, float]()
        for v in live:
            for layout, terms in self.made.get(v, {}).items():
                size = self.engine.costs.bytes(v.type, layout)
                if terms is None:
                    known += size
                for term in terms or ():
                    sizes[term] = sizes.get(term, 0.0) + size
        if known + sum(sizes.values()) > memory:
            self.program.row(sizes, -float("inf"), memory - known)


def _by_layout(layouts: list[Layout], terms: Terms | None) -> Wants:
    if terms is None:
        return {layouts[0]: None}
    found: dict[Layout, list[int]] = {}
    for layout, term in zip(layouts, terms, strict=True):
        found.setdefault(layout, []).append(term)
    if len(found) == 1:
        return {layouts[0]: None}
    return {layout: tuple(ts) for layout, ts in found.items()}
