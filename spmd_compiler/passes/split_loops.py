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

from ..ir.clone import inline_block
from ..ir.graph import Block, Op, Value
from ..ir.mesh import Mesh
from ..ir.types import TensorType, Type
from .builder import Builder
from .cost import prices
from .estimate import flops, reads, touched, walk
from .iterations import PUTS, Iterations
from .min_cut import MinCut

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
        self.defs = {v: op for op in self.body.ops for v in op.results}
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
        """What is worth loops of its own; None if there is nothing."""
        ahead = self._ahead()
        behind = self._behind(ahead)
        if not self._is_work(ahead, []):
            ahead = []
        if not self._is_work([v for op in behind for v in reads(op)], ahead):
            behind = set[Op]()
        return Parts(ahead, behind) if ahead or behind else None

    def _ahead(self) -> list[Value]:
        """What the middle needs of the slices: the values that cross."""
        cut, early = MinCut(), [op for op in self.early if op in self.wanted]
        inside = {op: cut.variable() for op in early}  # 1 in the middle
        for op, variable in inside.items():
            cut.one(variable, self._work(op))
            for v in reads(op):
                if v in self.defs and self.defs[v] in inside:
                    cut.never(variable, inside[self.defs[v]])
        fixed = {v for op in self.core for v in reads(op)} | {self.body.returns[k] for k in self.found.states}
        crossing = {v: cut.variable() for op in early for v in reads(op) if self._is_early(v)}
        for op, variable in inside.items():
            for v in reads(op):
                if v in crossing:
                    cut.never(crossing[v], variable)
        for v in dict.fromkeys([*crossing, *fixed]):
            maker = inside.get(self.defs.get(v))  # type: ignore[arg-type]
            if v in fixed and maker is not None:
                cut.one(maker, -_bytes(v))
            elif v in crossing and v not in fixed:
                if maker is None:
                    cut.one(crossing[v], _bytes(v))
                else:
                    cut.ordered(maker, crossing[v], _bytes(v))
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
                    cut.never(crossing.setdefault(v, cut.variable()), variable)
        for v, variable in crossing.items():
            maker = self.defs.get(v)
            if maker in behind:
                cut.ordered(behind[maker], variable, _bytes(v))
            else:
                cut.one(variable, _bytes(v))
        for put in self.puts:
            for v in put.operands:
                if (maker := self.defs.get(v)) in behind:
                    cut.one(behind[maker], -_bytes(v))
        ones = cut.solve()
        found = {op for op, variable in behind.items() if variable in ones}
        return found | {p for p in self.puts if self.defs.get(v := _update(p)) in found or self._is_early(v)}

    def _is_work(self, values: Iterable[Value], given: Iterable[Value]) -> bool:
        """Whether it takes more than moves to make values, in no loop that the state comes through."""
        made = self._needed(values, [*given, *self.states, *(v for op in self.core for v in op.results)])
        return any(op.name not in _FREE and (op in self.early or op in self.late) for op in made)

    def _work(self, op: Op) -> float:
        """What an op costs in the middle, beside being shared."""
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
        todo, seen, found = [*values], {*given}, set[Op]()
        while todo:
            v = todo.pop()
            if v not in seen:
                seen.add(v)
                if v in self.defs:
                    found.add(self.defs[v])
                    todo += reads(self.defs[v])
        return found

    # ---------------------------------------------------------------------------------------- the loops
    def ops(self, parts: Parts) -> tuple[list[Op], dict[Value, Value]]:
        """What stands in place of the loop, and instead of which of its results."""
        found, b = self.found, Builder.beside(self.mesh, self.loop)
        ends = self.puts | self.sums
        behind = {k for op, k in ends.items() if op in parts.behind}
        middle = sorted((found.states | found.stacked | found.sums.keys()) - behind)
        made = self._loop(b, [], {}, parts.ahead)[1] if parts.ahead else {}
        late = {v for op in parts.behind for v in op.results}
        reading = {v for op in parts.behind for v in reads(op) if v not in late and v not in self.body.args}
        out = [v for v in (*self.states, *self.defs) if self._crosses(v, parts, reading)]
        results, states = self._loop(b, middle, made, out)
        if behind:
            results |= self._loop(b, sorted(behind), made | states, [])[0]
        unchanged = found.uniform | (found.sliced.keys() - found.stacked)
        results |= {k: self.loop.operands[k] for k in unchanged}
        return b.block.ops, {self.loop.results[k]: v for k, v in results.items()}

    def _crosses(self, value: Value, parts: Parts, reading: set[Value]) -> bool:
        """Whether what is behind reads a value that depends on the state, of what is not behind."""
        if value in self.states:
            return any(value in reads(op) for op in parts.behind)
        maker = self.defs[value]
        return value in reading and maker not in parts.behind and (maker in self.core or maker in self.late)

    def _loop(
        self, b: Builder, carries: list[int], given: dict[Value, Value], out: list[Value]
    ) -> tuple[dict[int, Value], dict[Value, Value]]:
        """A loop with some of the carries. given: values of the body that are there, stacked. Returns the carries' results, and the
        values to give `out`, stacked."""
        found, old, trips = self.found, self.body, self.found.trips
        needed = self._needed([*out, *(old.returns[k] for k in carries)], given)
        read = {v for op in needed for v in reads(op)} | {*out} | {old.returns[k] for k in carries}
        arrays = [k for k in sorted(found.sliced.keys() - found.stacked) if old.args[k] in read]
        given = {v: stack for v, stack in given.items() if v in read}
        number = min(found.counters)
        kept = [*carries, *arrays]
        empty = [b.constant(0, _stack_of(v, trips)) for v in out]
        starts = [*(self.loop.operands[k] for k in kept), *given.values(), *empty]
        counter = old.args[number].type
        starts.insert(0, b.constant(0, counter))
        args = [Value(v.type) for v in starts]
        inner = Builder.beside(self.mesh, self.loop)
        place = args[0]
        if found.backward:
            place = inner.binary("subtract", inner.constant(trips - 1, counter), place)
        place = converted(inner, place, inner.index(0).type)
        env = dict(zip([old.args[k] for k in kept], args[1:], strict=False))
        env |= {old.args[k]: self.loop.operands[k] for k in found.uniform}
        env |= {old.args[k]: converted(inner, args[0], old.args[k].type) for k in found.counters}
        stacks = args[1 + len(kept) :]
        for v, stack in zip(given, stacks, strict=False):
            env[v] = inner.reshape(inner.dynamic_slice(stack, 0, place, 1), v.type.shape)
        for op in old.ops:
            if op in needed:
                env.update(
                    zip(
                        op.results,
                        inline_block(Block([], [op], [*op.results]), [], inner.block.ops, env),
                        strict=True,
                    )
                )
        returns = [env[old.returns[k]] for k in kept] + stacks[: len(given)]
        for v, stack in zip(out, stacks[len(given) :], strict=True):
            row = inner.reshape(env[v], (1, *v.type.shape))
            returns.append(inner.dynamic_update_slice(stack, row, 0, place))
        returns.insert(0, inner.binary("add", args[0], inner.constant(1, counter)))
        regions = counting(self.loop, trips, args, self.mesh), Block(args, inner.block.ops, returns)
        results = b.multi("while", starts, [v.type for v in starts], {}, regions)[1:]
        made = results[len(results) - len(out) :] if out else []
        return dict(zip(carries, results, strict=False)), dict(zip(out, made, strict=True))


def counting(loop: Op, trips: int, carries: list[Value], mesh: Mesh) -> Block:
    """The condition of a loop that counts in what it carries first, as another one does."""
    args = [Value(v.type) for v in carries]
    b = Builder.beside(mesh, loop)
    (told,) = loop.regions[0].returns
    test = next(op for op in loop.regions[0].ops if told in op.results)
    goes_on = b.op("compare", [args[0], b.constant(trips, args[0].type)], told.type, test.attrs)
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
