"""Moves of one op over all mesh axes at once, where the program pays for relayouts.

The dynamic programming decides one axis at a time (`dynamic`). Where an op should move several axes together (onto one dim,
or two that change places), each alone may cost more than both. So the ops at the ends of the dearest relayouts are tried in
all ways to run them, over all axes; a way stays if the program's cost falls. The carries of loops are tried where their users
inside want them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir.graph import Op, Value
from ...ir.optable import CONTROL_FLOW
from ..rules.base import Choice, distinct
from .axis_ways import FIXED
from .dear_relayouts import dear_values
from .proposal import take

if TYPE_CHECKING:
    from .engine import Engine

VALUES = 8  # whose relayouts are looked at
WAYS = 160  # to run one op, at most, from which further ones are made


def joint_moves(engine: Engine) -> float:
    """Moves ops so that the program gets cheaper. Returns by how much."""
    if sum(engine.mesh.axis_size(axis) > 1 for axis in engine.mesh.shape) < 2:
        return 0.0
    gain = sum([_move(engine, op) for op in _ends(engine)])
    return gain + sum([_move_carries(engine, op) for op in engine.choices if op.name == "while"])


def _move_carries(engine: Engine, op: Op) -> float:
    """Moves the carries of a loop to where users inside have them, if that differs on several axes; how much cheaper it is."""
    gain, body = 0.0, op.regions[1]
    for i, arg in enumerate(body.args):
        if body.returns[i] is arg:
            continue  # it only passes through
        for layout in dict.fromkeys(x for r in op.regions for x in engine.wanted(r.args[i])):
            now = engine.choices[op].results[i].placement
            axes = {a for a in now.keys() | layout.axes if now.get(a) != layout.placement.get(a)}
            if len(axes) > 1:
                gain += take(engine, {(op, i): layout})
    return gain


def _ends(engine: Engine) -> list[Op]:
    """The ops that make or read the values whose relayouts cost most, the dearest first."""
    dear = dear_values(engine, VALUES)
    if not dear:
        return []
    found: dict[Value, dict[Op, None]] = {v: {} for v in dear}
    for op in engine.choices:
        if op.name not in CONTROL_FLOW and op.name not in FIXED:
            for v in (*op.results, *op.operands):
                if v in found:
                    found[v][op] = None
    return list(dict.fromkeys(op for ops in found.values() for op in ops))


def _move(engine: Engine, op: Op) -> float:
    """Runs an op in the cheapest way, all else as it is; how much cheaper that is."""
    weight, gain = engine.weights.get(op, 1), 0.0
    spent = weight * engine.choices[op].cost
    for v in dict.fromkeys((*op.results, *op.operands)):
        spent += engine.weights.get(v, 1) * engine.costs.serve(v.type, engine.layouts[v], engine.wanted(v))
    for way in _other_ways(engine, op):
        least = way.cost
        for v, layout in zip(op.results, way.results, strict=True):
            least += engine.costs.at_least(v.type, layout, engine.wanted(v, layout))
        if weight * least < spent - gain:
            gain += take(engine, {op: way})
    return gain


def _other_ways(engine: Engine, op: Op) -> list[Choice]:
    """The other ways to run an op over all axes that something around it has, also with those of a dim turned round."""
    now = engine.choices[op]
    around = [*now.demands, *now.results, *(engine.layouts[v] for v in op.operands)]
    around += [x for v in op.results for x in engine.wanted(v)]
    if any(x.blocks for x in around):
        return []
    rule, found = engine.book.rule(op), [now]
    for axis in engine.mesh.shape:
        there = [x.placement[axis] for x in around if axis in x.axes]
        if there:
            kinds = frozenset(p for p in there if isinstance(p, str))
            more = (w for way in found[:WAYS] for w in rule.variants(op, way, axis, kinds, engine.mesh))
            found = distinct([*found, *more])
    return distinct([*found, *rule.turned(op, found[:WAYS], engine.mesh)])[1:]
