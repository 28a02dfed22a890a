"""Changes of an assignment, proposed together: each connected group is kept only if the program gets cheaper by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from ...ir.graph import Op, Value
from ...ir.layout import Layout
from ..rules.base import Choice

if TYPE_CHECKING:
    from .engine import Engine

Node = (
    Op | tuple[Op, int]
)  # what is decided: how an op runs; the layout of a loop's carry, or of a branch's result
Chosen = Mapping[Node, Choice | Layout]
Allowed = Callable[[], bool]  # whether the program may be as changes make it


def accept(engine: Engine, chosen: Chosen, leap: bool = False) -> float:
    """Makes the changes that pay, or all with `leap`. Returns how much cheaper the program is now."""
    return sum(
        [take(engine, {node: chosen[node] for node in group}, leap) for group in connected(engine, chosen)]
    )


def accept_if(engine: Engine, chosen: Chosen, allowed: Allowed, least: float = 0.0) -> float:
    """As `accept`, or no changes at all if they don't pay more than the `least`, or the program is not what is allowed then."""
    before = {node: now(engine, node) for node in chosen}
    paid = accept(engine, chosen)
    if not paid or (paid > least and allowed()):
        return paid
    for node, choice in before.items():
        engine.change(node, choice)
    return 0.0


def take(engine: Engine, chosen: Chosen, leap: bool = False) -> float:
    """Makes all the changes if that makes the program cheaper (or anyway, with `leap`); by how much."""
    old = {node: now(engine, node) for node in chosen}
    values = dict.fromkeys(v for node in chosen for v in _touched(engine, node, chosen))
    before = _price(engine, values, chosen)
    for node, new in chosen.items():
        engine.change(node, new)
    gain = before - _price(engine, values, chosen, math.inf if leap else before)
    if gain > 1e-6 or leap:
        return gain
    for node, new in old.items():
        engine.change(node, new)
    return 0.0


def now(engine: Engine, node: Node) -> Choice | Layout:
    """What is decided of a node at present."""
    return engine.choices[node[0]].results[node[1]] if isinstance(node, tuple) else engine.choices[node]


def connected(engine: Engine, chosen: Chosen) -> list[list[Node]]:
    """What changes, in groups that touch each other through a value whose layout they change."""
    nodes = list(chosen)
    first = list(range(len(nodes)))  # of each node an earlier one of its group, or itself

    def head(i: int) -> int:
        while first[i] != i:
            first[i] = i = first[first[i]]
        return i

    seen: dict[Value, int] = {}
    for i, node in enumerate(nodes):
        for v in _touched(engine, node, chosen):
            a, b = head(i), head(seen.setdefault(v, i))
            first[max(a, b)] = min(a, b)
    groups: dict[int, list[Node]] = {}
    for i, node in enumerate(nodes):
        groups.setdefault(head(i), []).append(node)
    return list(groups.values())


def _touched(engine: Engine, node: Node, chosen: Chosen) -> Iterator[Value]:
    if isinstance(node, tuple):
        yield from engine.carried(*node)
        return
    old, new = engine.choices[node], chosen[node]
    assert isinstance(new, Choice)
    before, after = (*old.demands, *old.results), (*new.demands, *new.results)
    for v, a, b in zip((*node.operands, *node.results), before, after, strict=True):
        if a is not b:
            yield v


def _price(engine: Engine, values: Iterable[Value], nodes: Iterable[Node], limit: float = math.inf) -> float:
    """What nodes, and the relayouts of values, cost. If that is `limit` or more, it may be less instead, but not below `limit`."""
    weights, costs, cost = engine.weights, engine.costs, 0.0
    for node in nodes:
        if not isinstance(node, tuple):
            cost += weights.get(node, 1) * engine.choices[node].cost
    unknown: list[tuple[float, float, Value]] = []
    for v in values:
        served, exact = costs.served(v.type, engine.layouts[v], engine.wanted(v))
        cost += weights.get(v, 1) * served
        if not exact:
            unknown.append((weights.get(v, 1), served, v))
    for weight, least, v in unknown:
        if cost >= limit:
            break
        cost += weight * (costs.serve(v.type, engine.layouts[v], engine.wanted(v)) - least)
    return cost
