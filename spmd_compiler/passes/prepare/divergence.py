"""Where devices may go different ways: loops and branches in manual regions that depend on data of the manual axes.

There, collectives over the automatic axes run in each group of devices by itself, some more often than others. A
collective-permute can't: XLA waits for all devices that any of its pairs names. `Builder` writes another collective then.
"""

from __future__ import annotations

from ...ir.graph import Block, Op, Value
from .varying import NONE, Axes, Varying


def mark_divergent(block: Block, sources: dict[Value, Axes]) -> None:
    """Sets `divergent` on the loops and branches whose predicate may differ along manual axes. `sources`: values that
    differ along axes though they are made of nothing that does, such as a device's position."""
    _Marker(sources).block(block)


class _Marker(Varying):
    """Along the manual axes only."""

    def __init__(self, sources: dict[Value, Axes]):
        super().__init__()
        self.sources = sources

    def of(self, op: Op, over: Axes) -> Axes:
        if op.name == "enter_manual":
            over |= op.attrs["outside"].axes
        elif op.name == "leave_manual":
            over = over.difference(op.attrs["manual_axes"])
        return over.union(*(self.sources.get(v, NONE) for v in op.results))

    def decided(self, op: Op, over: Axes) -> None:
        if over and "divergent" not in op.attrs:
            op.attrs = {**op.attrs, "divergent": True}
