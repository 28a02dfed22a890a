"""spread_loops: where an array is sharded along the dim that a loop of independent iterations takes slices along, each device
runs the iterations of the slices that it has.

XLA's partitioners gather such an array, and repeat the loop on every device. Here the arrays enter the loop block by block, over
the axes that they are sharded over, as they enter a manual region (`open_regions`); what was stacked leaves in blocks, and sums leave
as partials, to be reduced once. In the loop those axes are used up, the others may shard what is in it. So experts stay where
they are, and microbatches. Of loops that hand a state on what doesn't need it is split off before (`split_loops`). Both is done
where that sends no more, and costs less.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, cast

import numpy as np

from ..ir.clone import clone_block, inline_block
from ..ir.graph import Block, Module, Op, Value
from ..ir.layout import Axes, Layout, block_size, local_type
from ..ir.mesh import Mesh
from ..ir.optable import ELEMENTWISE
from ..ir.types import TensorType
from .emit.builder import Builder, identity_value, is_zeros
from .estimate import read_in
from .prepare.chains import Defs
from .prepare.divergence import mark_divergent
from .prepare.iterations import PUTS, Iterations, iterations
from .prepare.open_regions import ENTER, LEAVE
from .prepare.split_loops import Split, converted, counting
from .propagate import Propagate
from .search.engine import Engine
from .simplify import drop_unused

_MANUAL = (ENTER, LEAVE, "manual_computation")


@dataclass(frozen=True)
class SpreadLoops:
    """sweeps: as of `Propagate`."""

    sweeps: int = 2
    name: ClassVar[str] = "spread_loops"

    def __call__(self, module: Module) -> Module:
        if any(op.name in _MANUAL for op in module.main.body.walk()):
            return module
        before = cache(lambda: self._found(module))
        for splits in (True, False):
            other = self._changed(module, splits)
            if other is not None and self._is_better(other, before):
                return other
        return module

    def _changed(self, module: Module, splits: bool) -> Module | None:
        """With loops spread, and before that split; None if there are none to split or spread."""
        if next(_loops(module.main.body, {}, splits), None) is None:
            return None
        module = module.with_body(clone_block(module.main.body))
        if splits and not self._change(module, _split):
            return None
        return module if self._change(module, _spread) else None

    def _change(self, module: Module, change: Change) -> bool:
        """Changes what loops can be of a program that no one else holds; whether there were any."""
        done, changed = set[Op](), False
        while self._changes_one(module, change, done):
            changed = True
        return changed

    def _changes_one(self, module: Module, change: Change, done: set[Op]) -> bool:
        """Changes a loop that isn't `done`; whether there was one. Those that it has been through, and made, are."""
        body = module.main.body
        loops = [x for x in _loops(body, {}, change is _split) if x[1] not in done]
        defs = body.makers()
        if not any(
            _may_be_cut(v, d, body, defs) for _, loop, found in loops for v, d in _arrays(loop, found)
        ):
            return False
        engine, wanted = Propagate(0).forwarded(module)
        layouts = engine.layouts | {v: x for v, x in zip(body.returns, wanted, strict=True) if x is not None}
        for block, loop, found in loops:
            cut = [layouts[v].dims[d] for v, d in _arrays(loop, found)]
            axes = max((_shared_over(x, found, module.mesh) for x in cut), key=module.mesh.axes_size)
            if module.mesh.axes_size(axes) == 1:
                continue
            instead = change(loop, found, axes, module.mesh, block)
            done.add(loop)
            if instead is not None:
                ops, results = instead
                done.update(ops)
                at = block.ops.index(loop)
                block.ops[at : at + 1] = ops
                body.replace(results)
                drop_unused(body)
                mark_divergent(body, {})
                return True
        return False

    def _found(self, module: Module) -> Engine:
        return Propagate(self.sweeps).bounded(module)[0]

    def _is_better(self, other: Module, before: Callable[[], Engine]) -> bool:
        """Than before: no more is sent, and it costs less."""
        there, here = self._found(other), before()
        return there.total() < here.total() and there.traffic.sent(there) <= here.traffic.sent(here)


Instead = tuple[list[Op], dict[Value, Value]]  # what stands in place of a loop, and of its results
Change = Callable[[Op, Iterations, Axes, Mesh, Block], Instead | None]


def _split(loop: Op, found: Iterations, axes: Axes, mesh: Mesh, _block: Block) -> Instead | None:
    if found.in_place:
        return None  # what is read there may have been put there
    split = Split(loop, found, mesh.axes_size(axes), mesh)
    parts = split.parts()
    return split.ops(parts) if parts else None


def _spread(loop: Op, found: Iterations, axes: Axes, mesh: Mesh, block: Block) -> Instead | None:
    if _is_asked_to_share(loop, axes):
        return None
    ops = _Spread(loop, found, axes, mesh).ops(block)
    return ops, {loop.results[k]: loop.operands[k] for k in found.unchanged}


def _loops(block: Block, outer: Defs, states: bool) -> Iterator[tuple[Block, Op, Iterations]]:
    """The loops over slices that aren't spread, and hand on states or don't, with the blocks that they are in; each before those
    inside."""
    defs, used = dict(outer), Counter(read_in(block))
    for op in block.ops:
        if op.name == "while" and not any(defs[v].name == ENTER for v in op.operands if v in defs):
            found = iterations(op, defs, used)
            if found is not None and bool(found.states) == states:
                yield block, op, found
            for region in op.regions:
                yield from _loops(region, defs, states)
        defs.update(dict.fromkeys(op.results, op))


def _arrays(loop: Op, found: Iterations) -> list[tuple[Value, int]]:
    """What a loop takes slices of, and puts them into, with the dims."""
    taken = [(loop.operands[k], d) for k, d in found.sliced.items()]
    return taken + [(loop.results[k], found.sliced[k]) for k in found.stacked]


def _may_be_cut(value: Value, dim: int, body: Block, defs: Defs) -> bool:
    """Whether a value could lie in blocks along a dim, by what it is made of: no where that is told at once."""
    todo, seen = [value], set[Value]()
    while todo:
        v = todo.pop()
        if v in seen:
            continue
        seen.add(v)
        op = defs.get(v)
        if v in body.returns or (op is None and v not in body.args):
            return True
        if op is None or op.name == "relayout":
            if v.layout is None or v.layout.dims[dim]:
                return True
        elif op.name in ELEMENTWISE:
            todo += op.operands
        elif op.name == "while":  # as what it takes slices of
            todo += [w for w in op.operands if w.type.shape[dim : dim + 1] == v.type.shape[dim : dim + 1]]
        elif op.name != "constant" and any(w.type.rank for w in op.operands):
            return True
    return False


def _shared_over(axes: Axes, found: Iterations, mesh: Mesh) -> Axes:
    """As many of the axes, major ones first, as the iterations can be shared by: evenly, or else so that each position has some, which
    takes its last one again where it has fewer than others. What is changed in place can't be changed again."""
    axes = tuple(a for a in axes if mesh.axis_size(a) > 1)
    whole = next((n for n, a in enumerate(axes) if ":" in a), len(axes))
    sizes = [(n, mesh.axes_size(axes[:n])) for n in range(whole, 0, -1)]
    even = next((n for n, size in sizes if found.trips % size == 0), 0)
    if even or found.in_place:
        return axes[:even]
    return axes[: next((n for n, m in sizes if (m - 1) * block_size(found.trips, m) < found.trips), 0)]


def _is_asked_to_share(loop: Op, axes: Axes) -> bool:
    """Whether the user asks that devices along some axes share what is in a loop, or have all of it."""
    asked = [v.layout for r in loop.regions for op in r.walk() if op.name == "relayout" for v in op.results]
    return any(x is not None and (not x.axes or x.axes & {*axes}) for x in asked)


class _Spread:
    """A loop, of which each position on some axes runs its own iterations."""

    def __init__(self, loop: Op, found: Iterations, axes: Axes, mesh: Mesh):
        self.loop, self.found, self.axes, self.mesh = loop, found, axes, mesh
        self.devices = mesh.axes_size(axes)
        self.trips = block_size(found.trips, self.devices)
        self.is_even = self.trips * self.devices == found.trips

    def ops(self, block: Block) -> list[Op]:
        """What stands in place of the loop, in its block."""
        loop, found, b = self.loop, self.found, Builder.beside(self.mesh, self.loop)
        condition, body = loop.regions
        constants = {v: op for op in block.ops if op.name == "constant" for v in op.results}
        inside: dict[Value, Value] = {}

        def enter(v: Value, layout: Layout) -> Value:
            attrs = {"outside": layout, "manual_axes": self.axes}
            return b.op(ENTER, [v], local_type(v.type, layout, self.mesh), attrs)

        for v in dict.fromkeys((*body.captured(), *condition.captured())):
            made = constants.get(v)
            whole = Layout.replicated(v.type.rank)
            inside[v] = enter(v, whole) if made is None else b.op("constant", [], v.type, made.attrs)
        kept = [k for k in range(len(body.args)) if k not in found.counters]
        starts = [
            self._identity(b, k) if k in found.sums else enter(loop.operands[k], self._layout(k))
            for k in kept
        ]
        counter = cast(TensorType, body.args[min(found.counters)].type)
        first, count = (
            b.reshape(enter(b.constant(x, TensorType(x.shape, counter.dtype)), Layout((self.axes,))), ())
            for x in self._shares()
        )
        zero = b.constant(0, counter)
        carries = [zero, *starts]
        regions = (
            counting(loop, self.trips, carries, self.mesh),
            self._body(first, count, kept, starts, inside),
        )
        _, *results = b.multi("while", carries, [v.type for v in carries], {}, regions)
        for k, value in zip(kept, results, strict=True):
            if k in found.stacked:
                self._leave(b, value, loop.results[k], self._layout(k))
            elif k in found.sums:
                kind, type = found.sums[k], loop.results[k].type
                partial = tuple((a, kind) for a in sorted(self.axes))
                layout = Layout.replicated(type.rank).with_partial(partial)
                if kind == "sum" and is_zeros(block, loop.operands[k]):
                    self._leave(b, value, loop.results[k], layout)
                else:
                    total = self._leave(b, value, Value(type), layout)
                    b.combine(kind, loop.operands[k], total)
                    b.gives([loop.results[k]])
        return b.block.ops

    def _shares(self) -> tuple[np.ndarray, np.ndarray]:
        """Per position the first of its slices, and how many it has: one at least, see `_shared_over`."""
        first = np.arange(self.devices) * self.trips
        return first, np.minimum(self.trips, self.found.trips - first)

    def _layout(self, k: int) -> Layout:
        """Of what the loop carries, outside."""
        layout = Layout.replicated(self.loop.operands[k].type.rank)
        return layout.with_dim(self.found.sliced[k], self.axes) if k in self.found.sliced else layout

    def _identity(self, b: Builder, k: int) -> Value:
        type = cast(TensorType, self.loop.operands[k].type)
        return b.constant(identity_value(self.found.sums[k], type.dtype), type)

    def _leave(self, b: Builder, value: Value, result: Value, layout: Layout) -> Value:
        b.op(LEAVE, [value], result.type, {"outside": layout, "manual_axes": self.axes})
        b.gives([result])
        return result

    def _body(
        self, first: Value, count: Value, kept: list[int], starts: list[Value], env: dict[Value, Value]
    ) -> Block:
        """first, count: of the slices that a position has. One with fewer than others takes its last one again, for nothing."""
        loop, found, b = self.loop, self.found, Builder.beside(self.mesh, self.loop)
        old, counter = loop.regions[1], cast(TensorType, first.type)
        args = [Value(counter), *(Value(v.type) for v in starts)]
        one = b.constant(1, counter)
        last = b.binary("subtract", count, one)
        row = args[0] if self.is_even else b.binary("minimum", args[0], last)
        row = b.binary("subtract", last, row) if found.backward else row
        number = b.binary("add", first, row)
        if found.backward:
            number = b.binary("subtract", b.constant(found.trips - 1, counter), number)
        env = env | {old.args[k]: v for k, v in zip(kept, args[1:], strict=True)}
        env |= {old.args[k]: converted(b, number, old.args[k].type) for k in found.counters}
        for op in old.ops:
            operands = [env.get(v, v) for v in op.operands]
            if op in found.starts:
                at = found.starts[op]
                operands[at] = converted(b, row, operands[at].type)
                type = operands[0].type if op.name in PUTS else op.results[0].type
                env[op.results[0]] = b.op(op.name, operands, type, op.attrs, op.regions)
            else:
                inner = Block([], [op], [*op.results])
                env.update(zip(op.results, inline_block(inner, [], b.block.ops, env), strict=True))
        results = {k: env[old.returns[k]] for k in kept}
        if not self.is_even:
            counts = b.compare("LT", args[0], count)
            results |= {k: b.select(counts, results[k], env[old.args[k]]) for k in found.sums}
        return Block(args, b.block.ops, [b.binary("add", args[0], one), *results.values()])
