"""What is tried after the dynamic programming: moves that no decision of one axis at a time finds.

They make the program cheaper, and never send more: few bytes come before few messages and little arithmetic, unless there is
a hardware model, whose time counts alone, or little memory.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ..ir.graph import Block
from .dear import NEGLIGIBLE
from .dynamic import View, improve
from .joint_moves import joint_moves
from .region_moves import region_moves

if TYPE_CHECKING:
    from .engine import Engine


def local_search(engine: Engine, block: Block) -> bool:
    """Moves ops so that the program gets cheaper, and lets the others follow. Whether any moved."""
    found = False
    for moves in (joint_moves, partial(region_moves, traffic=engine.limit)):
        before = engine.state()
        gain = moves(engine)
        if not gain:
            continue
        if gain < NEGLIGIBLE * engine.total():
            engine.restore(before)
            continue
        engine.memory.moved((moves is joint_moves, before.number))
        improve(engine, block, (View.PRESENT,))
        if engine.sends_more(before):
            engine.restore(before)
            continue
        found = True
    return found
