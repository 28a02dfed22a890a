"""Where a program pays: the values whose relayouts cost most."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir.graph import Value

if TYPE_CHECKING:
    from .engine import Engine

DEAR = 0.005  # of a program's cost, from which part on a value's relayouts are looked at
NEGLIGIBLE = 1e-4  # of a program's cost: a gain that is not worth looking at what follows


def dear_values(engine: Engine, count: int) -> list[Value]:
    """At most `count` values, the dearest first."""
    costs = [(-cost, k, v) for k, (v, cost) in enumerate(engine.relaid(engine.costs)) if cost]
    least = DEAR * engine.total() if costs else 0.0
    return [v for cost, _, v in sorted(costs)[:count] if -cost >= least]
