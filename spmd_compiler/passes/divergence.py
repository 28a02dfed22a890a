"""Where devices may go different ways: loops and branches in manual regions that depend on data of the manual axes.

There, collectives over the automatic axes run in each group of devices by itself, some more often than others. A
collective-permute can't: XLA waits for all devices that any of its pairs names. `Builder` writes another collective then.
"""

from __future__ import annotations

from ..ir.graph import Block, Op, Value

Axes = frozenset[str]
_NONE: Axes = frozenset()


def mark_divergent(block: Block, sources: dict[Value, Axes]) -> None:
    """Sets `divergent` on the loops and branches whose predicate may differ along manual axes. `sources`: values that
    differ along axes though they are made of nothing that does, such as a device's position."""
    _Marker(sources).block(block)


class _Marker:
    """`varying`: the manual axes along which a value may differ."""

    def __init__(self, sources: dict[Value, Axes]):
        self.sources = sources
        self.varying: dict[Value, Axes] = {}

    def block(self, block: Block) -> None:
        varying = self.varying
        for op in block.ops:
            if op.name == "while":
                self.loop(op)
                continue
            if op.name in ("case", "if"):
                self.branches(op)
                continue
            over = _NONE.union(*(varying.get(v, _NONE) for v in op.operands))
            if op.name == "enter_manual":
                over |= op.attrs["outside"].axes
            elif op.name == "leave_manual":
                over = over.difference(op.attrs["manual_axes"])
            for v in op.results:
                varying[v] = over | self.sources.get(v, _NONE)

    def loop(self, op: Op) -> None:
        condition, body = op.regions
        carries = [self.varying.get(v, _NONE) for v in op.operands]
        while True:
            for region in op.regions:
                self.varying.update(zip(region.args, carries, strict=True))
                self.block(region)
            decides = self.varying.get(condition.returns[0], _NONE)
            new = [
                c | decides | self.varying.get(v, _NONE) for c, v in zip(carries, body.returns, strict=True)
            ]
            if new == carries:
                break
            carries = new
        self.varying.update(zip(op.results, carries, strict=True))
        _mark(op, decides)

    def branches(self, op: Op) -> None:
        decides = self.varying.get(op.operands[0], _NONE)
        for region in op.regions:
            self.block(region)
        for i, v in enumerate(op.results):
            self.varying[v] = decides.union(*(self.varying.get(r.returns[i], _NONE) for r in op.regions))
        _mark(op, decides)


def _mark(op: Op, decides: Axes) -> None:
    if decides and "divergent" not in op.attrs:
        op.attrs = {**op.attrs, "divergent": True}
