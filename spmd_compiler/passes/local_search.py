"""What is tried after the dynamic programming: moves that no decision of one axis at a time finds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..ir.graph import Block
from .dynamic import View, improve
from .joint_moves import joint_moves

if TYPE_CHECKING:
    from .propagate import Engine


def local_search(engine: Engine, block: Block) -> None:
    """Moves ops so that the program gets cheaper, and lets the others follow."""
    if joint_moves(engine):
        origin = "moved", engine.memory.state
        engine.restore(engine.state()._replace(ends={}, number=engine.memory.number(origin)))
        improve(engine, block, (View.PRESENT,))
