"""The best mixture of two assignments: each op runs as in the one or as in the other.

Searches that begin differently find different things in different parts of a program. Which op should take its way from the
other assignment is a minimum cut, as for regions that move (`region_moves`): a fusion move (Lempitsky, Rother, Roth, Blake 2010).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...ir.optable import CONTROL_FLOW
from .axis_ways import FIXED
from .proposal import Allowed, accept_if, connected
from .region_moves import move_best
from .regions import Region

if TYPE_CHECKING:
    from .engine import Engine, State
    from .traffic import Traffic


def take_from(engine: Engine, other: State, traffic: Traffic | None = None) -> float:
    """Takes over what is better in another assignment of the same program; how much cheaper that is. traffic: nothing is taken
    if the program then sends more."""
    region = differences(engine, other)
    return move_best(engine, region, traffic) if region else 0.0


def take_within(engine: Engine, other: State, bound: Allowed) -> None:
    """Takes over what is cheaper in another assignment where the program keeps to a bound: groups of ops together where they may be,
    else by halves."""
    region = differences(engine, other)
    todo = [connected(engine, region)]
    while todo:
        groups = todo.pop()
        chosen = {node: region[node] for group in groups for node in group}
        if not accept_if(engine, chosen, bound) and len(groups) > 1:
            half = len(groups) // 2
            todo += groups[half:], groups[:half]
    engine.moved()


def differences(engine: Engine, other: State) -> Region:
    """What runs in another way in another assignment of the same program, with this way."""
    region: Region = {}
    for op, choice in other.choices.items():
        present = engine.choices[op]
        if op.name in FIXED or choice == present:
            continue
        if op.name in CONTROL_FLOW:
            pairs = zip(choice.results, present.results, strict=True)
            region.update({(op, i): new for i, (new, old) in enumerate(pairs) if new is not old})
        else:
            region[op] = choice
    return region
