"""What all-gathers that go together take: all that they give is there as soon as the first of it is used."""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np

from ..ir.graph import Block, Op, Value
from .estimate import live_bytes, reads

WORTH = 1.05  # times the memory that a block takes anyway, which fewer messages may take


class GatherMemory:
    """Of a block whose all-gathers, if they do not go together, run where they are used."""

    def __init__(self, block: Block, gathers: Container[Op], copied: int):
        """gathers: those that may go together; of them operands of `copied` bytes at most are packed into one buffer."""
        self._copied = copied
        first: dict[Value, int] = {}
        for i, op in enumerate(block.ops):
            for v in reads(op):
                first.setdefault(v, i)
        end = len(block.ops)
        behind: dict[int, list[Op]] = {}
        for op in block.ops:
            if op in gathers:
                behind.setdefault(min(first.get(v, end) for v in op.results), []).append(op)
        ops: list[Op] = []
        for i, op in enumerate([*block.ops, None]):
            ops += behind.get(i, ())
            if op is not None and op not in gathers:
                ops.append(op)
        self._places = {op: i for i, op in enumerate(ops)}
        self._live = np.array(live_bytes(Block(block.args, ops, block.returns), set()))
        self._most = WORTH * self._live.max()

    def holds(self, together: Sequence[Op]) -> bool:
        """Whether the block takes hardly more memory if some run together, given in the order in which their results are used."""
        first, *others = (self._places[op] for op in together)
        if not others:
            return True
        live = self._live[first : others[-1] + 1].copy()
        for op, place in zip(together[1:], others, strict=True):
            live[: place - first] += sum(v.type.nbytes for v in op.results)
        ends = [(x, y) for op in together for x, y in zip(op.operands, op.results, strict=True)]
        live[0] += sum(y.type.nbytes for x, y in ends if x.type.nbytes <= self._copied)
        return bool(live.max() <= self._most)
