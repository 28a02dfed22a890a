"""What may become of one mesh axis: the ways to run an op, and the layouts of a carry, that differ on it from the present."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from ...ir.graph import Block, Op, Value
from ...ir.layout import Layout
from ...ir.mesh import Mesh
from ...ir.optable import CONTROL_FLOW
from ...ir.types import TensorType
from ..rules.base import Choice, distinct, with_axis, worth_cutting
from .memo import Table

if TYPE_CHECKING:
    from .engine import Engine

FIXED = ("manual_computation", "relayout")  # they stay as they are


class AxisWays:
    """The present way, or layout, comes first. Where an axis has no business it is the only one."""

    def __init__(self, engine: Engine, block: Block, axis: str):
        self.engine, self.axis, self.memory = engine, axis, engine.memory
        self.wished = axis_wishes(engine, block, axis)

    def of(self, op: Op, tables: tuple[Table, ...], ids: tuple[int, ...]) -> tuple[Choice, ...]:
        """The ways to run an op whose operands may lie as their tables say; `ids` are those of the tables."""
        choice = self.engine.choices[op]
        if op.name in FIXED:
            return (choice,)
        known = self.memory.kinds
        if (ids, self.axis) in known:
            kinds = known[ids, self.axis]
        else:
            kinds = known[ids, self.axis] = self._kinds(tables)
        if kinds is None and self.wished.isdisjoint(op.results):
            return (choice,)  # the axis has no business here
        rule = self.engine.book.rule(op)
        candidates = self.memory.candidates
        key = (id(rule), choice.demands, choice.results, self.axis, kinds)
        found = candidates.get(key)
        if found is None:
            layouts, mesh = (*choice.demands, *choice.results), self.engine.mesh
            found = (choice,)
            if not any(x.drop((self.axis,)).blocks for x in layouts):
                found = rule.variants(op, choice, self.axis, kinds or frozenset(), mesh)
                if self.engine.turned:
                    found = tuple(distinct([*found, *rule.turned(op, found, mesh)]))
                if any(x.blocks for x in layouts):  # the variants have default blocks
                    found = tuple(distinct((choice, *found)))
            candidates[key] = found
        return found

    def of_carry(self, value: Value, layout: Layout, seen: Iterable[Layout]) -> list[Layout]:
        """The layouts for a value that has one now; `seen`: those that it has or is wanted in elsewhere."""
        type, axis = value.type, self.axis
        if layout.blocks or layout.has_pieces or not isinstance(type, TensorType):
            return [layout]
        places = {x.placement[axis] for x in seen if axis in x.axes}
        if not places and value not in self.wished:
            return [layout]
        kinds = frozenset(p for p in places if isinstance(p, str))
        key = (type, layout, axis, kinds)
        known = self.memory.placements.get(key)
        if known is None:
            new = placements(type, layout.drop((axis,)), axis, kinds, self.engine.mesh)
            known = self.memory.placements[key] = list(dict.fromkeys((layout, *new)))
        return known

    def _kinds(self, tables: tuple[Table, ...]) -> frozenset[str] | None:
        """The kinds of partials over the axis that some operand may be; None if none has the axis at all."""
        places = [x.placement[self.axis] for table in tables for x, _ in table if self.axis in x.axes]
        return frozenset(p for p in places if isinstance(p, str)) if places else None


def placements(
    type: TensorType, free: Layout, axis: str, kinds: Iterable[str], mesh: Mesh
) -> Iterator[Layout]:
    """A layout without an axis, and the same with it on each dim that is worth cutting, and in partials of some kinds."""
    yield free
    for place in (*range(type.rank), *sorted(kinds)):
        new = with_axis(free, axis, place, mesh)
        if isinstance(place, str) or worth_cutting(type.shape[place], new.dims[place], mesh):
            yield new


def axis_wishes(engine: Engine, block: Block, axis: str) -> set[Value]:
    """What something further on wants on the axis, or what that is made of: all of it may be shared over the axis. All values,
    if the axis is open to everything."""
    if axis in engine.opened:
        return set(engine.layouts)
    wished: set[Value] = set()
    _add_wishes(engine, block, axis, wished)
    return wished


def _add_wishes(engine: Engine, block: Block, axis: str, wished: set[Value]) -> None:
    for op in reversed(block.ops):
        wants = [x for v in op.results for x in engine.demands.get(v, ()) if axis in x.axes]
        if axis in op.attrs.get("manual_axes", ()):
            continue  # what is in a manual region is per device over the axis
        regions = op.regions if op.name in CONTROL_FLOW else ()
        if wants or not wished.isdisjoint(op.results):
            wished.update(op.results, op.operands)
            for region in regions:
                wished.update(region.args, region.returns)
        for region in regions:
            _add_wishes(engine, region, axis, wished)
