"""What is tried after the dynamic programming: moves that no decision of one axis at a time finds.

They make the program cheaper, and never send more: few bytes come before few messages and little arithmetic, unless there is
a hardware model, whose time counts alone, or little memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from ...ir.graph import Block
from .dear_relayouts import NEGLIGIBLE
from .dynamic import View, improve
from .joint_moves import joint_moves
from .proposal import Allowed
from .region_moves import region_moves

if TYPE_CHECKING:
    from .engine import Engine

ROUNDS = 3  # of all kinds of moves, at most


def local_search(engine: Engine, block: Block, allowed: Allowed | None = None) -> None:
    """Moves ops so that the program gets cheaper, and lets the others follow. allowed: what has to be so after each move."""
    regions = partial(region_moves, traffic=engine.limit, allowed=allowed)
    kinds = (joint_moves,), (regions, partial(regions, picky=True))
    idle = 0  # kinds of moves, one after another, that found nothing
    for k in range(ROUNDS * len(kinds)):
        idle = 0 if _moved(engine, block, kinds[k % len(kinds)], allowed) else idle + 1
        if idle == len(kinds):
            break


def _moved(
    engine: Engine, block: Block, attempts: Sequence[Callable[[Engine], float]], allowed: Allowed | None
) -> bool:
    """Whether moves of one kind made the program cheaper by a part that counts, and it doesn't send more. attempts: each where that
    before it gained a part that doesn't count."""
    before = engine.state()
    for moves in attempts:
        gain = moves(engine)
        if not gain:
            return False
        if gain >= NEGLIGIBLE * engine.total():
            break
        engine.restore(before)
    else:
        return False
    engine.moved()
    moved = engine.state()
    improve(engine, block, (View.PRESENT,))

    def is_allowed() -> bool:
        return not engine.sends_more(before) and (allowed is None or allowed())

    if is_allowed():
        return True
    if allowed is not None:
        engine.restore(moved)
        if is_allowed():
            return True
    engine.restore(before)
    return False
