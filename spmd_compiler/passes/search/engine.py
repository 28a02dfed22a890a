"""The engine: an assignment of layouts with what its making and its improvement need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NamedTuple

from ...ir.graph import Block, Module, Op, Value
from ...ir.layout import Layout, canonical, even_part, is_even
from ...ir.mesh import Mesh
from ...ir.optable import CONTROL_FLOW, is_remade
from ...ir.trips import trip_count
from ...ir.types import Type
from ..cost import OFTEN, prices
from ..estimate import touched
from ..relayout.planner import nesting, refine
from ..rules.base import Choice
from ..rules.table import RuleBook
from .assignment import Assignment, Costs
from .axis_ways import FIXED
from .fused_axes import Fusion
from .loops import assign_branches, assign_loop, assign_manual
from .memo import Memory, Table
from .regions import Around
from .traffic import Traffic
from .whole_axes import with_whole_axes

UNKNOWN_TRIPS = 8  # iterations that a loop of unknown length counts as
UNPRICED = frozenset((*CONTROL_FLOW, *FIXED))  # ops without rules


class Forwarding(NamedTuple):
    """How a forward assignment differs from the usual one.

    seen: values whose users see them in another layout than they are made in: arguments, carries of loops, sums, values made from a
        number, and values on fewer axes than they are made on, which are gathered at once.
    whole: it sees no pieces of axes that reshapes leave (`whole_axes`).
    defers: it leaves partials unreduced while ops are linear in them.
    merges: it adds partials that are alike before they are reduced.
    """

    seen: Mapping[Value, Layout] = MappingProxyType({})
    whole: bool = False
    defers: bool = False
    merges: bool = False


AS_USUAL = Forwarding()


class State(NamedTuple):
    """An assignment while it is improved; `ends`, `number`: see `Memory`."""

    layouts: dict[Value, Layout]
    choices: dict[Op, Choice]
    demands: dict[Value, dict[Layout, int]]
    ends: dict[Any, list[Table]]
    number: int


class Engine(Assignment):
    """Chooses layouts block by block. The tables of `Assignment` are keyed by the values and ops of the input module."""

    def __init__(
        self,
        module: Module,
        fusion: Fusion | None = None,
        book: RuleBook | None = None,
        forwarding: Forwarding = AS_USUAL,
    ):
        super().__init__(fusion.mesh if fusion else module.mesh)
        self.fusion, self.forwarding = fusion, forwarding
        self.book = book or RuleBook()
        self._trips: dict[Op, int] = {}
        self.fallbacks: dict[Op, None] = {}
        self.free_args: set[Value] = set()
        self.cut_args: dict[Value, Layout] = {}  # the layouts asked for that don't divide these
        self.memory = Memory()
        # of equal choices one object, which `memory` knows
        self.adopted: dict[tuple[Op, Choice], Choice] = {}
        self.weights: dict[Value | Op, int] = {}  # how often what is inside loops runs
        self.opened: frozenset[str] = frozenset()  # axes that any op may be on
        self.remade: dict[Value, Op] = {}  # values that are cheaper to make again than to relay
        # the layouts of values that are seen in others while assigned forward
        self.made_in: dict[Value, Layout] = {}
        self.free_results: set[Value] = set()  # results that leave in the layout that they have
        self.rolled = False  # loops stand for rows of parts (`rolling`)
        self.turned = False  # axes lie, or are wanted, on a dim in another order than the mesh's

    # ------------------------------------------------------------------------------------------ forward
    def forward(self, block: Block) -> None:
        layouts, note, rule_of, others = self.layouts, self.book.note, self.book.rule, self._others
        seen, whole, _, merges = self.forwarding
        for op in block.ops:
            name = op.name
            if name in UNPRICED:
                self._forward_unpriced(op)
                continue
            note(op)
            there = tuple([(layouts[v], others(v)) for v in op.operands])
            if merges and self.adds_partials(op):
                there = tuple([(layout, ()) for layout, _ in there])
            self.record(op, rule_of(op).choose(self.costs, op, there))
            if whole and name == "reshape":
                self._see_whole(op.results[0])
            if is_remade(op):
                self.remade[op.results[0]] = op
            elif seen and op.results and (value := op.results[0]) in seen:
                layout, other = layouts[value], seen[value]
                self._see(value, other if other.axes < layout.axes and not layout.partial else layout)
            if op.regions:
                self._scalar_region(op)

    def _forward_unpriced(self, op: Op) -> None:
        if op.name == "while":
            assign_loop(self, op)
        elif op.name in CONTROL_FLOW:
            assign_branches(self, op)
        elif op.name == "relayout":
            self._fixed(op)
        else:
            assign_manual(self, op)

    def _see_whole(self, value: Value) -> None:
        layout = self.layouts[value]
        self._see(value, with_whole_axes(layout, value.type, self.mesh) if layout.has_pieces else layout)

    def _see(self, value: Value, layout: Layout) -> None:
        """What follows sees a value in a layout that it is not made in."""
        self.made_in.pop(value, None)  # of another time that the body of a loop was assigned
        if layout is not self.layouts[value]:
            self.made_in[value] = self.layouts[value]
            self.layouts[value] = layout

    def look_for_turned(self) -> None:
        """Sets `turned`."""
        place = {axis: i for i, axis in enumerate(self.mesh.shape)}
        seen = {*self.layouts.values(), *(x for users in self.demands.values() for x in users)}
        orders = {axes for x in seen if not x.has_pieces for axes in x.dims if len(axes) > 1}
        self.turned = any(place[a] > place[b] for axes in orders for a, b in pairwise(axes))

    def given(self, layout: Layout | None) -> Layout | None:
        """A layout that the user gave, without the axes of size 1: they say nothing, and no rule has to know them."""
        if layout is None:
            return None
        mesh = self.fusion.fine if self.fusion else self.mesh
        layout = layout.drop([a for a in layout.axes if mesh.axis_size(a) == 1])
        return self.fusion.fuse(layout) if self.fusion else layout

    def stored(self, value: Value, layout: Layout | None) -> Layout | None:
        """The layout of an argument or a result of the program, outside of which a JAX array can have only the even part."""
        return layout and even_part(layout, value.type, self.mesh)

    def _others(self, value: Value) -> tuple[Layout, ...]:
        """The layouts, beside its own, in which a value exists anyway for a further user. A partial will be reduced, if not for
        this one. What is remade draws no user to where others want it."""
        seen = self.forwarding.seen.get(value)
        if value in self.remade:
            return () if seen is None else (seen,)
        layout, users = self.layouts[value], self.demands.get(value) or ()
        if not layout.partial and (not users or (len(users) == 1 and layout in users)):
            return ()
        others = [x for x in users if x is not layout]
        if layout.partial and not self.forwarding.defers:
            reduced = seen or layout.without_partial()
            if reduced not in users:
                others.append(reduced)
        return tuple(others)

    def adds_partials(self, op: Op) -> bool:
        """Whether an op adds values that are partial alike."""
        if op.name != "add":
            return False
        a, b = (self.layouts[v] for v in op.operands)
        return a is b and bool(a.partial)

    def _fixed(self, op: Op) -> None:
        """A relayout that the user wrote: its layout is given."""
        layout = self.given(op.results[0].layout)
        assert layout is not None
        if opened := op.attrs.get("open"):
            layout = _fill_open(layout, self.layouts[op.operands[0]], opened, op.results[0].type, self.mesh)
        self.record(op, Choice((layout,), (layout,)))

    def _scalar_region(self, op: Op) -> None:
        """Reducers and comparators: scalars, the same on every device."""
        for region in op.regions:
            for value in region.args:
                self.layouts[value] = Layout.replicated(value.type.rank)
            for inner in region.walk():
                for value in inner.results:
                    self.layouts[value] = Layout.replicated(value.type.rank)

    def wanted(self, value: Value, layout: Layout | None = None) -> tuple[Layout, ...]:
        """What is wanted of a value; a free result leaves as it lies, or would in `layout`."""
        wanted = super().wanted(value)
        if value in self.free_results:
            wanted = (*wanted, self.free_result(value.type, layout or self.layouts[value]))
        return wanted

    def free_result(self, type: Type, layout: Layout) -> Layout:
        """The layout in which a result leaves that the user left to us."""
        if not type.size:  # JAX can't read arrays without elements in shards
            return Layout.replicated(type.rank)
        if layout.partial:
            _, layout = self.costs.resolve(type, layout)
        if not is_even(layout, type, self.mesh):
            dims = tuple(
                axes if type.shape[d] % self.mesh.axes_size(axes) == 0 else ()
                for d, axes in enumerate(layout.dims)
            )
            layout = Layout(dims)
        return layout

    # ------------------------------------------------------------------------------------------ improvement
    def state(self) -> State:
        """What changes while the assignment is improved."""
        demands = {v: dict(users) for v, users in self.demands.items()}
        return State(
            dict(self.layouts), dict(self.choices), demands, dict(self.memory.ends), self.memory.state
        )

    def restore(self, state: State) -> None:
        self.layouts, self.choices = dict(state.layouts), dict(state.choices)
        self.demands = {v: dict(users) for v, users in state.demands.items()}
        self.memory.ends, self.memory.state = dict(state.ends), state.number

    @contextmanager
    def seen_in(self, state: State) -> Iterator[None]:
        """Layouts, choices and demands are those of another state for a while, in which nothing may change."""
        now = self.layouts, self.choices, self.demands
        self.layouts, self.choices, self.demands = state.layouts, state.choices, state.demands
        try:
            yield
        finally:
            self.layouts, self.choices, self.demands = now

    def adopt(self, state: State) -> None:
        """Goes to a state of another engine for the same program on this mesh, under whose prices work cost something else."""
        self.restore(state)
        for op, choice in self.choices.items():
            if op.name not in UNPRICED:
                cost = self.book.rule(op).own_cost(choice, op.operands, op.results, self.mesh)
                choice = choice._replace(cost=cost)
                self.choices[op] = self.adopted.setdefault((op, choice), choice)
        self.moved()

    def moved(self) -> None:
        """The program has come into another state, by no pass: what its loops' ends cost is unknown there."""
        self.memory.ends = {}
        self.arrive()

    def arrive(self) -> None:
        """The program is in another state."""
        self.memory.arrive(self.choices, self.opened)

    def total(self) -> float:
        """The cost of the program."""
        weights, cost = self.weights, 0.0
        for op, choice in self.choices.items():
            cost += weights.get(op, 1) * choice.cost
        for _, paid in self.relaid(self.costs):
            cost += paid
        return cost

    def relaid(self, costs: Costs) -> Iterator[tuple[Value, float]]:
        """The values that are wanted elsewhere than they are, with what their relayouts cost."""
        weights, demands, free = self.weights, self.demands, self.free_results
        for v, layout in self.layouts.items():
            users = demands.get(v)
            if (users and (len(users) > 1 or layout not in users)) or v in free:
                yield v, weights.get(v, 1) * costs.serve(v.type, layout, self.wanted(v))

    @cached_property
    def traffic(self) -> Traffic:
        return Traffic(self.mesh, self.book)

    @cached_property
    def around(self) -> Around:
        """What makes and reads each value, once all ops have choices."""
        return Around(self)

    @property
    def limit(self) -> Traffic | None:
        """What tells whether an assignment sends more than another one, where none may that is cheaper."""
        return self.traffic if prices(self.mesh).bytes_first else None

    def sends_more(self, before: State) -> bool:
        """Whether the program sends more than in an earlier state, and may not."""
        return self.limit is not None and self.limit.added(self, before) > 1e-6

    @cached_property
    def work(self) -> float:
        """What all work costs together, on one device; known once all ops have choices."""
        price, weights = prices(self.mesh), self.weights
        return sum(
            weights.get(op, 1) * price.work(self.book.rule(op).work)
            for op in self.choices
            if op.name not in UNPRICED
        )

    def change(self, node: Op | tuple[Op, int], new: Choice | Layout) -> None:
        """Replaces the choice of an op, or the layout of one carry of a loop or result of a branching."""
        if isinstance(node, tuple):
            assert isinstance(new, Layout)
            self._change_carry(*node, new)
            return
        assert isinstance(new, Choice)
        old = self.choices[node]
        if new.demands == old.demands and new.results == old.results:
            self.choices[node] = new
            return
        for v, layout in zip(node.operands, old.demands, strict=True):
            self.unwant(v, layout)
        self.record(node, new)

    def _change_carry(self, op: Op, i: int, new: Layout) -> None:
        choice = self.choices[op]
        old = choice.results[i]
        results = (*choice.results[:i], new, *choice.results[i + 1 :])
        self.choices[op] = choice._replace(results=results)
        self.layouts[op.results[i]] = new
        if op.name == "while":
            self.choices[op] = choice._replace(demands=results, results=results)
            self.unwant(op.operands[i], old)
            self.want(op.operands[i], new)
            for region in op.regions:
                self.layouts[region.args[i]] = new
        for region in op.result_regions:
            self.unwant(region.returns[i], old)
            self.want(region.returns[i], new)

    def carried(self, op: Op, i: int) -> list[Value]:
        """The values that have, or must be brought to, the layout of a carry or of a branch's result."""
        values = [op.results[i], *(region.returns[i] for region in op.result_regions)]
        if op.name == "while":
            values += [op.operands[i], *(region.args[i] for region in op.regions)]
        return values

    def trips(self, op: Op) -> int:
        """Iterations of a loop; a guess where they depend on data. One that stands for a row of parts says it (`rolling`)."""
        if op not in self._trips:
            self._trips[op] = op.attrs.get("trips") or trip_count(op) or UNKNOWN_TRIPS
        return self._trips[op]

    def weigh(self, block: Block, weight: int) -> None:
        """Records how often what is inside loops runs, and what touches much by that."""
        often = OFTEN * prices(self.mesh).stored
        for op in block.ops:
            if op.name in CONTROL_FLOW:
                inner = weight * self.trips(op) if op.name == "while" else weight
                for region in op.regions:
                    self.weigh(region, inner)
                self.weights.update(dict.fromkeys(op.attrs.get("each", ()), inner))
            if weight > 1:
                self.weights[op] = weight
                self.weights.update(dict.fromkeys(op.results, weight))
                if op.name not in CONTROL_FLOW and weight * touched(op) > often:
                    self.book.busy.add(op)
        if weight > 1:
            self.weights.update(dict.fromkeys(block.args, weight))

    def settle_args(self) -> None:
        """Arguments whose layout the compiler may choose get the one that most of their users want."""
        for value in self.free_args:
            wanted = [x for x in self.wanted(value) if not x.partial and is_even(x, value.type, self.mesh)]
            if wanted:
                costs = [self.costs.serve(value.type, x, self.wanted(value)) for x in wanted]
                best = wanted[costs.index(min(costs))]
                if min(costs) < self.costs.serve(value.type, self.layouts[value], self.wanted(value)):
                    self.layouts[value] = best


def _fill_open(layout: Layout, source: Layout, opened: tuple[int, ...], type: Type, mesh: Mesh) -> Layout:
    """On dims that a constraint leaves open, the value stays as it comes."""
    layout, source = refine(nesting((layout, source), mesh), mesh)
    for dim in opened:
        if not layout.dims[dim] and not layout.axes.intersection(source.dims[dim]):
            layout = layout.with_dim(dim, source.dims[dim], source.blocks[dim] if source.blocks else 0)
    return canonical(layout, type, mesh)
