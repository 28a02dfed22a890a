"""How an op runs, given where its operands are: the strategies of its rule, one per mesh axis, that cost least together.

The axes are decided one after the other, from where the operands are now, and a second time when all are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...ir.layout import canonical, local_block
from ...ir.mesh import Mesh
from ..relayout.planner import nesting, refine
from .strategy import Choice, In, Out, R, Strategy

if TYPE_CHECKING:
    from ..search.assignment import Costs
    from .base import Rule


def cheapest(rule: Rule, costs: Costs, ins: tuple[In, ...], outs: tuple[Out, ...]) -> Choice:
    """The cheapest way to run the op that is found, by what it costs with bringing its operands and serving its users."""
    order, ins, outs = _axis_order(ins, outs, costs.mesh)
    return _Chooser(rule, costs, order, ins, outs).choice()


class _Chooser:
    """order: the mesh axes in play."""

    def __init__(
        self, rule: Rule, costs: Costs, order: list[str], ins: tuple[In, ...], outs: tuple[Out, ...]
    ):
        self.rule, self.costs, self.order, self.ins, self.outs = rule, costs, order, ins, outs
        self.mesh = costs.mesh

    def choice(self) -> Choice:
        order, replicated = self.order, self.rule.strategies[0]
        if not order:
            best = self.rule.way((), (), self.ins, self.outs, self.mesh)
            assert best is not None
            return best
        options = {axis: self.options(axis) for axis in order}
        # start from where the operands are, so that the first axes see true local sizes
        pick = {axis: some[1] if len(some) > 1 else replicated for axis, some in options.items()}
        best = self.price(pick)
        if best is None:  # these don't go together
            pick = dict.fromkeys(order, replicated)
            best = self.price(pick)
            assert best is not None
        # axes of one dim also move together: each alone would have to change places with those that stay
        moves: list[Sequence[str]] = [(axis,) for axis in order] * (2 if len(order) > 1 else 1)
        there = [layout for x in self.ins for layout in (x.layout, *x.others)]
        moves += dict.fromkeys(d for layout in there for d in layout.dims if len(d) > 1)
        for axes in moves:
            for option in options[axes[0]]:
                other = pick | dict.fromkeys(axes, option)
                trial = None if other == pick else self.price(other, best.cost - 1e-9)
                if trial is not None:
                    best, pick = trial, other
        demands, results = zip(best.demands, self.ins, strict=True), zip(best.results, self.outs, strict=True)
        return best._replace(
            demands=tuple(canonical(layout, x.type, self.mesh) for layout, x in demands),
            results=tuple(canonical(layout, x.type, self.mesh) for layout, x in results),
        )

    def options(self, axis: str) -> list[Strategy]:
        """The strategies that some operand's or result's layout suggests; the replicated one is first. Where an
        operand is sharded on a dim that must be whole, or is dear to work along, all ways to shard another dim: an
        all-to-all may beat gathering, or what the op would exchange."""
        rule = self.rule
        found: dict[Strategy, None] = {rule.strategies[0]: None}
        for i, x in enumerate(self.ins):
            for layout in (x.layout, *x.others):
                where = layout.placement.get(axis)
                if where is None:
                    continue
                ways = rule.by_operand.get((i, where), [])
                found.update(dict.fromkeys(ways))
                dear = all(s.exchange for s in ways)
                if dear and layout is x.layout and not isinstance(where, str):
                    found.update(
                        dict.fromkeys(s for s in rule.strategies if s.factor >= 0 and s.operands[i] != R)
                    )
        for j, out in enumerate(self.outs):
            for layout in out.demands or ():
                where = layout.placement.get(axis)
                if where is not None:
                    found.update(dict.fromkeys(rule.by_result.get((j, where), ())))
        return list(found)

    def price(self, pick: dict[str, Strategy], limit: float = math.inf) -> Choice | None:
        """The choice that these strategies make, with what it costs here; None if they don't go together, or that is `limit` or
        more."""
        rule, ins, outs, costs = self.rule, self.ins, self.outs, self.costs
        picks = tuple([pick[a] for a in self.order])
        if not rule.divides(self.order, picks, self.mesh, ins):
            return None
        blocks = self.blocks(pick) if any(x.layout.blocks for x in ins) else ()
        way = rule.way(tuple(self.order), picks, ins, outs, self.mesh, blocks)
        if way is None:
            return None
        cost = way.cost
        for x, layout in zip(ins, way.demands, strict=True):
            if cost >= limit:
                return None
            cost += costs.marginal(x.type, x.layout, x.others, layout, limit - cost)
        for out, layout in zip(outs, way.results, strict=True):
            if cost >= limit:
                return None
            cost += costs.serve(out.type, layout, out.demands, limit - cost)
        return way._replace(cost=cost) if cost < limit else None

    def blocks(self, pick: dict[str, Strategy]) -> tuple[tuple[int, int], ...]:
        """Per sharded factor the block that an operand already has for exactly these axes, if not the default."""
        rule, factors = self.rule, dict[int, list[str]]()
        for axis, s in pick.items():
            factors.setdefault(s.factor, []).append(axis)
        found: dict[int, int] = {}
        for i, x in enumerate(self.ins):
            for d, block in enumerate(x.layout.blocks):
                f = rule.operands[i][d]
                if f is None or f in rule.even:
                    continue
                if block and f not in found and list(x.layout.dims[d]) == factors.get(f):
                    found[f] = local_block(x.layout, d, x.type.shape[d], self.mesh)
        return tuple(found.items())


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
