"""Layouts of ops that hold blocks: while (carries by fixed point), case/if (branches agree), manual_computation.

A carry must enter, stay and leave in one layout. It starts in the layout of its initial value; where the body naturally
ends in another one, and changing the carry is cheaper than a relayout in each iteration, the carry changes and the body is
assigned again. So an accumulator of partial gradients becomes partial, and is reduced once, after the loop. An invariant
that the body only uses in another layout is relaid once, before the loop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir.graph import Block, Op, Value
from ...ir.layout import Layout
from ...ir.optable import CONTROL_FLOW
from ..rules.base import Choice

if TYPE_CHECKING:
    from .engine import Engine

ROUNDS = 6  # of the fixed point; each carry changes at most twice, nearly all settle in two rounds


def assign_loop(engine: Engine, op: Op) -> None:
    condition, body = op.regions
    layouts = engine.layouts
    initial = [layouts[v] for v in op.operands]
    carries = [engine.forwarding.seen.get(v, layout) for v, layout in zip(body.args, initial, strict=True)]
    trips = engine.trips(op)
    tried: list[set[Layout]] = [{x} for x in carries]
    best: tuple[float, list[Layout]] | None = None
    for _ in range(ROUNDS):
        natural = _run_body(engine, body, carries)
        total = trips * _body_cost(engine, body, carries)
        for v, a, b in zip(op.operands, initial, carries, strict=True):
            total += engine.costs.relayout(v.type, a, b)
            if b.partial:  # it is owed after the loop
                total += engine.costs.resolve(v.type, b)[0]
        if best is None or total < best[0] - 1e-9:
            best = (total, list(carries))
        changed = False
        for i, value in enumerate(body.args):
            want = _better_carry(engine, body, i, natural[i], carries[i])
            if want is None or want in tried[i]:
                continue
            stay = trips * engine.costs.relayout(value.type, natural[i], carries[i])
            if body.returns[i] is value:
                stay = trips * engine.costs.relayout(value.type, carries[i], want)
            enter = engine.costs.relayout(value.type, initial[i], want)
            if enter < stay or (stay > 0 and trips == 1) or enter == stay == 0 or _free_init(engine, op, i):
                tried[i].add(want)
                carries[i] = want
                changed = True
        if not changed:
            break
        _forget(engine, body)
    assert best is not None
    if carries != best[1]:
        carries = best[1]
        _forget(engine, body)
        _run_body(engine, body, carries)
    for value, layout in zip(body.returns, carries, strict=True):
        engine.want(value, layout)
    for value, layout in zip(condition.args, carries, strict=True):
        layouts[value] = layout
    engine.forward(condition)
    engine.want(condition.returns[0], Layout.replicated(0))
    engine.record(op, Choice(tuple(carries), tuple(carries)))


def _run_body(engine: Engine, body: Block, carries: list[Layout]) -> list[Layout]:
    for value, layout in zip(body.args, carries, strict=True):
        engine.layouts[value] = layout
    engine.forward(body)
    return [engine.layouts[v] for v in body.returns]


def _free_init(engine: Engine, op: Op, i: int) -> bool:
    """The initial value is replicated: entering the loop sharded or partial is a local slice."""
    return engine.layouts[op.operands[i]].is_replicated


def _better_carry(engine: Engine, body: Block, i: int, natural: Layout, carry: Layout) -> Layout | None:
    """The layout that the body would like carry `i` to have, if it isn't the one it has."""
    value = body.args[i]
    if body.returns[i] is value:  # an invariant: the only layout its users want, if there is one
        wanted = [x for x in engine.wanted(value) if x is not carry]
        if len(wanted) == 1 and carry not in engine.wanted(value):
            return wanted[0]
        return None
    return natural if natural is not carry else None


def _body_cost(engine: Engine, body: Block, carries: list[Layout]) -> float:
    """Relayouts in one iteration."""
    total = 0.0
    for value in _values(body):
        wanted = engine.wanted(value)
        if wanted:
            total += engine.costs.serve(value.type, engine.layouts[value], wanted)
    for value, layout in zip(body.returns, carries, strict=True):
        total += engine.costs.marginal(value.type, engine.layouts[value], engine.wanted(value), layout)
    return total


def _values(block: Block) -> list[Value]:
    return [*block.args, *(v for op in block.ops for v in op.results)]


def _forget(engine: Engine, body: Block) -> None:
    """Takes back what assigning the body recorded, so that it can be assigned again."""
    for op in body.ops:
        choice = engine.choices.pop(op, None)
        if choice is None:
            continue
        for value, layout in zip(op.operands, choice.demands, strict=True):
            engine.unwant(value, layout)
        if op.name in CONTROL_FLOW:
            for region in op.regions:
                scalar = op.name == "while" and region is op.regions[0]  # a loop's condition
                layouts = (Layout.replicated(0),) if scalar else choice.results
                for value, layout in zip(region.returns, layouts, strict=True):
                    engine.unwant(value, layout)
                _forget(engine, region)


def assign_branches(engine: Engine, op: Op) -> None:
    """Every branch is assigned on its own; each result takes the layout that costs the branches least."""
    engine.want(op.operands[0], Layout.replicated(0))
    for region in op.regions:
        engine.forward(region)
    results: list[Layout] = []
    for j, value in enumerate(op.results):
        natural = [engine.layouts[region.returns[j]] for region in op.regions]
        options = dict.fromkeys([*natural, *(x.without_partial() for x in natural)])
        priced = []
        for k, option in enumerate(options):
            cost = max(engine.costs.relayout(value.type, n, option) for n in natural)
            cost += engine.costs.resolve(value.type, option)[0] if option.partial else 0.0
            priced.append((cost, k, option))
        results.append(min(priced)[2])
    for region in op.regions:
        for value, layout in zip(region.returns, results, strict=True):
            engine.want(value, layout)
    engine.choices[op] = Choice((Layout.replicated(0),), tuple(results))
    for value, layout in zip(op.results, results, strict=True):
        engine.layouts[value] = layout


def assign_manual(engine: Engine, op: Op) -> None:
    """A region written per device: operands and results have the layouts that its author gave."""
    demands, results = (tuple(map(engine.given, op.attrs[k])) for k in ("in_layouts", "out_layouts"))
    engine.record(op, Choice(demands, results))  # type: ignore[arg-type]
