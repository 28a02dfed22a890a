"""residuals: what a loop keeps for a later one is computed again there, where cheap elementwise ops make it of what else is kept.

The backward pass of a `scan` reads values of each iteration of the forward pass, which stacks them; many follow from each other, as
`x * x` and `tanh(x)` from `x`. XLA fuses elementwise ops with what reads them, and so computes them again rather than keep them,
but not from one loop to another. What to keep is a minimum cut between what only the first loop can compute and what the second
one reads (He and Yu, "Transcending runtime-memory tradeoffs in checkpointing by being fusion aware", MLSys 2023).
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from functools import cache
from math import inf
from typing import Any, NamedTuple

from ...ir.graph import Block, Loc, Op, Value, constant
from ...ir.layout import Layout
from ...ir.optable import CONTROL_FLOW
from ...ir.trips import NONE, integers_in, known_length
from ...ir.types import TensorType, Type
from ..estimate import read_in, readers, reads
from ..min_cut import MinCut
from .stacks import sliced_in

_FREE = frozenset({"broadcast_in_dim", "constant", "iota", "reshape"})
_ARITHMETIC = (
    "abs add and clamp compare convert divide maximum minimum multiply negate not or select subtract xor"
)
CHEAP = _FREE | set(_ARITHMETIC.split())
AGAIN = 1 / 32  # what computing a byte again costs, of what keeping it does
OP = 4096  # bytes kept that one op less is worth


def keep_less(block: Block, outer: Mapping[Value, int] = NONE) -> bool:
    """Changes a block that no one else holds, and those inside; whether it did. What isn't used any more is left there. outer:
    integers that are known around the block."""
    known, changed = integers_in(block, outer), False
    for op in block.ops:
        if op.name in CONTROL_FLOW:
            for region in op.regions:
                changed |= keep_less(region, known)
    loops = [op for op in block.ops if op.name == "while"]
    for i, first in enumerate(loops):
        for second in loops[i + 1 :]:
            if not {*first.results}.isdisjoint(second.operands):
                changed |= _Pair(block, first, second, known).shrink()
    return changed


class _Row(NamedTuple):
    """What a loop stacks in a carry: the value of an iteration, and the op that puts it there."""

    carry: int
    value: Value
    update: Op


def _rows(loop: Op, known: dict[Value, int]) -> Iterator[_Row]:
    """Those stacks that a loop fills from end to end."""
    trips = known_length(loop, known)
    if trips is None:
        return
    condition, body = loop.regions
    makers = body.makers()
    users, tested = readers(body), read_in(condition)
    for k, arg in enumerate(body.args):
        update = makers.get(body.returns[k])
        if update is None or update.name != "dynamic_update_slice" or update.operands[0] is not arg:
            continue
        if users.get(arg) != [update] or update.operands.count(arg) > 1 or condition.args[k] in tested:
            continue
        shape = arg.type.shape
        beside = makers.get(update.operands[1])
        if users.get(update.result) or body.returns.count(update.result) > 1 or beside is None or not shape:
            continue
        spread = beside.name == "reshape" or (
            beside.name == "broadcast_in_dim"
            and beside.attrs["broadcast_dimensions"] == tuple(range(1, len(shape)))
        )
        fits = beside.result.type.shape == (1, *shape[1:]) and beside.operands[0].type.shape == shape[1:]
        if spread and fits and shape[0] == trips and _passes(loop, update.operands[2], makers, known, trips):
            yield _Row(k, beside.operands[0], update)


def _passes(loop: Op, index: Value, makers: dict[Value, Op], known: dict[Value, int], trips: int) -> bool:
    """Whether an index takes each value below `trips` once."""
    body = loop.regions[1]

    @cache
    def line(v: Value) -> tuple[Value | None, int, int] | None:
        """A counter, how often it counts, and what is added to it."""
        if v in known:
            return None, 0, known[v]
        if v in body.args:
            return v, 1, 0
        op = makers.get(v)
        if op is None or op.name not in ("add", "constant", "subtract"):
            return None
        if op.name == "constant":
            return (None, 0, int(op.attrs["value"].array)) if v.type.rank == 0 else None
        a, b = map(line, op.operands)
        if a is None or b is None or None not in (a[0], b[0]):
            return None
        sign = 1 if op.name == "add" else -1
        return a[0] or b[0], a[1] + sign * b[1], a[2] + sign * b[2]

    found = line(index)
    counter = found[0] if found else None
    if found is None or counter is None:
        return False
    _, times, offset = found
    k = body.args.index(counter)
    start, step = known.get(loop.operands[k]), line(body.returns[k])
    if start is None or step is None or step[:2] != (counter, 1):
        return False
    ends = [times * x + offset for x in (start, start + (trips - 1) * step[2])]
    return sorted(ends) == [0, trips - 1] and abs(times * step[2]) == 1


class _Pair:
    """Two loops of a block, of which the second one reads what the first one stacked. known: integers, by value."""

    def __init__(self, block: Block, first: Op, second: Op, known: dict[Value, int]):
        self.block, self.first, self.second = block, first, second
        self.makers = first.regions[1].makers()
        self.at: Value | None = None  # the index of rows where they are read
        users, used = readers(block), {*read_in(block)}
        rows = [(row, self.taken(first.results[row.carry], used)) for row in _rows(first, known)]
        # and where they are made
        self.index = next((row.update.operands[2] for row, slices in rows if slices), None)
        self.slices: dict[int, list[Op]] = {}  # of the second loop, by the first one's carry
        # carries, by the values of the first loop's body that they hold; the first one stays
        self.rows: dict[Value, list[int]] = {}
        self.loose: set[int] = set()  # what is kept for these slices alone
        for row, slices in rows:
            if row.update.operands[2] is self.index:
                stack, same = first.results[row.carry], self.rows.setdefault(row.value, [])
                self.trips, self.slices[row.carry] = stack.type.shape[0], slices
                if slices and users[stack] == [second] and stack not in block.returns:
                    self.loose.add(row.carry)
                    same.append(row.carry)
                else:
                    same.insert(0, row.carry)
        self.only = {v for v, carries in self.rows.items() if self.loose.issuperset(carries)}

    def taken(self, stack: Value, used: Container[Value]) -> list[Op]:
        """The slices of single rows that the second loop takes of a stack; none if it uses that otherwise. used: what the block
        reads."""
        found = sliced_in(self.second, stack, used) if self.second.operands.count(stack) == 1 else []
        if any(op.attrs["slice_sizes"] != (1, *stack.type.shape[1:]) for op in found):
            return []
        if found and self.at is None:
            self.at = found[0].operands[1]
        return found if all(op.operands[1] is self.at for op in found) else []

    def shrink(self) -> bool:
        """Has the second loop compute again what that serves, and the first one keep what it takes for it; whether it does."""
        if not self.loose:
            return False
        again, kept = self.cut()
        stay = {v for v in kept if self.passed(v) is None}
        stay.update(v for v in self.rows if v not in self.only)
        gone = {k: v for v, carries in self.rows.items() for k in carries[v in stay :] if k in self.loose}
        if not gone:
            return False
        start = dict.fromkeys((*kept, *gone.values()))
        there = {
            v: self.read_only(v) for v in start if v not in again and (v not in stay or not self.read(v))
        }
        _Again(self, again, there, {op.result: v for k, v in gone.items() for op in self.slices[k]}).write()
        _drop_carries(self.second, {self.second.operands.index(self.first.results[k]) for k in gone})
        _drop_carries(self.first, {*gone})
        return True

    def read(self, value: Value) -> list[Op]:
        """The slices that the second loop takes of the stack that stays of a value."""
        return self.slices[self.rows[value][0]] if value in self.rows else []

    def cut(self) -> tuple[set[Value], list[Value]]:
        """Values of the first loop's body: which to compute again, and from which on."""
        cut, body = MinCut(), self.first.regions[1]
        wanted = set(self.only)
        for op in reversed(body.ops):
            if _is_cheap(op) and op.result in wanted:
                wanted.update(op.operands)
        needed: dict[Value, int] = {}
        made: dict[Value, int] = {}
        for v in (*body.args, *self.makers):
            if v not in wanted:
                continue
            needed[v] = cut.variable()
            op = self.makers.get(v)
            if op is None or not _is_cheap(op) or (v in self.rows and v not in self.only):
                cut.one(needed[v], self.bytes_kept(v))
                continue
            made[v] = cut.variable()
            cut.ordered(made[v], needed[v], self.bytes_kept(v))
            cut.one(made[v], 0.0 if op.name in _FREE else AGAIN * self.trips * v.type.nbytes + OP)
            for operand in op.operands:
                if operand in needed:
                    cut.never(needed[operand], made[v])
        for v in self.only:
            cut.one(needed[v], -inf)
        ones = cut.solve()
        again = {v for v, k in made.items() if k in ones}
        return again, [v for v, k in needed.items() if k in ones and v not in again]

    def bytes_kept(self, value: Value) -> float:
        """What it takes to have a value of the first loop's body in the second one's."""
        if (passed := self.passed(value)) is not None:
            return 0.0 if passed in self.second.operands else value.type.nbytes
        if value in self.rows:
            return self.trips * value.type.nbytes if value in self.only else 0.0
        return (1 + AGAIN) * self.trips * value.type.nbytes + OP

    def passed(self, value: Value) -> Value | None:
        """What the first loop is given that a value of its body is in each iteration."""
        body = self.first.regions[1]
        if value not in body.args:
            return None
        k = body.args.index(value)
        return self.first.operands[k] if body.returns[k] is value else None

    def read_only(self, value: Value) -> Value:
        """A value of the first loop's body that is not stacked so far, or the stack of it, as an argument of the second one's."""
        passed = self.passed(value)
        if passed is None:
            if value not in self.rows:
                self.stack(value)
            passed = self.first.results[self.rows[value][0]]
        body = self.second.regions[1]
        for k, v in enumerate(self.second.operands):
            if v is passed and body.returns[k] is body.args[k]:
                return body.args[k]
        _carry(self.second, passed)
        body.returns.append(body.args[-1])
        return body.args[-1]

    def stack(self, value: Value) -> None:
        """Gives the first loop one more stack, from zeros."""
        assert self.index is not None
        body, dtype = self.first.regions[1], value.type.dtype
        whole, stack, row = (_side_by_side(value, n) for n in (self.trips, self.trips, 1))
        zero, start = _zero(TensorType((), dtype)), _zero(self.index.type)
        zeros = Op("broadcast_in_dim", [zero.result], [whole], {"broadcast_dimensions": ()})
        place = self.block.ops.index(self.first)
        self.block.ops[place:place] = [zero, zeros]
        _carry(self.first, whole)
        dims, starts = tuple(range(1, row.type.rank)), [self.index, *[start.result] * value.type.rank]
        body.ops += [
            start,
            Op("broadcast_in_dim", [value], [row], {"broadcast_dimensions": dims}, (), self.first.loc),
            Op("dynamic_update_slice", [body.args[-1], row, *starts], [stack], {}, (), self.first.loc),
        ]
        body.returns.append(stack)
        self.rows[value], self.slices[len(body.args) - 1] = [len(body.args) - 1], []


class _Again:
    """Writes the second loop's body. again: values of the first one's body that it computes; there: those it has as they are, or
    newly stacked, by arguments; gone: slices that it doesn't take any more, and what they were."""

    def __init__(self, pair: _Pair, again: set[Value], there: dict[Value, Value], gone: dict[Value, Value]):
        self.pair, self.again, self.there = pair, again, there
        self.body = pair.second.regions[1]
        self.makers = self.body.makers()
        self.users = readers(self.body)
        self.gone = gone
        self.ops: list[Op] = []
        self.done: set[Op] = set()
        self.made: dict[Value, Value] = {}  # by the values of the first loop's body
        self.instead: dict[Value, Value] = {}  # by those of the second one's

    def write(self) -> None:
        for op in self.body.ops:
            self.copy(op)
        for v in self.body.returns:
            self.read(v)
        self.body.ops[:] = self.ops
        self.body.replace(self.instead)

    def copy(self, op: Op) -> None:
        """An op, behind those that make what it reads."""
        if op in self.done or (op.results and op.results[0] in self.gone):
            return
        self.done.add(op)
        row = self.gone.get(op.operands[0]) if op.name == "reshape" else None
        if row is not None and op.result.type == row.type:
            self.gone[op.result] = row
            return
        for v in reads(op):
            self.read(v)
        self.ops.append(op)

    def read(self, v: Value) -> None:
        """Sees to it that a value of the second loop's body is there."""
        if v in self.makers:
            self.copy(self.makers[v])
        if v in self.gone and v not in self.instead:
            made = self.value(self.gone[v])
            self.instead[v] = made if made.type == v.type else self.op("reshape", [made], v)

    def value(self, v: Value) -> Value:
        """What a value of the first loop's body is in the second one's."""
        if v in self.made:
            return self.made[v]
        if v in self.again:
            chain = {v}
            for op in reversed(self.pair.first.regions[1].ops):
                if op.results and op.results[0] in chain:
                    chain.update(x for x in op.operands if x in self.again and x not in self.made)
            for op in self.pair.first.regions[1].ops:
                if op.results and op.results[0] in chain:
                    operands = [self.value(x) for x in op.operands]
                    self.made[op.result] = self.op(op.name, operands, op.result, op.attrs, op.loc)
        elif v in self.pair.rows and self.pair.passed(v) is None:
            self.made[v] = self.row(v)
        else:
            self.made[v] = self.there.get(v, v)
        return self.made[v]

    def row(self, v: Value) -> Value:
        """What the second loop reads of a stack, with the iterations' dim dropped."""
        taken = self.pair.read(v)
        if taken:
            self.copy(taken[0])
            for user in self.users.get(taken[0].result, ()):
                if user.name == "reshape" and user.result.type == v.type:
                    self.copy(user)
                    return user.result
            return self.op("reshape", [taken[0].result], v)
        at = self.pair.at
        assert at is not None
        if at in self.makers:
            self.copy(self.makers[at])
        start = _zero(at.type)
        self.ops.append(start)
        row = _side_by_side(v, 1)
        starts = [at, *[start.result] * v.type.rank]
        slice = self.op("dynamic_slice", [self.there[v], *starts], row, {"slice_sizes": row.type.shape})
        return self.op("reshape", [slice], v)

    def op(
        self, name: str, operands: list[Value], like: Value, attrs: Any = None, loc: Loc | None = None
    ) -> Value:
        result = Value(like.type, like.layout)
        self.ops.append(Op(name, operands, [result], attrs, (), loc or self.pair.second.loc))
        return result


def _is_cheap(op: Op) -> bool:
    return op.name in CHEAP and isinstance(op.result.type, TensorType)


def _zero(type: Type) -> Op:
    assert isinstance(type, TensorType)
    return constant(type, 0)


def _side_by_side(value: Value, count: int) -> Value:
    """As many values of a type and layout, stacked."""
    layout = value.layout
    if layout is not None:
        layout = Layout(((), *layout.dims), layout.partial, (0, *layout.blocks) if layout.blocks else ())
    return Value(TensorType((count, *value.type.shape), value.type.dtype), layout)


def _carry(loop: Op, value: Value) -> None:
    """One more carry, of which only what the body returns is missing."""
    loop.operands.append(value)
    loop.results.append(Value(value.type, value.layout))
    for region in loop.regions:
        region.args.append(Value(value.type, value.layout))


def _drop_carries(loop: Op, gone: set[int]) -> None:
    def left(values: list[Value]) -> list[Value]:
        return [v for k, v in enumerate(values) if k not in gone]

    condition, body = loop.regions
    loop.operands, loop.results = left(loop.operands), left(loop.results)
    condition.args, body.args, body.returns = left(condition.args), left(body.args), left(body.returns)
