"""What a sharding rule is, and how the layouts of one op are chosen from it.

A rule describes one op instance, and speaks of one mesh axis at a time. It names the op's *factors* like an einsum does
(`mk,kn->mn`): sharding a factor over an axis shards every dim that carries it. From the factors come *strategies*: a
placement of the axis on every operand and result. The engine picks one strategy per axis, and composes them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...ir.graph import Op, Value
from ...ir.layout import Layout, canonical, local_block, local_type
from ...ir.mesh import Mesh
from ...ir.types import TensorType, Type
from ..relayout import refine

if TYPE_CHECKING:
    from ..assignment import Costs
    from ..builder import Builder

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
    """How one op runs: the layouts it needs of its operands, those it gives its results, and the cost of that."""

    demands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    cost: float = 0.0


IMPOSSIBLE = Choice((), (), math.inf)


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
    everything. even: factors that can only be cut in equal parts. work: bytes touched and flops, in the cost model's unit, by the whole op. expand: emits the local ops.
    """

    __slots__ = (
        "_choices",
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
        work: float = 0.0,
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

    # ------------------------------------------------------------------------------------------ choosing
    def choose(self, costs: Costs, ins: tuple[In, ...], outs: tuple[Out, ...]) -> Choice:
        """The cheapest way to run the op, given where its operands are and what its users want."""
        key = (costs.mesh, ins, outs)
        choice = self._choices.get(key)
        if choice is None:
            choice = self._choices[key] = self._choose(costs, ins, outs)
        return choice

    def _choose(self, costs: Costs, ins: tuple[In, ...], outs: tuple[Out, ...]) -> Choice:
        order, ins, outs = _axis_order(ins, outs, costs.mesh)
        if not order:
            return self._replicated(ins, outs)
        pick = dict.fromkeys(order, self.strategies[0])
        # start from where the operands are, so that the first axes see true local sizes
        for axis in order:
            options = self._options(axis, ins, outs)
            if len(options) > 1:
                pick[axis] = options[1]
        best: tuple[float, Choice] | None = None
        for _ in range(2 if len(order) > 1 else 1):
            for axis in order:
                best = None
                chosen = pick[axis]
                for option in self._options(axis, ins, outs):
                    trial = self._compose({**pick, axis: option}, order, ins, outs, costs)
                    if best is None or trial.cost < best[0] - 1e-9:
                        best = (trial.cost, trial)
                        chosen = option
                pick[axis] = chosen
        assert best is not None
        choice = best[1]
        return Choice(
            tuple(canonical(d, x.type, costs.mesh) for d, x in zip(choice.demands, ins, strict=True)),
            tuple(canonical(d, x.type, costs.mesh) for d, x in zip(choice.results, outs, strict=True)),
            choice.cost,
        )

    def _replicated(self, ins: tuple[In, ...], outs: tuple[Out, ...]) -> Choice:
        return Choice(
            tuple(Layout.replicated(x.type.rank) for x in ins),
            tuple(Layout.replicated(x.type.rank) for x in outs),
            self.work,
        )

    def _options(self, axis: str, ins: tuple[In, ...], outs: tuple[Out, ...]) -> list[Strategy]:
        """The strategies that some operand's or result's layout suggests; the replicated one is first. Where an
        operand is sharded on a dim that must be whole, all ways to shard another dim: an all-to-all may beat gathering."""
        found: dict[Strategy, None] = {self.strategies[0]: None}
        for i, x in enumerate(ins):
            for layout in (x.layout, *x.others):
                where = layout.placement.get(axis)
                if where is None:
                    continue
                ways = self.by_operand.get((i, where))
                if ways:
                    found.update(dict.fromkeys(ways))
                elif layout is x.layout and not isinstance(where, str):
                    found.update(
                        dict.fromkeys(s for s in self.strategies if s.factor >= 0 and s.operands[i] != R)
                    )
        for j, out in enumerate(outs):
            for layout in out.demands or ():
                where = layout.placement.get(axis)
                if where is not None:
                    found.update(dict.fromkeys(self.by_result.get((j, where), ())))
        return list(found)

    def _compose(
        self,
        pick: dict[str, Strategy],
        order: list[str],
        ins: tuple[In, ...],
        outs: tuple[Out, ...],
        costs: Costs,
    ) -> Choice:
        mesh = costs.mesh
        shards = 1
        factors: dict[int, list[str]] = {}
        for axis in order:
            s = pick[axis]
            if s.factor >= 0:
                axes = factors.setdefault(s.factor, [])
                if axes and pick[axes[0]] is not s:
                    return IMPOSSIBLE  # a factor is sharded in one way only
                axes.append(axis)
                shards *= mesh.axis_size(axis)
        if any(self.sizes[f] % mesh.axes_size(factors[f]) for f in self.even.intersection(factors)):
            return IMPOSSIBLE
        blocks = self._blocks(factors, ins, outs, mesh) if any(x.layout.blocks for x in ins) else {}
        cost = self.work / shards
        demands: list[Layout] = []
        for i, x in enumerate(ins):
            layout = _build(x.type.rank, [(a, pick[a].operands[i]) for a in order], self.operands[i], blocks)
            demands.append(layout)
            cost += costs.marginal(x.type, x.layout, x.others, layout)
        results: list[Layout] = []
        for j, out in enumerate(outs):
            layout = _build(out.type.rank, [(a, pick[a].results[j]) for a in order], self.results[j], blocks)
            results.append(layout)
            cost += costs.serve(out.type, layout, out.demands)
        for axes in factors.values():
            if exchange := pick[axes[0]].exchange:
                local_ins = [local_type(x.type, d, mesh) for x, d in zip(ins, demands, strict=True)]
                local_outs = [local_type(o.type, r, mesh) for o, r in zip(outs, results, strict=True)]
                sent, messages = exchange(mesh.axes_size(axes), local_ins, local_outs)
                cost += sent + messages * costs.message
        return Choice(tuple(demands), tuple(results), cost)

    def _blocks(
        self, factors: dict[int, list[str]], ins: tuple[In, ...], outs: tuple[Out, ...], mesh: Mesh
    ) -> dict[int, int]:
        """Per sharded factor the block that an operand already has for exactly these axes, if not the default."""
        found: dict[int, int] = {}
        for i, x in enumerate(ins):
            for d, block in enumerate(x.layout.blocks):
                f = self.operands[i][d]
                if block and f is not None and f not in found and list(x.layout.dims[d]) == factors.get(f):
                    found[f] = local_block(x.layout, d, x.type.shape[d], mesh)
        return found

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


def _axis_order(
    ins: tuple[In, ...], outs: tuple[Out, ...], mesh: Mesh
) -> tuple[list[str], tuple[In, ...], tuple[Out, ...]]:
    """The axes in play, in one order for the whole op: that of the largest operand first. Overlapping sub-axes are
    cut to common pieces, so the returned operands and results may be spelled finer."""
    seen = [x for i in ins for x in (i.layout, *i.others)] + [x for o in outs for x in o.demands or ()]
    if any(":" in a for x in seen for a in x.axes):
        fine = iter(refine(tuple(seen), mesh))
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
    work: float = 0.0,
) -> Rule:
    """A rule from factors.

    reduced: factors that only operands have, with the kind of partial that sharding them leaves on the results.
    whole: factors that can't be sharded. linear: (operands, kinds) groups: if these operands are partial of such a
    kind, and the others replicated, so are the results. exchange: see `Strategy`.
    """
    reduced = reduced or {}
    never = set(whole)
    strategies: list[Strategy] = []
    for f, size in enumerate(sizes):
        if f in never or size < 2:
            continue
        ops = tuple(_dim_of(dims, f) for dims in operands)
        res = tuple(reduced[f] if f in reduced else _dim_of(dims, f) for dims in results)
        strategies.append(Strategy(ops, res, f, (exchange or {}).get(f)))
    for group, kinds in linear:
        for kind in kinds:
            ops = tuple(kind if i in group else R for i in range(len(operands)))
            strategies.append(Strategy(ops, (kind,) * len(results)))
    return Rule(operands, results, sizes, strategies, expand, work, even=even)


def _dim_of(dims: Dims, factor: int) -> int:
    return dims.index(factor) if factor in dims else R


def numbered(shape: Sequence[int], start: int = 0) -> tuple[int, ...]:
    """One factor per dim."""
    return tuple(range(start, start + len(shape)))


def shape_of(value: Value) -> tuple[int, ...]:
    assert isinstance(value.type, TensorType)
    return value.type.shape
