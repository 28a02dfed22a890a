"""A loop over slices that hands a state on, split into what needs the state and what doesn't: a loop ahead of it makes of the
slices what the state needs of them, and one behind it makes the results of the states. Iterations of these two don't depend on each
other, so that devices can share them (`spread_loops`), as loop distribution does for vector machines (Kennedy and McKinley 1990).
Only what crosses from one loop to another has to be exchanged between devices: the states of linear attention, where its keys and
values would be (as Sun et al. 2024 do by hand, LASP-2).

What goes into which loop is a minimum cut (`min_cut`): of the bytes that cross, and of the work in the loop in the middle, which
each device does.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

from ...ir.clone import inline_block
from ...ir.graph import Block, Op, Value
from ...ir.mesh import Mesh
from ...ir.types import TensorType, Type
from ..cost import prices
from ..emit.builder import Builder
from ..estimate import flops, reads, touched, walk
from ..min_cut import MinCut
from ..post_order import makers
from .iterations import PUTS, Iterations

LESS = 0.9  # of the bytes that cross, or of the work in the middle
_FREE = {"broadcast_in_dim", "constant", "convert", "iota", "reshape", "transpose"}  # worth no loop


@dataclass
class Parts:
    """ahead: values that a loop of their own makes, for the one in the middle. behind: ops of a loop behind that one."""

    ahead: list[Value]
    behind: set[Op]


class Split:
    """A loop in parts. devices: as many as could share the loops ahead and behind."""

    def __init__(self, loop: Op, found: Iterations, devices: int, mesh: Mesh):
        self.loop, self.found, self.mesh, self.devices = loop, found, mesh, devices
        self.body = loop.regions[1]
        self.defs = self.body.makers()
        returns = self.body.returns
        for k in [k for k in found.sums if self.body.args[k] not in self.defs[returns[k]].operands]:
            del found.sums[k]  # what is added to several times
            found.states.add(k)
        self.puts = {self.defs[returns[k]]: k for k in found.stacked}
        self.sums = {self.defs[returns[k]]: k for k in found.sums}
        args = self.body.args
        sliced = {op for op in found.starts if op not in self.puts}
        self.slices = {v for op in sliced for v in op.results}
        self.states = [args[k] for k in sorted(found.states)]
        late = self._that_depend_on(self.states)
        varying = self._that_depend_on(self.slices) | late
        wanted = self._needed([returns[k] for k in found.states])
        ops = [op for op in self.body.ops if op in varying and op not in self.puts and op not in self.sums]
        self.early = {op: None for op in ops if op not in late and op not in sliced}
        self.core = {op for op in ops if op in late and op in wanted}
        self.late = [op for op in ops if op in late and op not in wanted]
        self.wanted = wanted

    # ---------------------------------------------------------------------------------------- which op goes where
    def parts(self) -> Parts | None:
        """What is worth loops of its own: where clearly less crosses then, or no more and clearly less is done in the middle."""
        ahead = [v for v in self._ahead() if self._is_more_than_moved([v])]
        behind = self._behind(ahead)
        elsewhere = [*ahead, *self.states, *(v for op in self.core for v in op.results)]
        elsewhere += [v for op in self.late if op not in behind for v in op.results]
        if not self._is_more_than_moved([v for op in behind for v in reads(op)], elsewhere):
            behind = set[Op]()
        parts = Parts(ahead, behind)
        crosses, crossed = self._crossing(parts), self._crossing(Parts([], set[Op]()))
        middle = self._needed(self._made_in_the_middle(parts), ahead)
        stays, was = (sum(map(self._work, ops)) for ops in (middle, self.body.ops))
        return parts if crosses <= LESS * crossed or (crosses <= crossed and stays <= LESS * was) else None

    def _is_more_than_moved(self, values: Iterable[Value], given: Iterable[Value] = ()) -> bool:
        """Whether it takes work to make values, if some are given."""
        made = self._needed(values, given)
        return any(op.name not in _FREE for op in made if op in self.early or op in self.late)

    def _crossing(self, parts: Parts) -> float:
        """Bytes that the middle gets and makes."""
        there = {*parts.ahead} | self.slices
        middle = self._needed(self._made_in_the_middle(parts), there)
        read = {v for op in middle for v in reads(op)} | {self.body.returns[k] for k in self.found.states}
        stacked = sum(_bytes(_update(put)) for put in self.puts if put not in parts.behind)
        return stacked + sum(_bytes(v) for v in read & there) + sum(map(_bytes, self._stacked(parts)))

    def _carried(self, parts: Parts) -> tuple[list[int], list[int]]:
        """What the loop in the middle carries, and the one behind."""
        ends = self.puts | self.sums
        behind = {k for op, k in ends.items() if op in parts.behind}
        return sorted(self.found.states | ({*ends.values()} - behind)), sorted(behind)

    def _made_in_the_middle(self, parts: Parts) -> list[Value]:
        return [*(self.body.returns[k] for k in self._carried(parts)[0]), *self._stacked(parts)]

    def _stacked(self, parts: Parts) -> list[Value]:
        """What is read behind and made in the middle: the state, and what depends on it."""
        reading = {v for op in parts.behind for v in reads(op)}
        made = {v for op in (*self.core, *self.late) if op not in parts.behind for v in op.results}
        return [v for v in (*self.states, *self.defs) if v in reading and (v in made or v in self.states)]

    def _ahead(self) -> list[Value]:
        """What the middle needs of the slices: the values that cross."""
        cut, early = MinCut(), [op for op in self.early if op in self.wanted]
        inside = {op: cut.variable() for op in early}  # 1 in the middle
        fixed = {v for op in self.core for v in reads(op)} | {self.body.returns[k] for k in self.found.states}
        crossing = {
            v: cut.variable() for op in early for v in reads(op) if self._is_early(v) and v not in fixed
        }
        for op, variable in inside.items():
            cut.one(variable, self._work(op))
            for v in reads(op):
                if v in crossing:
                    cut.never(crossing[v], variable)
                if (maker := self.defs.get(v)) in inside:
                    cut.never(variable, inside[maker])
            for v in op.results:
                if v in fixed:
                    cut.one(variable, -_bytes(v))
                elif v in crossing:
                    cut.ordered(variable, crossing[v], _bytes(v))
        for v in crossing.keys() & self.slices:
            cut.one(crossing[v], _bytes(v))
        ones = cut.solve()
        middle = {op for op, variable in inside.items() if variable in ones}
        read = fixed | {v for op in middle for v in reads(op)}
        return [v for op in early if op not in middle for v in op.results if v in read]

    def _behind(self, ahead: Iterable[Value]) -> set[Op]:
        """What needs no more than the states."""
        cut, there = MinCut(), {*ahead} | {v for op in self.core for v in reads(op)}
        behind = {op: cut.variable() for op in [*self.late, *self.sums]}  # 1 behind
        crossing: dict[Value, int] = {}
        for op, variable in behind.items():
            cut.one(variable, -self._work(op))
            if op in self.sums:
                cut.one(variable, 2 * _bytes(op.results[0]) / self.found.trips)
            for v in dict.fromkeys(reads(op)):
                maker = self.defs.get(v)
                if self._is_early(v) and v not in there:
                    cut.one(variable, -_bytes(v))
                if maker in behind:
                    cut.never(variable, behind[maker])
                if maker in behind or maker in self.core or v in self.states:
                    if v not in crossing:
                        crossing[v] = cut.variable()
                    cut.never(crossing[v], variable)
        for v, variable in crossing.items():
            if (maker := self.defs.get(v)) in behind:
                cut.ordered(behind[maker], variable, _bytes(v))
            else:
                cut.one(variable, _bytes(v))
        for put in self.puts:
            if (maker := self.defs.get(_update(put))) in behind:
                cut.one(behind[maker], -_bytes(_update(put)))
        ones = cut.solve()
        found = {op for op, variable in behind.items() if variable in ones}
        return found | {p for p in self.puts if self.defs.get(v := _update(p)) in found or self._is_early(v)}

    def _work(self, op: Op) -> float:
        """What an op costs in the middle, beside being shared."""
        if op.name in _FREE:
            return 0.0
        price, cost = prices(self.mesh), 0.0
        for inner, trips in walk(Block([], [op], [])):
            cost += trips * (price.flop * flops(inner) + price.touch * touched(inner))
        return cost * (1 - 1 / self.devices)

    def _is_early(self, value: Value) -> bool:
        """Whether a value is a slice, or made of slices alone."""
        return value in self.slices or self.defs.get(value) in self.early

    def _that_depend_on(self, values: Iterable[Value]) -> set[Op]:
        there, found = {*values}, set[Op]()
        for op in self.body.ops:
            if any(v in there for v in op.results) or not there.isdisjoint(reads(op)):
                found.add(op)
                there.update(op.results)
        return found

    def _needed(self, values: Iterable[Value], given: Iterable[Value] = ()) -> set[Op]:
        """The ops that make values, if some are given."""
        return {*makers(values, self.defs, given)}

    # ---------------------------------------------------------------------------------------- the loops
    def ops(self, parts: Parts) -> tuple[list[Op], dict[Value, Value]]:
        """What stands in place of the loop, and instead of which of its results."""
        b, (middle, behind) = Builder.beside(self.mesh, self.loop), self._carried(parts)
        made = self._loop(b, [], {}, parts.ahead)[1] if parts.ahead else {}
        results, states = self._loop(b, middle, made, self._stacked(parts))
        if behind:
            results |= self._loop(b, behind, made | states, [])[0]
        results |= {k: self.loop.operands[k] for k in self.found.unchanged}
        return b.block.ops, {self.loop.results[k]: v for k, v in results.items()}

    def _loop(
        self, b: Builder, carries: list[int], given: dict[Value, Value], out: list[Value]
    ) -> tuple[dict[int, Value], dict[Value, Value]]:
        """A loop with some of the carries. given: values of the body that are there, stacked. Returns the carries' results, and the
        values to give `out`, stacked."""
        found, old, trips = self.found, self.body, self.found.trips
        needed = self._needed([*out, *(old.returns[k] for k in carries)], given)
        read = {v for op in needed for v in reads(op)} | {*out} | {old.returns[k] for k in carries}
        arrays = [k for k in sorted(found.unchanged - found.uniform) if old.args[k] in read]
        given = {v: stack for v, stack in given.items() if v in read}
        kept = [*carries, *arrays]
        counter = cast(TensorType, old.args[min(found.counters)].type)
        empty = [b.constant(0, _stack_of(v, trips)) for v in out]
        starts = [b.constant(0, counter), *(self.loop.operands[k] for k in kept), *given.values(), *empty]
        args = [Value(v.type) for v in starts]
        stacks = args[1 + len(kept) :]
        inner = Builder.beside(self.mesh, self.loop)
        place = args[0]
        if found.backward:
            place = inner.binary("subtract", inner.constant(trips - 1, counter), place)
        place = converted(inner, place, inner.index(0).type)
        env = dict(zip([old.args[k] for k in kept], args[1:], strict=False))
        env |= {old.args[k]: self.loop.operands[k] for k in found.uniform}
        env |= {old.args[k]: converted(inner, args[0], old.args[k].type) for k in found.counters}
        for v, stack in zip(given, stacks, strict=False):
            env[v] = inner.reshape(inner.dynamic_slice(stack, 0, place, 1), v.type.shape)
        wanted = [*(old.returns[k] for k in kept), *out]
        ops = Block([], [op for op in old.ops if op in needed], wanted)
        returns = inline_block(ops, [], inner.block.ops, env)
        rows = [inner.reshape(v, (1, *v.type.shape)) for v in returns[len(kept) :]]
        put = zip(stacks[len(given) :], rows, strict=True)
        returns[len(kept) :] = stacks[: len(given)]
        returns += [inner.dynamic_update_slice(stack, row, 0, place) for stack, row in put]
        returns.insert(0, inner.binary("add", args[0], inner.constant(1, counter)))
        regions = counting(self.loop, trips, args, self.mesh), Block(args, inner.block.ops, returns)
        results = b.multi("while", starts, [v.type for v in starts], {}, regions)[1:]
        return dict(zip(carries, results, strict=False)), dict(zip(out, results[-len(out) :], strict=False))


def counting(loop: Op, trips: int, carries: list[Value], mesh: Mesh) -> Block:
    """The condition of a loop that counts in what it carries first, as another one does."""
    args = [Value(v.type) for v in carries]
    b = Builder.beside(mesh, loop)
    (told,) = loop.regions[0].returns
    test = next(op for op in loop.regions[0].ops if told in op.results)
    end = b.constant(trips, cast(TensorType, args[0].type))
    goes_on = b.op("compare", [args[0], end], told.type, test.attrs)
    return Block(args, b.block.ops, [goes_on])


def converted(b: Builder, value: Value, type: Type) -> Value:
    """A number in the type of another one, or of an array that holds one."""
    scalar = TensorType((), cast(TensorType, type).dtype)
    return b.reshape(value if value.type == scalar else b.op("convert", [value], scalar), type.shape)


def _update(put: Op) -> Value:
    return put.operands[1 if put.name == PUTS[0] else 2]


def _bytes(value: Value) -> float:
    return value.type.nbytes


def _stack_of(value: Value, trips: int) -> TensorType:
    return TensorType((trips, *value.type.shape), value.type.dtype)
