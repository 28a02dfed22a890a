"""Regions of a program that may move a mesh axis together: what each op would do, found along the dims that go together.

From a value and one of its dims, all ops are reached that could have the axis on this dim, on those that go with it in
their other values, and so on. From these, all that have the axis elsewhere: they could do without it. Or two axes change
places wherever they are, or turn round on the dims that they share. Or, from a value back to the arguments, what would
make it in a layout that some user wants.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from ...ir.graph import Op, Value
from ...ir.layout import Layout
from ...ir.optable import CONTROL_FLOW
from ...ir.types import TensorType
from ..rules.base import Choice, distinct, with_axis, with_turned, worth_cutting
from .axis_ways import FIXED
from .proposal import Node, now

if TYPE_CHECKING:
    from .engine import Engine

NOWHERE = -1  # no dim
PASSED = 4  # nodes looked at, for each that a region may have: most have the axis there already
Region = dict[Node, Choice | Layout]  # what would move, and to what
NOTHING: Mapping[Node, Choice | Layout] = {}
NO_KINDS: frozenset[str] = frozenset()
T = TypeVar("T")


class Around:
    """What makes and reads each value: ops, and carries of loops or results of branchings. An engine keeps it."""

    def __init__(self, engine: Engine):
        self._engine = ref(engine)  # a cycle would outlive the search
        self.maker: dict[Value, Node] = {}
        self.readers: dict[Value, list[Node]] = {}
        self._values: dict[Node, Sequence[Value]] = {}
        self._moves: dict[Any, tuple[Choice | Layout, Any]] = {}
        for op in engine.choices:
            if op.name in CONTROL_FLOW:
                for i in range(len(op.results)):
                    for v in made_by((op, i)):
                        self.maker[v] = op, i
                    for v in dict.fromkeys(read_by((op, i))):
                        self.readers.setdefault(v, []).append((op, i))
                continue
            for v in op.results:
                self.maker[v] = op
            for v in dict.fromkeys(op.operands):
                self.readers.setdefault(v, []).append(op)
        self._nodes = {v: [maker, *self.readers.get(v, ())] for v, maker in self.maker.items()}

    @property
    def engine(self) -> Engine:
        engine = self._engine()
        assert engine is not None
        return engine

    def nodes(self, value: Value) -> Sequence[Node]:
        """What makes a value, and what reads it."""
        return self._nodes.get(value) or self.readers.get(value, ())

    def move(self, how: Callable[..., T], node: Node, *more: Any) -> T:
        """What `how` says of a node, and of what there is `more`; remembered as long as the node runs as now."""
        present, key = now(self.engine, node), (how, node, *more)
        known = self._moves.get(key)
        if known is None or known[0] is not present:
            known = self._moves[key] = present, how(self, node, *more)
        return known[1]

    def layouts(self, node: Node, choice: Choice | Layout) -> Iterable[tuple[Value, Layout]]:
        """What a node reads and makes, in which layouts."""
        values = self._values.get(node)
        if values is None:
            values = self._values[node] = (*read_by(node), *made_by(node))
        if isinstance(choice, Layout):
            return [(v, choice) for v in values]
        return zip(values, choice.demands + choice.results, strict=True)

    def ways(self, op: Op, axis: str, kinds: frozenset[str] = NO_KINDS) -> tuple[Choice, ...]:
        """The ways to run an op that differ from the present one on one axis, also on operands that are partial over it of these
        kinds; the present one comes first."""
        return self.move(_ways, op, axis, kinds)


def made_by(node: Node) -> list[Value]:
    """The values that have the layouts that a node gives."""
    if not isinstance(node, tuple):
        return node.results
    op, i = node
    return [op.results[i], *(r.args[i] for r in op.regions if op.name == "while")]


def read_by(node: Node) -> list[Value]:
    """The values that a node wants in some layouts."""
    if not isinstance(node, tuple):
        return node.operands
    op, i = node
    first = [op.operands[i]] if op.name == "while" else []
    return [*first, *(r.returns[i] for r in op.result_regions)]


def demands_of(node: Node, choice: Choice | Layout) -> tuple[Layout, ...]:
    """The layouts in which it wants what it reads."""
    return (choice,) * len(read_by(node)) if isinstance(choice, Layout) else choice.demands


def results_of(node: Node, choice: Choice | Layout) -> tuple[Layout, ...]:
    """The layouts of what it makes."""
    return (choice,) * len(made_by(node)) if isinstance(choice, Layout) else choice.results


def moved(
    around: Around,
    start: Value,
    axis: str,
    dim: int,
    partials: bool,
    most: int,
    first: Mapping[Node, Choice | Layout] = NOTHING,
) -> Region:
    """The region that would have `axis` on a dim of `start` and all that goes with it, and nowhere else. `partials`: also
    where that leaves partial results, which go on as such as far as ops are linear. Of most nodes, nearest first. `first`: nodes
    that move in ways of their own, and lead no further."""
    engine, found, seen = around.engine, Region(first), set[Node](first)
    places: dict[Value, int | str] = {start: dim}
    for there in (True, False):  # first who can have it there, then who has it elsewhere
        todo = deque(places) if dim != NOWHERE or not there else deque[Value]()
        while todo and len(found) < most and len(seen) < PASSED * most:
            v = todo.popleft()
            for node in around.nodes(v):
                if node in seen:
                    continue
                if there:
                    way = around.move(_with, node, axis, v, places[v], partials)
                else:
                    way = around.move(_without, node, axis)
                if way is None:
                    continue
                seen.add(node)
                if way is not now(engine, node):
                    found[node] = way
                for w, layout in around.layouts(node, way):
                    if w not in places:
                        place = places[w] = layout.placement.get(axis, NOWHERE)
                        if place != NOWHERE or not there:
                            todo.append(w)
    return found


def drawn(around: Around, start: Value, layout: Layout, most: int) -> Region:
    """The region that would make `start` in some layout, and what that is made of in the layouts that this takes. Of most
    nodes, nearest first."""
    engine, found, todo = around.engine, Region(), deque([(start, layout)])
    while todo and len(found) < most:
        v, layout = todo.popleft()
        op = around.maker.get(v)
        if (
            engine.layouts[v] is layout
            or op is None
            or op in found
            or isinstance(op, tuple)
            or op.name in FIXED
        ):
            continue
        way = engine.book.rule(op).giving(op, op.results.index(v), layout, engine.mesh)
        if way is not None:
            found[op] = way
            todo.extend(zip(op.operands, way.demands, strict=True))
    return found


def cleared(around: Around, start: Value, axes: Sequence[str], most: int) -> Region:
    """The region around `start` that would have some axes nowhere. Of most nodes, nearest first. What is the same everywhere,
    as broadcast constants are, is made by it, but not followed to whoever else reads it."""

    def nodes(value: Value) -> Iterable[Node]:
        maker = around.maker.get(value)
        if maker is not None and not any(x.axes for x in demands_of(maker, now(around.engine, maker))):
            return (maker,)
        return around.nodes(value)

    return _spread(nodes, start, lambda node: _cleared(around, node, axes), most)


def exchanged(around: Around, start: Value, a: str, b: str, most: int) -> Region:
    """The region around `start` that would have axis `a` where it has `b`, and the other way round."""
    return _spread(around.nodes, start, lambda node: around.move(_swapped, node, a, b), most)


def turned(around: Around, start: Value, a: str, b: str, most: int) -> Region:
    """The region around `start` that has two axes on one dim, and would have them in the other order."""
    return _spread(around.nodes, start, lambda node: around.move(_turned, node, a, b), most)


def _spread(
    nodes: Callable[[Value], Iterable[Node]],
    start: Value,
    move_of: Callable[[Node], Choice | Layout | None],
    most: int,
) -> Region:
    """The nodes around `start` that have a move, as far as they hang together. nodes: those that a value leads to. Of most
    nodes, nearest first."""
    found, seen, todo = Region(), {start}, deque([start])
    while todo and len(found) < most:
        for node in nodes(todo.popleft()):
            if node in found or (move := move_of(node)) is None:
                continue
            found[node] = move
            for w in (*made_by(node), *read_by(node)):
                if w not in seen:
                    seen.add(w)
                    todo.append(w)
    return found


def _ways(around: Around, op: Op, axis: str, kinds: frozenset[str]) -> tuple[Choice, ...]:
    engine, choice = around.engine, around.engine.choices[op]
    ways = [choice]
    if op.name not in FIXED and not any(x.blocks for x in (*choice.demands, *choice.results)):
        ways += engine.book.rule(op).variants(op, choice, axis, kinds, engine.mesh)
    return tuple(distinct(ways))


def _with(
    around: Around, node: Node, axis: str, value: Value, place: int | str, partials: bool
) -> Choice | Layout | None:
    """How a node runs if it has the axis on a dim of a value, or has that partial. None if it can't, or then leaves partials that
    aren't wanted."""
    choice = now(around.engine, node)
    if place == NOWHERE:
        return None
    if isinstance(choice, Layout):
        if choice.placement.get(axis) == place or choice.blocks or choice.has_pieces:
            return choice if choice.placement.get(axis) == place else None
        new = with_axis(choice.drop((axis,)), axis, place, around.engine.mesh)
        return new if isinstance(place, str) or _divides(around.engine, value, new, place) else None
    assert not isinstance(node, tuple)
    kinds = frozenset({place}) if isinstance(place, str) else NO_KINDS
    reads = [i for i, v in enumerate(node.operands) if v is value]
    makes = [i for i, v in enumerate(node.results) if v is value]
    for way in around.ways(node, axis, kinds):
        there = [*[way.demands[i] for i in reads], *[way.results[i] for i in makes]]
        if place in [x.placement.get(axis) for x in there]:
            left = not partials and any(isinstance(x.placement.get(axis), str) for x in way.results)
            return None if left else way
    return None


def _without(around: Around, node: Node, axis: str) -> Choice | Layout | None:
    """How a node that has the axis runs without it; None if it can't."""
    choice = now(around.engine, node)
    if isinstance(choice, Layout):
        return choice.drop((axis,)) if axis in choice.axes and not choice.has_pieces else None
    assert not isinstance(node, tuple)
    if any(axis in x.axes for x in (*choice.demands, *choice.results)):
        for way in around.ways(node, axis):
            if not any(axis in x.axes for x in (*way.demands, *way.results)):
                return way
    return None


def _cleared(around: Around, node: Node, axes: Sequence[str]) -> Choice | Layout | None:
    """How a node runs without some axes; None if it has none of them, or can't."""
    engine = around.engine
    way = present = now(engine, node)
    layouts = [x for _, x in around.layouts(node, present)]
    if any(x.blocks or x.has_pieces for x in layouts):
        return None
    if isinstance(present, Layout):
        way = present.drop(axes)
        return way if way is not present else None
    assert not isinstance(node, tuple) and not isinstance(way, Layout)
    if node.name in FIXED:
        return None
    rule = engine.book.rule(node)
    for axis in axes:
        if any(axis in x.axes for x in (*way.demands, *way.results)):
            ways = rule.variants(node, way, axis, frozenset(), engine.mesh)
            free = [w for w in ways if not any(axis in x.axes for x in (*w.demands, *w.results))]
            if not free:
                return None
            way = free[0]
    return way if way is not present else None


def _divides(engine: Engine, value: Value, layout: Layout, dim: int) -> bool:
    return isinstance(value.type, TensorType) and worth_cutting(
        value.type.shape[dim], layout.dims[dim], engine.mesh
    )


def _swapped(around: Around, node: Node, a: str, b: str) -> Choice | Layout | None:
    """How a node runs if two axes change places; None if it has neither, or can't."""
    engine, choice = around.engine, now(around.engine, node)
    layouts = [x for _, x in around.layouts(node, choice)]
    if not any(x.axes & {a, b} for x in layouts) or any(x.blocks or x.has_pieces for x in layouts):
        return None
    if isinstance(choice, Layout):
        assert isinstance(node, tuple)
        return _layout_swapped(engine, made_by(node)[0], choice, a, b)
    assert not isinstance(node, tuple)
    at_a, at_b = ([x.placement.get(axis, NOWHERE) for x in layouts] for axis in (a, b))
    rule, way = engine.book.rule(node), choice
    for axis, places in ((a, [NOWHERE] * len(layouts)), (b, at_a), (a, at_b)):
        kinds = frozenset(p for p in places if isinstance(p, str))
        ways = rule.variants(node, way, axis, kinds, engine.mesh)
        found = [
            w for w in ways if [x.placement.get(axis, NOWHERE) for x in (*w.demands, *w.results)] == places
        ]
        if not found:
            return None
        way = found[0]
    return way


def _turned(around: Around, node: Node, a: str, b: str) -> Choice | Layout | None:
    """How a node runs with two axes in the other order that are on one dim; None if they aren't, or it can't."""
    engine, choice = around.engine, now(around.engine, node)
    layouts = [x for _, x in around.layouts(node, choice)]
    if any(x.blocks for x in layouts) or not any(a in axes and b in axes for x in layouts for axes in x.dims):
        return None
    if isinstance(choice, Layout):
        return with_turned(choice, a, b)
    assert not isinstance(node, tuple)
    return engine.book.rule(node).turn(node, choice, a, b, engine.mesh)


def _layout_swapped(engine: Engine, value: Value, layout: Layout, a: str, b: str) -> Layout | None:
    new, where = layout.drop((a, b)), layout.placement
    for axis, other in ((a, b), (b, a)):
        if other in where:
            place = where[other]
            new = with_axis(new, axis, place, engine.mesh)
            if isinstance(place, int) and not _divides(engine, value, new, place):
                return None
    return new if new is not layout else None
