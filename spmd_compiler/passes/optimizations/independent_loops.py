"""Loops that go on while any element of a sharded batch does, as `vmap` makes them: each device stops when its own are done.

The condition of such a loop is an all-reduce of what each device finds, in every iteration. It is not needed where nothing
else is sent and an element that is done keeps its state: a device without elements to go on would only copy its state until
the others are done.
"""

from __future__ import annotations

from ...ir.graph import Block, Op, Value
from ...ir.optable import collective_kind, is_pure, reducer_kind

_SPREADS = ("broadcast_in_dim", "reshape")  # their results are false where their operand is


def free_loops(block: Block) -> None:
    """Changes a block that no one else holds, and the blocks inside; inner loops come first."""
    for op in block.ops:
        for region in op.regions:
            free_loops(region)
        if op.name == "while":
            _free(op)


def _free(loop: Op) -> None:
    condition, body = loop.regions
    (own,) = condition.returns
    made = condition.makers()
    meetings: list[Op] = []
    while (op := made.get(own)) is not None and op.name == "all_reduce" and op.attrs.get("kind") == "or":
        meetings.append(op)
        own = op.operands[0]
    others = [op for region in loop.regions for op in region.walk() if op not in meetings]
    if not meetings or any(collective_kind(op) or not is_pure(op) for op in others):
        return
    if _Frozen(condition, own, body).is_state():
        condition.ops[:] = [op for op in condition.ops if op not in meetings]
        condition.returns = [own]


class _Frozen:
    """What the body does on a device where `own`, its part of the condition, is false."""

    def __init__(self, condition: Block, own: Value, body: Block):
        self.condition = condition.makers()
        self.body = body.makers()
        self.arguments = dict(zip(body.args, condition.args, strict=True))
        self.results = list(zip(body.returns, body.args, strict=True))
        self.false = self._all_false(own)

    def is_state(self) -> bool:
        """True if each result is the state that the body starts from."""
        return all(self._is(result, argument) for result, argument in self.results)

    def _is(self, value: Value, argument: Value) -> bool:
        while value is not argument:
            op = self.body.get(value)
            if op is None or op.name != "select" or not self._is_false(op.operands[0]):
                return False
            value = op.operands[2]
        return True

    def _is_false(self, value: Value) -> bool:
        if any(self._equal(value, known) for known in self.false):
            return True
        op = self.body.get(value)
        if op is None:
            return False
        if op.name == "and":
            return any(map(self._is_false, op.operands))
        return op.name in _SPREADS and self._is_false(op.operands[0])

    def _all_false(self, own: Value) -> list[Value]:
        """The values in the condition that have no true element if `own` is false."""
        found = [own]
        for value in found:
            op = self.condition.get(value)
            if op is None:
                continue
            if op.name == "or":
                found += op.operands
            elif op.name in _SPREADS or (op.name == "reduce" and reducer_kind(op.regions[0]) == "or"):
                found.append(op.operands[0])
        return found

    def _equal(self, inside: Value, tested: Value) -> bool:
        """True if a value of the body is computed as one of the condition is."""
        pairs = [(inside, tested)]
        seen = set(pairs)
        for x, y in pairs:
            if x in self.arguments:
                if self.arguments[x] is not y:
                    return False
                continue
            a, b = self.body.get(x), self.condition.get(y)
            if a is None or b is None:
                if x is not y:
                    return False
            elif not _alike(a, b) or a.results.index(x) != b.results.index(y):
                return False
            else:
                new = set(zip(a.operands, b.operands, strict=True)) - seen
                seen |= new
                pairs += new
        return True


def _alike(a: Op, b: Op) -> bool:
    """True if equal operands give equal results."""
    kinds = [[reducer_kind(r) for r in op.regions] for op in (a, b)]
    return (
        (a.name, a.attrs, len(a.operands)) == (b.name, b.attrs, len(b.operands))
        and [v.type for v in a.results] == [v.type for v in b.results]
        and kinds[0] == kinds[1]
        and None not in kinds[0]
    )
