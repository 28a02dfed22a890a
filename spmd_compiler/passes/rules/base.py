"""What a sharding rule is.

A rule describes one op instance, and speaks of one mesh axis at a time. It names the op's *factors* like an einsum does
(`mk,kn->mn`): sharding a factor over an axis shards every dim that carries it. From the factors come *strategies*: a
placement of the axis on every operand and result. The engine picks one strategy per axis, and composes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from itertools import combinations
from typing import TYPE_CHECKING, Any

from ...ir.graph import Op, Value
from ...ir.layout import Layout, block_size, local_type
from ...ir.mesh import Mesh, parse_axis
from ...ir.types import TensorType, Type
from ..cost import Work, prices
from ..relayout.planner import refine
from .choosing import cheapest
from .strategy import Choice, Exchange, In, Out, Placement, R, Strategy

if TYPE_CHECKING:
    from ..emit.builder import Builder
    from ..search.assignment import Costs

NOTHING = Work()
Dims = Sequence[int | None]  # the factor of each dim; None: the dim must be whole
Expand = Callable[["Builder", Op, list[Value]], list[Value]]


class Rule:
    """The rule of one op instance.

    operands, results: per value the factor of each dim. sizes: the factors' sizes. strategies: the first replicates
    everything. even: factors that can only be cut in equal parts. work: of the whole op. expand:
    emits the local ops. permutes: where the op is cut along several factors, and the exchange of each sends
    the whole block, one permute over all their axes does it.
    """

    __slots__ = (
        "_choices",
        "_variants",
        "_ways",
        "by_operand",
        "by_result",
        "even",
        "expand",
        "fallback",
        "operands",
        "permutes",
        "results",
        "sizes",
        "strategies",
        "work",
    )

    def __init__(
        self,
        operands: Sequence[Dims],
        results: Sequence[Dims],
        sizes: Sequence[int],
        strategies: Iterable[Strategy],
        expand: Expand,
        work: Work = NOTHING,
        even: Iterable[int] = (),
        permutes: bool = False,
    ):
        self.even = frozenset(even)
        self.permutes = permutes
        self.operands = tuple(tuple(d) for d in operands)
        self.results = tuple(tuple(d) for d in results)
        self.sizes = tuple(sizes)
        none = Strategy((R,) * len(self.operands), (R,) * len(self.results))
        self.strategies = tuple(dict.fromkeys([none, *strategies]))
        self.expand = expand
        self.work = work
        self.fallback = False
        self.by_operand: dict[tuple[int, Placement], list[Strategy]] = {}
        self.by_result: dict[tuple[int, Placement], list[Strategy]] = {}
        for s in self.strategies[1:]:
            for i, p in enumerate(s.operands):
                if p != R:
                    self.by_operand.setdefault((i, p), []).append(s)
            for j, p in enumerate(s.results):
                if p != R:
                    self.by_result.setdefault((j, p), []).append(s)
        self._forget()

    def _forget(self) -> None:
        self._choices: dict[Any, Choice] = {}
        self._ways: dict[Any, Choice | None] = {}
        # by the id of a choice, which is kept for it
        self._variants: dict[tuple[int, str, frozenset[str]], tuple[Choice, tuple[Choice, ...]]] = {}

    def afresh(self) -> Rule:
        """The rule with the same strategies, for other prices."""
        other = copy(self)
        other._forget()
        return other

    # ------------------------------------------------------------------------------------------ choosing
    def choose(self, costs: Costs, op: Op, places: tuple[tuple[Layout, tuple[Layout, ...]], ...]) -> Choice:
        """The cheapest way to run the op, given where its operands are: their layouts, and the others in which they exist
        anyway."""
        choice = self._choices.get(places)
        if choice is None:
            ins = tuple([In(v.type, *place) for v, place in zip(op.operands, places, strict=True)])
            outs = tuple([Out(v.type) for v in op.results])
            choice = self._choose(costs, ins, outs)
            choice = choice._replace(cost=self.own_cost(choice, ins, outs, costs.mesh))
            self._choices[places] = choice
        return choice

    def _choose(self, costs: Costs, ins: tuple[In, ...], outs: tuple[Out, ...]) -> Choice:
        return cheapest(self, costs, ins, outs)

    def divides(
        self, order: Sequence[str], picks: Sequence[Strategy], mesh: Mesh, ins: Sequence[In] = ()
    ) -> bool:
        """Whether cutting the factors so is worth a try: by their sizes, or as an operand is cut already."""
        cut: dict[int, tuple[Strategy, list[str]]] = {}
        for axis, s in zip(order, picks, strict=True):
            if s.factor >= 0:
                cut.setdefault(s.factor, (s, []))[1].append(axis)
        for f, (s, axes) in cut.items():
            if worth_cutting(self.sizes[f], axes, mesh):
                continue
            if not any(
                not isinstance(p, str) and p != R and set(x.layout.dims[p]).issuperset(axes)
                for x, p in zip(ins, s.operands, strict=False)
            ):
                return False
        return True

    def way(
        self,
        order: tuple[str, ...],
        picks: tuple[Strategy, ...],
        ins: Sequence[In | Value],
        outs: Sequence[Out | Value],
        mesh: Mesh,
        blocks: tuple[tuple[int, int], ...] = (),
    ) -> Choice | None:
        """The layouts that these strategies give, and what the op itself costs so: its work and its own messages. None if
        the strategies don't go together, or what they exchange can't be. `ins`, `outs`: anything with the operands' and
        results' types."""
        key = (order, picks, blocks)
        if key not in self._ways:
            types = [x.type for x in ins], [x.type for x in outs]
            self._ways[key] = self._way(order, picks, *types, mesh, dict(blocks))
        return self._ways[key]

    def _way(
        self,
        order: tuple[str, ...],
        picks: tuple[Strategy, ...],
        ins: list[Type],
        outs: list[Type],
        mesh: Mesh,
        blocks: dict[int, int],
    ) -> Choice | None:
        factors: dict[int, tuple[Strategy, list[str]]] = {}
        for axis, s in zip(order, picks, strict=True):
            if s.factor >= 0:
                chosen, axes = factors.setdefault(s.factor, (s, []))
                if chosen is not s:
                    return None  # a factor is sharded in one way only
                axes.append(axis)
        if any(self.sizes[f] % mesh.axes_size(factors[f][1]) for f in self.even.intersection(factors)):
            return None
        on = list(zip(order, picks, strict=True))
        demands = [
            _build(t.rank, [(a, s.operands[i]) for a, s in on], self.operands[i], blocks)
            for i, t in enumerate(ins)
        ]
        results = [
            _build(t.rank, [(a, s.results[j]) for a, s in on], self.results[j], blocks)
            for j, t in enumerate(outs)
        ]
        if any(len({kind for _, kind in x.partial}) > 1 for x in (*demands, *results)):
            return None  # a sum of products is no product of sums: partials of two kinds at once have no one meaning
        price = prices(mesh)
        share = 1.0  # of the work that the first device does
        for f, (_, axes) in factors.items():
            block = blocks.get(f) or block_size(self.sizes[f], mesh.axes_size(axes))
            share *= block / max(self.sizes[f], 1)
        cost = price.work(self.work) * share
        cost += sum([s.deferred for s in picks])
        if price.room < math.inf:
            made = zip(outs, results, strict=True)
            cost += sum(price.hold(local_type(t, layout, mesh).nbytes) for t, layout in made)
        exchanging = [(s.exchange, axes) for s, axes in factors.values() if s.exchange]
        if exchanging:
            local_ins = [local_type(t, d, mesh) for t, d in zip(ins, demands, strict=True)]
            local_outs = [local_type(t, r, mesh) for t, r in zip(outs, results, strict=True)]
            sends = [(axes, f(mesh.axes_size(axes), local_ins, local_outs)) for f, axes in exchanging]
            if self.permutes and all(sent == (local_ins[0].nbytes, 1) for _, sent in sends):
                sends = [([a for axes, _ in sends for a in axes], sends[0][1])]
            if any(sent[0] == math.inf for _, sent in sends):
                return None
            cost += sum([price.send(axes, *sent) for axes, sent in sends])
        return Choice(tuple(demands), tuple(results), cost, order, picks)

    def turned(self, op: Op, ways: Iterable[Choice], mesh: Mesh) -> Iterator[Choice]:
        """Those of the ways to run the op that have several axes on a dim, with two of these the other way round."""
        for way in ways:
            dims = (axes for x in (*way.demands, *way.results) for axes in x.dims)
            for a, b in dict.fromkeys(pair for axes in dims for pair in combinations(axes, 2)):
                turned = self.turn(op, way, a, b, mesh)
                if turned is not None:
                    yield turned

    def turn(self, op: Op, way: Choice, a: str, b: str, mesh: Mesh) -> Choice | None:
        """The way with two axes that share dims the other way round there; None if they don't, or that can't run."""
        picks, other = dict(zip(way.order, way.picks, strict=True)), {a: b, b: a}
        if a not in picks or b not in picks:
            return None
        order = tuple([other.get(x, x) for x in way.order])
        turned = self.way(order, tuple([picks[x] for x in order]), op.operands, op.results, mesh)
        return None if turned is None or turned[:2] == way[:2] else turned

    def variants(
        self, op: Op, choice: Choice, axis: str, kinds: frozenset[str], mesh: Mesh
    ) -> tuple[Choice, ...]:
        """The ways to run the op that differ from `choice` on one axis at most; `choice` comes first. Of the ways to pass
        partials on there are those of `kinds`. Pieces of axes stay as they are."""
        key = (id(choice), axis, kinds)
        known = self._variants.get(key)
        if known is None:
            known = self._variants[key] = choice, self.find_variants(op, choice, axis, kinds, mesh)
        return known[1]

    def find_variants(
        self, op: Op, choice: Choice, axis: str, kinds: frozenset[str], mesh: Mesh
    ) -> tuple[Choice, ...]:
        """`variants`, which asks once for each choice."""
        order, picks = list(choice.order), list(choice.picks)
        if any(":" in a for a in order) or any(x.has_pieces for x in (*choice.demands, *choice.results)):
            return (choice,)
        now, places = self.strategies[0], list[int]()
        if axis in order:
            at = order.index(axis)
            now, places = picks.pop(at), [at]
            del order[at]
        ways: list[Choice] = []
        for s in dict.fromkeys((now, *self.strategies)):
            passed = [p for p in s.operands if isinstance(p, str)] if s.factor < 0 else []
            if s is not now and not kinds.issuperset(passed):
                continue
            # where it was, or among the axes that cut the same in the mesh's order, as on carries of loops
            for at in dict.fromkeys((*places, _place(s, axis, order, picks, mesh))):
                on, pick = (*order[:at], axis, *order[at:]), (*picks[:at], s, *picks[at:])
                if s is now or self.divides(on, pick, mesh):
                    way = self.way(on, pick, op.operands, op.results, mesh)
                    if way is not None:
                        ways.append(way)
        return tuple(distinct(ways))

    def giving(self, op: Op, result: int, layout: Layout, mesh: Mesh) -> Choice | None:
        """A way to run the op that gives a result in this layout, which has no partials; None if there is none."""
        places = [(d, axis) for d, axes in enumerate(layout.dims) for axis in axes]
        found = [self.by_result.get((result, d)) for d, _ in places]
        if layout.partial or layout.blocks or not all(found):
            return None
        order, picks = tuple(axis for _, axis in places), tuple(s[0] for s in found if s)
        if not self.divides(order, picks, mesh):
            return None
        way = self.way(order, picks, op.operands, op.results, mesh)
        return way if way is not None and way.results[result] is layout else None

    def own_cost(
        self, choice: Choice, ins: Sequence[In | Value], outs: Sequence[Out | Value], mesh: Mesh
    ) -> float:
        """Work and messages of the op itself."""
        way = self.way(choice.order, choice.picks, ins, outs, mesh, self._blocks(choice))
        assert way is not None
        return way.cost

    def _blocks(self, choice: Choice) -> tuple[tuple[int, int], ...]:
        """Per factor the block that a choice cuts it into, if not the default."""
        sides = zip((*choice.demands, *choice.results), (*self.operands, *self.results), strict=True)
        blocks = {
            f: b for x, dims in sides for f, b in zip(dims, x.blocks, strict=False) if b and f is not None
        }
        return tuple(sorted(blocks.items()))

    def covers(self, op: Op, mesh: Mesh) -> bool:
        """True if the layouts that `op` has follow from the rule's strategies (the verifier's question)."""
        layouts = [*(v.layout for v in op.operands), *(v.layout for v in op.results)]
        n = len(op.operands)
        refined = refine(tuple(x for x in layouts if x is not None), mesh)
        for axis in {a for x in refined for a in x.axes}:
            where = tuple(x.placement.get(axis, R) for x in refined)
            if not any(s.operands == where[:n] and s.results == where[n:] for s in self.strategies):
                return False
        return True


def _build(rank: int, placements: list[tuple[str, Placement]], dims: Dims, blocks: dict[int, int]) -> Layout:
    axes: list[tuple[str, ...]] = [()] * rank
    partial: list[tuple[str, str]] = []
    for axis, where in placements:
        if isinstance(where, str):
            partial.append((axis, where))
        elif where >= 0:
            axes[where] += (axis,)
    if not blocks:
        return Layout(tuple(axes), tuple(partial))
    sizes = tuple(blocks.get(f, 0) if f is not None else 0 for f in dims)
    return Layout(tuple(axes), tuple(partial), sizes)


def distinct(ways: Iterable[Choice]) -> list[Choice]:
    """The first of all ways that have the same layouts, in their order."""
    found: dict[tuple[tuple[Layout, ...], tuple[Layout, ...]], Choice] = {}
    for way in ways:
        found.setdefault((way.demands, way.results), way)
    return list(found.values())


def worth_cutting(size: int, axes: Sequence[str], mesh: Mesh) -> bool:
    """Whether to try cutting a dim over some axes: in equal parts, or over one axis of which half the devices get some of it."""
    n = mesh.axes_size(axes)
    return size % n == 0 or (len(axes) == 1 and 1 < size >= n / 2)


def with_axis(layout: Layout, axis: str, place: Placement, mesh: Mesh) -> Layout:
    """A layout without `axis`, with it: on a dim, among the other axes in the mesh's order; or as a partial."""
    if isinstance(place, str):
        return layout.with_partial((*layout.partial, (axis, place)))
    axes = layout.dims[place]
    at = _position(axis, axes, mesh)
    return layout.with_dim(place, (*axes[:at], axis, *axes[at:]))


def without_axis(layout: Layout, axis: str) -> Layout:
    """A layout without `axis`, and without pieces of it."""
    return layout.drop([a for a in layout.axes if parse_axis(a)[0] == axis])


def with_turned(layout: Layout, a: str, b: str) -> Layout:
    """A layout with two axes in each other's places on its dims."""
    other = {a: b, b: a}
    dims = tuple(tuple([other.get(x, x) for x in axes]) for axes in layout.dims)
    return Layout(dims, layout.partial, layout.blocks)


def _position(axis: str, axes: Sequence[str], mesh: Mesh) -> int:
    """Where an axis comes among others in the mesh's order."""
    names = list(mesh.shape)
    return sum(names.index(a) < names.index(axis) for a in axes)


def _place(s: Strategy, axis: str, order: list[str], picks: list[Strategy], mesh: Mesh) -> int:
    """Where an axis comes in an order, so that it is in the mesh's among those on which the same is cut."""
    same = [i for i, other in enumerate(picks) if other.factor == s.factor >= 0]
    before = _position(axis, [order[i] for i in same], mesh)
    return same[before - 1] + 1 if before else same[0] if same else _position(axis, order, mesh)


# ------------------------------------------------------------------------------------------------ making rules
def factored(
    operands: Sequence[Dims],
    results: Sequence[Dims],
    sizes: Sequence[int],
    expand: Expand,
    *,
    reduced: dict[int, str] | None = None,
    whole: Iterable[int] = (),
    linear: Sequence[tuple[Sequence[int], Sequence[str]]] = (),
    exchange: dict[int, Exchange] | None = None,
    even: Iterable[int] = (),
    extra: Iterable[Strategy] = (),
    work: Work = NOTHING,
    permutes: bool = False,
) -> Rule:
    """A rule from factors.

    reduced: factors that a result lacks, with the kind of partial that sharding them leaves on it.
    whole: factors that can't be sharded. linear: (operands, kinds) groups: if these operands are partial of such a
    kind, and the others replicated, so are the results. exchange: see `Strategy`. extra: strategies that the factors
    don't imply. permutes: see `Rule`.
    """
    reduced = reduced or {}
    never = set(whole)
    strategies: list[Strategy] = []
    for f, size in enumerate(sizes):
        if f in never or size < 2:
            continue
        ops = tuple(_dim_of(dims, f) for dims in operands)
        res = tuple(_dim_of(dims, f) if f in dims else reduced.get(f, R) for dims in results)
        strategies.append(Strategy(ops, res, f, (exchange or {}).get(f)))
    for group, kinds in linear:
        for kind in kinds:
            ops = tuple(kind if i in group else R for i in range(len(operands)))
            strategies.append(Strategy(ops, (kind,) * len(results)))
    return Rule(operands, results, sizes, [*strategies, *extra], expand, work, even=even, permutes=permutes)


def _dim_of(dims: Dims, factor: int) -> int:
    return dims.index(factor) if factor in dims else R


def numbered(shape: Sequence[int], start: int = 0) -> tuple[int, ...]:
    """One factor per dim."""
    return tuple(range(start, start + len(shape)))


def shape_of(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.shape
