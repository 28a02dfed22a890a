"""Along which mesh axes values differ between devices: through ops, loops (by fixed point) and branches."""

from __future__ import annotations

from ...ir.graph import Block, Op, Value
from ..estimate import reads

Axes = frozenset[str]
NONE: Axes = frozenset()


class Varying:
    """`axes`: of each value; none for what is not there."""

    def __init__(self) -> None:
        self.axes: dict[Value, Axes] = {}

    def of(self, op: Op, over: Axes) -> Axes:
        """Along which axes an op's results differ whose operands differ along `over`."""
        return over

    def decided(self, op: Op, over: Axes) -> None:
        """A loop or branching whose predicate differs along `over`."""

    def block(self, block: Block) -> None:
        axes = self.axes
        for op in block.ops:
            if op.name == "while":
                self._loop(op)
            elif op.name in ("case", "if"):
                self._branches(op)
            else:
                over = self.of(op, NONE.union(*(axes.get(v, NONE) for v in reads(op))))
                axes.update(dict.fromkeys(op.results, over))

    def _loop(self, op: Op) -> None:
        condition, body = op.regions
        axes = self.axes
        carries = [axes.get(v, NONE) for v in op.operands]
        while True:
            for region in op.regions:
                axes.update(zip(region.args, carries, strict=True))
                self.block(region)
            decides = axes.get(condition.returns[0], NONE)
            new = [c | decides | axes.get(v, NONE) for c, v in zip(carries, body.returns, strict=True)]
            if new == carries:
                break
            carries = new
        axes.update(zip(op.results, carries, strict=True))
        self.decided(op, decides)

    def _branches(self, op: Op) -> None:
        axes = self.axes
        decides = axes.get(op.operands[0], NONE)
        for region in op.regions:
            self.block(region)
        for i, v in enumerate(op.results):
            axes[v] = decides.union(*(axes.get(r.returns[i], NONE) for r in op.regions))
        self.decided(op, decides)
