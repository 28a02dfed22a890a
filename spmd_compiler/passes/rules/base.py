"""What a sharding rule is, and how the layouts of one op are chosen from it.

A rule describes one op instance, and speaks of one mesh axis at a time. It names the op's *factors* like an einsum does
(`mk,kn->mn`): sharding a factor over an axis shards every dim that carries it. From the factors come *strategies*: a
placement of the axis on every operand and result. The engine picks one strategy per axis, and composes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ir.graph import Op, Value
from ...ir.layout import Layout, canonical, local_block, local_type
from ...ir.mesh import Mesh
from ...ir.types import TensorType, Type
from ..cost import DEFER, Work, prices
from ..relayout import nesting, refine

if TYPE_CHECKING:
    from ..assignment import Costs
    from ..builder import Builder

NOTHING = Work()
R = -1  # replicated; a dim index means sharded on that dim, a str is the kind of a partial
Placement = int | str
Dims = Sequence[int | None]  # the factor of each dim; None: the dim must be whole
Expand = Callable[["Builder", Op, list[Value]], list[Value]]
# (number of shards of the factor, local operand types, local result types) -> (bytes a device sends, messages)
Exchange = Callable[[int, "list[Type]", "list[Type]"], tuple[float, int]]


class Strategy(NamedTuple):
    """One way to run an op over one mesh axis: where the axis is on each operand and result."""

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factor: int = -1  # the factor that is sharded, -1 if none
    exchange: Exchange | None = None  # what the op itself sends


class Choice(NamedTuple):
    """How one op runs: the layouts it needs of its operands, those it gives its results, and the cost of that.

    order, picks: the mesh axes in play and the strategy on each; () where a choice does not come from strategies."""

    demands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    cost: float = 0.0
    order: tuple[str, ...] = ()
    picks: tuple[Strategy, ...] = ()


class In(NamedTuple):
    """An operand as the choice sees it: its layout now, and the others that exist anyway for other users."""

    type: Type
    layout: Layout
    others: tuple[Layout, ...] = ()


class Out(NamedTuple):
    """A result as the choice sees it: the layouts that its users want; None while they are unknown."""

    type: Type
    demands: tuple[Layout, ...] | None = None


class Rule:
    """The rule of one op instance.

    operands, results: per value the factor of each dim. sizes: the factors' sizes. strategies: the first replicates
    everything. even: factors that can only be cut in equal parts. work: of the whole op. expand:
    emits the local ops.
    """

    __slots__ = (
        "_choices",
        "_ways",
        "by_operand",
        "by_result",
        "even",
        "expand",
        "fallback",
        "operands",
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
        fallback: bool = False,
        even: Iterable[int] = (),
    ):
        self.even = frozenset(even)
        self.operands = tuple(tuple(d) for d in operands)
        self.results = tuple(tuple(d) for d in results)
        self.sizes = tuple(sizes)
        none = Strategy((R,) * len(self.operands), (R,) * len(self.results))
        self.strategies = tuple(dict.fromkeys([none, *strategies]))
        self.expand = expand
        self.work = work
        self.fallback = fallback
        self.by_operand: dict[tuple[int, Placement], list[Strategy]] = {}
        self.by_result: dict[tuple[int, Placement], list[Strategy]] = {}
        for s in self.strategies[1:]:
            for i, p in enumerate(s.operands):
                if p != R:
                    self.by_operand.setdefault((i, p), []).append(s)
            for j, p in enumerate(s.results):
                if p != R:
                    self.by_result.setdefault((j, p), []).append(s)
        self._choices: dict[Any, Choice] = {}
        self._ways: dict[Any, Choice | None] = {}

    # ------------------------------------------------------------------------------------------ choosing
    def choose(self, costs: Costs, ins: tuple[In, ...], outs: tuple[Out, ...]) -> Choice:
        """The cheapest way to run the op, given where its operands are and what its users want."""
        key = (ins, outs)
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choices[key] = self._choose(costs, ins, outs)
        return choice

    def _choose(self, costs: Costs, ins: tuple[In, ...], outs: tuple[Out, ...]) -> Choice:
        order, ins, outs = _axis_order(ins, outs, costs.mesh)
        if not order:
            return self._replicated(ins, outs, costs.mesh)
        pick = dict.fromkeys(order, self.strategies[0])
        # start from where the operands are, so that the first axes see true local sizes
        for axis in order:
            options = self._options(axis, ins, outs)
            if len(options) > 1:
                pick[axis] = options[1]
        best = self._price(pick, order, ins, outs, costs)
        if best is None:  # these don't go together
            pick = dict.fromkeys(order, self.strategies[0])
            best = self._price(pick, order, ins, outs, costs)
            assert best is not None
        # axes of one dim also move together: each alone would have to change places with those that stay
        moves: list[Sequence[str]] = [(axis,) for axis in order] * (2 if len(order) > 1 else 1)
        moves += dict.fromkeys(d for x in ins for d in x.layout.dims if len(d) > 1)
        for axes in moves:
            for option in self._options(axes[0], ins, outs):
                trial = self._price(pick | dict.fromkeys(axes, option), order, ins, outs, costs)
                if trial is not None and trial.cost < best.cost - 1e-9:
                    best = trial
                    pick.update(dict.fromkeys(axes, option))
        return best._replace(
            demands=tuple(canonical(d, x.type, costs.mesh) for d, x in zip(best.demands, ins, strict=True)),
            results=tuple(canonical(d, x.type, costs.mesh) for d, x in zip(best.results, outs, strict=True)),
        )

    def _replicated(self, ins: tuple[In, ...], outs: tuple[Out, ...], mesh: Mesh) -> Choice:
        return Choice(
            tuple(Layout.replicated(x.type.rank) for x in ins),
            tuple(Layout.replicated(x.type.rank) for x in outs),
            prices(mesh).work(self.work),
        )

    def _options(self, axis: str, ins: tuple[In, ...], outs: tuple[Out, ...]) -> list[Strategy]:
        """The strategies that some operand's or result's layout suggests; the replicated one is first. Where an
        operand is sharded on a dim that must be whole, or is dear to work along, all ways to shard another dim: an
        all-to-all may beat gathering, or what the op would exchange."""
        found: dict[Strategy, None] = {self.strategies[0]: None}
        for i, x in enumerate(ins):
            for layout in (x.layout, *x.others):
                where = layout.placement.get(axis)
                if where is None:
                    continue
                ways = self.by_operand.get((i, where), [])
                found.update(dict.fromkeys(ways))
                dear = all(s.exchange for s in ways)
                if dear and layout is x.layout and not isinstance(where, str):
                    found.update(
                        dict.fromkeys(s for s in self.strategies if s.factor >= 0 and s.operands[i] != R)
                    )
        for j, out in enumerate(outs):
            for layout in out.demands or ():
                where = layout.placement.get(axis)
                if where is not None:
                    found.update(dict.fromkeys(self.by_result.get((j, where), ())))
        return list(found)

    def _price(
        self,
        pick: dict[str, Strategy],
        order: list[str],
        ins: tuple[In, ...],
        outs: tuple[Out, ...],
        costs: Costs,
    ) -> Choice | None:
        """The choice that these strategies make, with what it costs here; None if they don't go together."""
        mesh = costs.mesh
        if not self.divides(order, [pick[a] for a in order], mesh, ins):
            return None
        blocks = self._blocks(pick, ins, mesh) if any(x.layout.blocks for x in ins) else ()
        way = self.way(tuple(order), tuple([pick[a] for a in order]), ins, outs, mesh, blocks)
        if way is None:
            return None
        cost = way.cost
        for x, layout in zip(ins, way.demands, strict=True):
            cost += costs.marginal(x.type, x.layout, x.others, layout)
        for out, layout in zip(outs, way.results, strict=True):
            cost += costs.serve(out.type, layout, out.demands)
        return way._replace(cost=cost)

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
        the strategies don't go together. `ins`, `outs`: anything with the operands' and results' types."""
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
        shards = 1
        factors: dict[int, tuple[Strategy, list[str]]] = {}
        for axis, s in zip(order, picks, strict=True):
            if s.factor >= 0:
                chosen, axes = factors.setdefault(s.factor, (s, []))
                if chosen is not s:
                    return None  # a factor is sharded in one way only
                axes.append(axis)
                shards *= mesh.axis_size(axis)
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
        cost = price.work(self.work) / shards
        cost += DEFER * sum(any(isinstance(p, str) for p in s.operands) for s in picks)
        for s, axes in factors.values():
            if s.exchange:
                local_ins = [local_type(t, d, mesh) for t, d in zip(ins, demands, strict=True)]
                local_outs = [local_type(t, r, mesh) for t, r in zip(outs, results, strict=True)]
                sent, messages = s.exchange(mesh.axes_size(axes), local_ins, local_outs)
                cost += price.send(axes, sent, messages)
        return Choice(tuple(demands), tuple(results), cost, order, picks)

    def _blocks(
        self, pick: dict[str, Strategy], ins: tuple[In, ...], mesh: Mesh
    ) -> tuple[tuple[int, int], ...]:
        """Per sharded factor the block that an operand already has for exactly these axes, if not the default."""
        factors: dict[int, list[str]] = {}
        for axis, s in pick.items():
            factors.setdefault(s.factor, []).append(axis)
        found: dict[int, int] = {}
        for i, x in enumerate(ins):
            for d, block in enumerate(x.layout.blocks):
                f = self.operands[i][d]
                if f is None or f in self.even:
                    continue
                if block and f not in found and list(x.layout.dims[d]) == factors.get(f):
                    found[f] = local_block(x.layout, d, x.type.shape[d], mesh)
        return tuple(found.items())

    def turned(self, op: Op, ways: Iterable[Choice], mesh: Mesh) -> Iterator[Choice]:
        """Those of the ways to run the op that have several axes on a dim, with these in the other order."""
        for way in ways:
            if any(len(axes) > 1 for x in (*way.demands, *way.results) for axes in x.dims):
                turned = self.way(way.order[::-1], way.picks[::-1], op.operands, op.results, mesh)
                if turned is not None:
                    yield turned

    def variants(
        self, op: Op, choice: Choice, axis: str, kinds: frozenset[str], mesh: Mesh
    ) -> tuple[Choice, ...]:
        """The ways to run the op that differ from `choice` on one axis at most; `choice` comes first. Of the ways to pass
        partials on there are those of `kinds`. Pieces of axes stay as they are."""
        order, picks = choice.order, choice.picks
        if any(":" in a for a in order):
            return (choice,)
        # an axis that is nowhere comes in the mesh's order, as on the carries of loops
        if axis in order and picks[at := order.index(axis)] is self.strategies[0]:
            order, picks = order[:at] + order[at + 1 :], picks[:at] + picks[at + 1 :]
        if axis not in order:
            names = list(mesh.shape)
            at = sum(names.index(a) < names.index(axis) for a in order)
            order = (*order[:at], axis, *order[at:])
            picks = (*picks[:at], self.strategies[0], *picks[at:])
        at = order.index(axis)
        ways: list[Choice] = []
        for s in dict.fromkeys((picks[at], *self.strategies)):
            passed = [p for p in s.operands if isinstance(p, str)] if s.factor < 0 else []
            if s is not picks[at] and not kinds.issuperset(passed):
                continue
            pick = (*picks[:at], s, *picks[at + 1 :])
            if s is picks[at] or self.divides(order, pick, mesh):
                way = self.way(order, pick, op.operands, op.results, mesh)
                if way is not None:
                    ways.append(way)
        return tuple(ways)

    def own_cost(self, op: Op, choice: Choice, mesh: Mesh) -> float:
        """Work and messages of the op itself."""
        way = self.way(choice.order, choice.picks, op.operands, op.results, mesh)
        assert way is not None
        return way.cost

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
    """Whether to try cutting a dim over some axes: in equal parts, or over one axis that it has more elements than."""
    n = mesh.axes_size(axes)
    return size % n == 0 or (len(axes) == 1 and size > n)


def with_axis(layout: Layout, axis: str, place: Placement, mesh: Mesh) -> Layout:
    """A layout without `axis`, with it: on a dim, among the other axes in the mesh's order; or as a partial."""
    if isinstance(place, str):
        return layout.with_partial((*layout.partial, (axis, place)))
    names = list(mesh.shape)
    axes = layout.dims[place]
    at = sum(names.index(a) < names.index(axis) for a in axes)
    return layout.with_dim(place, (*axes[:at], axis, *axes[at:]))


def _axis_order(
    ins: tuple[In, ...], outs: tuple[Out, ...], mesh: Mesh
) -> tuple[list[str], tuple[In, ...], tuple[Out, ...]]:
    """The axes in play, in one order for the whole op: that of the largest operand first. Overlapping sub-axes are
    cut to common pieces, so the returned operands and results may be spelled finer."""
    seen = [x for i in ins for x in (i.layout, *i.others)] + [x for o in outs for x in o.demands or ()]
    if any(":" in a for x in seen for a in x.axes):
        fine = iter(refine(nesting(tuple(seen), mesh), mesh))
        ins = tuple(In(i.type, next(fine), tuple(next(fine) for _ in i.others)) for i in ins)
        outs = tuple(
            Out(o.type, None if o.demands is None else tuple(next(fine) for _ in o.demands)) for o in outs
        )
    order: dict[str, None] = {}
    for x in sorted(ins, key=lambda i: -i.type.nbytes):
        for layout in (x.layout, *x.others):
            order.update(dict.fromkeys(layout.placement))
    for o in outs:
        for layout in o.demands or ():
            order.update(dict.fromkeys(layout.placement))
    return list(order), ins, outs


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
) -> Rule:
    """A rule from factors.

    reduced: factors that a result lacks, with the kind of partial that sharding them leaves on it.
    whole: factors that can't be sharded. linear: (operands, kinds) groups: if these operands are partial of such a
    kind, and the others replicated, so are the results. exchange: see `Strategy`. extra: strategies that the factors
    don't imply.
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
    return Rule(operands, results, sizes, [*strategies, *extra], expand, work, even=even)


def _dim_of(dims: Dims, factor: int) -> int:
    return dims.index(factor) if factor in dims else R


def numbered(shape: Sequence[int], start: int = 0) -> tuple[int, ...]:
    """One factor per dim."""
    return tuple(range(start, start + len(shape)))


def shape_of(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.shape
