"""Ops that return their operands, each on its own: optimization_barrier. Every operand keeps whatever layout it has."""

from __future__ import annotations

from ...ir.graph import Op, Value
from ...ir.mesh import Mesh
from ..assignment import Costs
from ..builder import Builder
from .base import Choice, In, Out, Rule


class IdentityRule(Rule):
    """Every operand keeps the layout that it has."""

    __slots__ = ()

    def __init__(self, op: Op):
        super().__init__([()] * len(op.operands), [()] * len(op.results), (), (), _expand)

    def _choose(self, costs: Costs, ins: tuple[In, ...], outs: tuple[Out, ...]) -> Choice:
        picks = []
        total = 0.0
        for x, out in zip(ins, outs, strict=True):
            options = dict.fromkeys([x.layout, *x.others, *(out.demands or ())])
            priced = [
                (costs.marginal(x.type, x.layout, x.others, o) + costs.serve(out.type, o, out.demands), k, o)
                for k, o in enumerate(options)
            ]
            cost, _, layout = min(priced)
            picks.append(layout)
            total += cost
        return Choice(tuple(picks), tuple(picks), total)

    def covers(self, op: Op, mesh: Mesh) -> bool:
        return all(x.layout is y.layout for x, y in zip(op.operands, op.results, strict=True))


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    return b.local(op, args)


RULES = {"optimization_barrier": IdentityRule}
