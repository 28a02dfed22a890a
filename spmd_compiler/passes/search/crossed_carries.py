"""Carries of loops that lie on axes along several dims, seen on none.

A search that decides one axis after the other leaves them there: without one of the axes alone each iteration sends as much, where
without all of them it sends nothing, for one gather before the loop.
"""

from __future__ import annotations

from ...ir.graph import Block, Value
from ...ir.layout import Layout
from ..prepare.iterations import PUTS
from .engine import Engine


def crossed_carries(engine: Engine, body: Block) -> dict[Value, Layout]:
    """Those that are computed anew in each iteration, replicated."""
    found: dict[Value, Layout] = {}
    for op in body.walk():
        if op.name == "while":
            region = op.regions[1]
            made = region.makers()
            for value, end in zip(region.args, region.returns, strict=True):
                layout = engine.layouts.get(value)  # blocks of one device have none
                crossed = layout is not None and sum(map(bool, layout.dims)) > 1
                if crossed and end in made and made[end].name not in PUTS:
                    found[value] = Layout.replicated(value.type.rank)
    return found
