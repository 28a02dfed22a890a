"""How often a while loop runs, where its condition says so: a counter that a constant step takes to a constant bound."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from .graph import Block, Op, Value

NONE: Mapping[Value, int] = MappingProxyType({})
_INTEGERS = ("i32", "i64", "u32", "u64")


def integers_in(block: Block, outer: Mapping[Value, int] = NONE) -> dict[Value, int]:
    """The integers that a block is known to hold, and those known around it."""
    known = dict(outer)
    for op in block.ops:
        if op.name == "constant" and (t := op.results[0].type).rank == 0 and t.dtype in _INTEGERS:
            known[op.results[0]] = int(op.attrs["value"].array)
    return known


def known_length(loop: Op, known: Mapping[Value, int]) -> int | None:
    """Iterations of a `while` where its counter starts at one of the `known` integers, so that all devices run as many; None of others,
    and of another op."""
    counter = _counter(loop, known) if loop.name == "while" else None
    start = None if counter is None else known.get(loop.operands[counter.carry])
    return None if counter is None or start is None else counter.trips(start)


def trip_count(loop: Op, known: Mapping[Value, int] = NONE) -> int | None:
    """Iterations of a `while` whose condition compares a carried counter with a constant; None if it isn't so simple.

    `known`: integers that the enclosing block is known to hold. Without the counter's start it is taken to be 0,
    which is where JAX's scan and fori_loop with a static length start: an estimate, see `known_length`.
    """
    counter = _counter(loop, known)
    return None if counter is None else counter.trips(known.get(loop.operands[counter.carry], 0))


class _Counter(NamedTuple):
    """What a loop carries at a position, adds a step to, and compares with a bound, as long as that is so."""

    carry: int
    direction: str
    bound: int
    step: int

    def trips(self, start: int) -> int | None:
        """None if it never ends, but by overflow."""
        if self.direction == "NE":
            trips, rest = divmod(self.bound - start, self.step)
            return trips if trips >= 0 and not rest else None
        if self.direction not in ("LT", "LE", "GT", "GE") or (self.direction[0] == "L") != (self.step > 0):
            return None
        span = (self.bound - start) * (1 if self.step > 0 else -1) + (self.direction[1] == "E")
        return max(0, -(-span // abs(self.step)))


def _counter(loop: Op, known: Mapping[Value, int]) -> _Counter | None:
    condition, body = loop.regions
    test = _producer(condition, condition.returns[0])
    if test is None or test.name != "compare":
        return None
    direction: str = test.attrs["comparison_direction"]
    counter, right = test.operands
    bound = _integer(condition, right, known)
    if bound is None:
        bound, counter = _integer(condition, counter, known), right
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
    if bound is None or counter not in condition.args:
        return None
    i = condition.args.index(counter)
    arg, update = body.args[i], _producer(body, body.returns[i])
    if update is None or update.name not in ("add", "subtract") or arg not in update.operands:
        return None
    first, second = update.operands
    if first is not arg:
        if update.name == "subtract":
            return None
        second = first
    step = _integer(body, second, known)
    return _Counter(i, direction, bound, step if update.name == "add" else -step) if step else None


def _producer(block: Block, value: Value) -> Op | None:
    return next((op for op in block.ops if value in op.results), None)


def _integer(block: Block, value: Value, known: Mapping[Value, int]) -> int | None:
    if value in known:
        return known[value]
    op = _producer(block, value)
    if op is not None and op.name == "convert":
        return _integer(block, op.operands[0], known)
    if op is None or op.name != "constant" or op.results[0].type.rank != 0:
        return None
    return int(op.attrs["value"].array)
