"""What collectives that go together take: all that all-gathers give is there as soon as the first of it is used, all that
reduce-scatters take until the last of it is made, and in one buffer then."""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

import numpy as np

from ...ir.graph import Block, Op, Value
from ..estimate import TypeOf, live_bytes, own_type, reads, without

# times the memory that a block takes anyway by estimate, which fewer messages may take
GATHERED = 1.25  # XLA shares more of it
COPIED = 1.1


class TogetherMemory:
    """Of a block whose all-gathers, if they do not go together, run where they are used, and others where they are."""

    def __init__(self, block: Block, ops: Iterable[Op], copied: int):
        """ops: those that may go together; of all-gathers operands of `copied` bytes at most are packed into one buffer."""
        self._copied = copied
        ops = _where_used(block, {op for op in ops if op.name == "all_gather"})
        self._places = {op: i for i, op in enumerate(ops)}
        body, left = Block(block.args, ops, block.returns), {*block.returns}
        self._given = sum(own_type(v).nbytes for v in left)
        # XLA keeps a place for each result all along; it may put there what lies elsewhere otherwise
        types = own_type, without(left)
        self._models = [(type_of, np.array(live_bytes(body, set(), type_of))) for type_of in types]

    def holds(self, together: Sequence[Op]) -> bool:
        """Whether the block takes hardly more memory if some all-gathers, or some reduce-scatters, run together."""
        if together[0].name == "all_gather":
            return any(
                self._with_gathers(together, *model) <= GATHERED * model[1].max() for model in self._models
            )
        type_of, live = self._models[1]
        return self._with_scatters(together, type_of, live) + self._given <= COPIED * (
            live.max() + self._given
        )

    def _with_gathers(self, together: Sequence[Op], type_of: TypeOf, live: np.ndarray) -> int:
        """The most bytes that are live while what runs together is held for what uses it later."""
        places = [self._places[op] for op in together]
        first = min(places)
        held = live[first : max(places) + 1].copy()
        for op, place in zip(together, places, strict=True):
            held[: place - first] += sum(type_of(v).nbytes for v in op.results)
            ends = zip(op.operands, op.results, strict=True)
            held[0] += sum(y.type.nbytes for x, y in ends if x.type.nbytes <= self._copied)
        return held.max()

    def _with_scatters(self, together: Sequence[Op], type_of: TypeOf, live: np.ndarray) -> int:
        """The most bytes that are live, or were, while what runs together waits for the last of it, and is copied then."""
        places = [self._places[op] for op in together]
        first = min(places)
        held = live[first : max(places) + 1].copy()
        for op, place in zip(together, places, strict=True):
            (taken,), (given,) = op.operands, op.results
            held[place - first :] += taken.type.nbytes - type_of(given).nbytes
            held[-1] += taken.type.nbytes + given.type.nbytes
        return max(held.max(), live.max())


def _where_used(block: Block, moved: Container[Op]) -> list[Op]:
    """The ops, some of them moved to where their results are used first."""
    end = len(block.ops)
    first: dict[Value, int] = {}
    for i, op in enumerate(block.ops):
        for v in reads(op):
            first.setdefault(v, i)
    before: dict[int, list[Op]] = {}
    for op in block.ops:
        if op in moved:
            before.setdefault(min(first.get(v, end) for v in op.results), []).append(op)
    ops: list[Op] = []
    for i, op in enumerate(block.ops):
        ops += before.get(i, ())
        if op not in moved:
            ops.append(op)
    return ops + before.get(end, [])
