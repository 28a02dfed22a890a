"""Loops over slices: in each iteration they take their own slices of arrays, put slices of their own into others, and add to
sums. Where that is all, the iterations don't depend on each other: a `scan` over experts, over microbatches, or over what
`jax.lax.map` maps is such a loop, and so is its gradient. Others hand a state on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from ...ir.graph import Block, Op, Value
from ...ir.optable import collective_kind, combining_kind, is_pure
from ...ir.trips import trip_count
from ...ir.types import TensorType, numpy_dtype
from ..estimate import read_in, reads
from ..post_order import makers
from .chains import Defs, fill_of
from .row_lookups import is_below_zero

Place = tuple[int, int] | None
PUTS = ("dynamic_update_slice", "scatter")
_MANUAL = ("enter_manual", "leave_manual", "manual_computation", "partition_id", "replica_id")


@dataclass
class Iterations:
    """Of a loop of `trips` iterations. What it carries, by positions: `counters` from 0 on; values that stay as they are, in
    `uniform`; arrays, and the dim along which each iteration has its slice, in `sliced`, of which `stacked` are written; sums and the
    like in `sums`, by kinds of partials; in `states` what an iteration makes for the next one. starts: per op that takes or puts
    a slice the position among the operands of what tells where. backward: the first iteration has the last slices. in_place: what
    some put where they read."""

    trips: int
    counters: set[int] = field(default_factory=set[int])
    uniform: set[int] = field(default_factory=set[int])
    sliced: dict[int, int] = field(default_factory=dict[int, int])
    stacked: set[int] = field(default_factory=set[int])
    sums: dict[int, str] = field(default_factory=dict[int, str])
    states: set[int] = field(default_factory=set[int])
    starts: dict[Op, int] = field(default_factory=dict[Op, int])
    backward: bool = False
    in_place: bool = False

    @property
    def unchanged(self) -> set[int]:
        """What leaves the loop as it came."""
        return self.uniform | (self.sliced.keys() - self.stacked)


def iterations(loop: Op, outer: Defs, used: Counter[Value]) -> Iterations | None:
    """What is known of a `while` over slices; None of others. outer: what defines the values in front of it. used: how often values
    are read there."""
    trips = trip_count(loop) or 0
    if trips < 2 or not all(map(_is_simple, _ops_in(loop))):
        return None
    found = _Finder(loop, outer, trips).found()
    if found is not None and any(used[loop.results[k]] for k in found.counters):
        return None
    return found


def _ops_in(loop: Op) -> Iterator[Op]:
    for region in loop.regions:
        yield from region.walk()


def _is_simple(op: Op) -> bool:
    return op.name not in _MANUAL and not collective_kind(op) and is_pure(op)


def _cut(op: Op, array: Value) -> tuple[int, int] | None:
    """The dim of an array of which an op takes or changes one position, all along the others, and where its operands tell which."""
    shape = array.type.shape
    if op.name == "scatter":
        dims, at = op.attrs["inserted_window_dims"], op.attrs
        one = len(dims) == 1 and len(op.operands) == 3 and op.operands[1].type.size == 1
        whole = op.operands[2].type.size * shape[dims[0]] == array.type.size if one else False
        return (dims[0], 1) if whole and at["scatter_dims_to_operand_dims"] == dims else None
    first = {"dynamic_slice": 1, "dynamic_update_slice": 2}.get(op.name)
    if first is None:
        return None
    sizes = (op.results[0] if first == 1 else op.operands[1]).type.shape
    cut = [d for d, (n, size) in enumerate(zip(shape, sizes, strict=True)) if n != size]
    return (cut[0], first + cut[0]) if len(cut) == 1 and sizes[cut[0]] == 1 else None


def _combines(put: Op) -> bool:
    """Whether a scatter combines what it puts with what is there."""
    return put.name == "scatter" and put.regions[0].returns[0] is not put.regions[0].args[1]


class _Finder:
    def __init__(self, loop: Op, outer: Defs, trips: int):
        self.loop, self.outer, self.body = loop, outer, loop.regions[1]
        self.defs: Defs = self.body.makers()
        self.users: dict[Value, list[Op]] = {}
        for op in self.body.ops:
            for v in dict.fromkeys(reads(op)):
                self.users.setdefault(v, []).append(op)
        self.uses = Counter(read_in(self.body))
        self.is_ = Iterations(trips)
        self.backwards: set[bool] = set()

    def found(self) -> Iterations | None:
        loop, found = self.loop, self.is_
        condition, body = loop.regions
        carried = range(len(body.args))
        found.counters = {k for k in carried if self._counts(k)}
        if not self._is_told_by_a_counter(condition):
            return None
        if not all(isinstance(v.type, TensorType) for v in body.args):
            return None
        found.states = {k for k in carried if k not in found.counters and not self._finds(k)}
        if not found.sliced or len(self.backwards) > 1:
            return None
        found.backward = True in self.backwards
        return found

    def _counts(self, k: int) -> bool:
        """Whether a carry is the number of the iteration."""
        start, update = fill_of(self.loop.operands[k], self.outer), self.defs.get(self.body.returns[k])
        if start is None or start.shape or start != 0 or start.dtype.kind not in "iu":
            return False
        if update is None or update.name != "add" or self.body.args[k] not in update.operands:
            return False
        return any((step := fill_of(v, self.defs)) is not None and step == 1 for v in update.operands)

    def _is_told_by_a_counter(self, condition: Block) -> bool:
        test = next((op for op in condition.ops if condition.returns[0] in op.results), None)
        if test is None or test.name != "compare" or test.attrs["comparison_direction"] != "LT":
            return False
        return any(test.operands[0] is condition.args[k] for k in self.is_.counters)

    def _finds(self, k: int) -> bool:
        arg, result = self.body.args[k], self.body.returns[k]
        if self._behind_barriers(result) is arg:
            dim = self._sliced_dim(arg, self.users.get(arg, []))
            if dim is None or self.uses[arg] == 1:
                self.is_.uniform.add(k)
            else:
                self.is_.sliced[k] = dim
            return True
        put = self.defs.get(result)
        if put is not None and put.name in PUTS and put.operands[0] is arg:
            dim = self._sliced_dim(arg, self.users[arg]) if self.uses[result] == 1 else None
            if dim is None:
                return False
            self.is_.sliced[k] = dim
            self.is_.stacked.add(k)
            self.is_.in_place |= len(self.users[arg]) > 1 or _combines(put)
            return True
        kind = self._sum_from(arg, result)
        if kind is not None:
            self.is_.sums[k] = kind
        return kind is not None

    def _behind_barriers(self, value: Value) -> Value:
        while (op := self.defs.get(value)) is not None and op.name == "optimization_barrier":
            value = op.operands[op.results.index(value)]
        return value

    def _sliced_dim(self, arg: Value, users: list[Op]) -> int | None:
        """The dim along which each iteration takes its own slices, or puts them there, if that is all that is done with it."""
        starts: dict[Op, int] = {}
        backward: set[bool] = set()
        dims: set[int] = set()
        for op in users:
            cut = _cut(op, arg) if op.operands[0] is arg and reads(op).count(arg) == 1 else None
            if cut is None or arg.type.shape[cut[0]] != self.is_.trips:
                return None
            dim, starts[op] = cut
            place = self._place(op.operands[starts[op]])
            if place not in ((1, 0), (-1, self.is_.trips - 1)):
                return None
            dims.add(dim)
            backward.add(place[0] < 0)
        if len(dims) != 1:
            return None
        self.is_.starts |= starts
        self.backwards |= backward
        return dims.pop()

    def _place(self, value: Value, known: dict[Value, Place] | None = None) -> Place:
        """(a, b) for an integer that is a times the iteration's number, and b. known: of values seen on the way, each once."""
        known = {} if known is None else known
        if value not in known:
            known[value] = self._find_place(value, known)
        return known[value]

    def _find_place(self, value: Value, known: dict[Value, Place]) -> Place:
        if any(value is self.body.args[k] for k in self.is_.counters):
            return 1, 0
        op = self.defs.get(value)
        if op is None:
            return None
        if (fill := fill_of(value, self.defs)) is not None:
            return (0, int(fill)) if fill.dtype.kind in "iu" else None
        if op.name in ("broadcast_in_dim", "convert", "reshape"):
            return self._place(op.operands[0], known) if self._holds_trips(value) else None
        if op.name == "select" and is_below_zero(op.operands[0], op.operands[2], self.defs):
            place = self._place(op.operands[2], known)  # as Python's negative indices are told from others
            return place if place and min(place[1], place[0] * (self.is_.trips - 1) + place[1]) >= 0 else None
        if op.name not in ("add", "subtract"):
            return None
        places = [self._place(v, known) for v in op.operands]
        if None in places:
            return None
        (a, b), (c, d) = (p for p in places if p is not None)
        return (a + c, b + d) if op.name == "add" else (a - c, b - d)

    def _holds_trips(self, value: Value) -> bool:
        type = value.type
        assert isinstance(type, TensorType)
        dtype = numpy_dtype(type.dtype)
        return type.size == 1 and dtype.kind in "iu" and self.is_.trips < 1 << (8 * dtype.itemsize - 1)

    def _sum_from(self, arg: Value, result: Value) -> str | None:
        """The kind of what is added to a carry, if that is all that is done with it."""
        kinds: set[str | None] = set()
        value = result
        while value is not arg:
            op = self.defs.get(value)
            if op is None or self.uses[value] != 1 or op.results[0].type != arg.type:
                return None
            kinds.add(combining_kind(op.name, arg.type))
            leads = [v for v in op.operands if v is arg or self._is_made_of(v, arg)]
            if len(kinds) != 1 or None in kinds or len(leads) != 1:
                return None
            (value,) = leads
        return kinds.pop() if self.uses[arg] == 1 and kinds else None

    def _is_made_of(self, value: Value, arg: Value) -> bool:
        return any(arg in reads(op) for op in makers([value], self.defs))
