"""Moves of whole regions: a connected part of a program moves a mesh axis together, where each op alone would only pay.

Each op of a region (`regions`) may stay or move. What that costs, the relayouts between those that move and those that
stay included, is a minimum cut (`min_cut`), so the best part of the region is found, not only the whole of it: an expansion
move of Boykov, Veksler and Zabih (2001), for layouts. Regions begin at the values whose relayouts cost most.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import TYPE_CHECKING

from ...ir.graph import Op, Value
from ...ir.layout import Layout
from ..min_cut import MinCut
from ..rules.base import Choice, with_axis
from .dear_relayouts import NEGLIGIBLE, dear_values
from .proposal import Allowed, Node, accept_if, now
from .regions import (
    NOWHERE,
    Around,
    Region,
    cleared,
    demands_of,
    drawn,
    exchanged,
    made_by,
    moved,
    read_by,
    results_of,
    turned,
)

if TYPE_CHECKING:
    from .engine import Engine
    from .traffic import Traffic

VALUES = 8  # at which regions begin
LOOKED_AT = 24  # values, from which these are picked, and at which regions begin that lose several axes
REPEATED = 4  # of each of these, as many may be like another one
MOST = 250  # nodes of a region
FEW = 60  # nodes of one that loses several axes: it does what the devices shared on each of them
# nodes of all regions that don't pay: per op that runs (of a row of parts, in one of them), at least, at most
NODES, LEAST, ALL = 2, 2000, 3200


def region_moves(
    engine: Engine, traffic: Traffic | None = None, picky: bool = False, allowed: Allowed | None = None
) -> float:
    """Moves regions so that the program gets cheaper. Returns by how much. traffic: no region may move that sends more. picky: nor
    one that hardly pays, which is in the way of others from the same values. allowed: what else has to be so then."""
    dear = _most_promising(engine, dear_values(engine, REPEATED * LOOKED_AT))
    if not dear:
        return 0.0
    worthwhile = NEGLIGIBLE * engine.total()
    least = worthwhile if picky else 0.0
    around = engine.around
    kinds = _regions(around, dear), _behind_users(around, dear)
    move = partial(move_best, engine, traffic=traffic, least=least, allowed=allowed)
    return sum([_move_all(around, _distinct(regions), move, worthwhile) for regions in kinds])


def _move_all(
    around: Around, regions: Iterable[Region], move: Callable[[Region], float], worthwhile: float
) -> float:
    """Moves the regions that pay, until too many don't; how much cheaper the program is."""
    engine, gain = around.engine, 0.0
    weights = {} if engine.rolled else engine.weights
    ops = sum([weights.get(op, 1) for op in engine.choices])
    left = min(ALL, max(LEAST, NODES * ops))
    for region in regions:
        paid = move(region)
        gain += paid
        left -= 0 if paid > worthwhile else len(region)
        if left < 0:
            break
    return gain


def _most_promising(engine: Engine, dear: Sequence[Value]) -> list[Value]:
    """First one of each kind, then the last: layers repeat themselves, but what is around them differs at the ends. Last those
    partial: what their reductions cost is mostly owed, wherever the axes are."""
    kinds: dict[object, list[Value]] = {}
    for v in dear:
        kinds.setdefault((v.type, engine.layouts[v], engine.wanted(v)), []).append(v)
    rank: dict[Value, tuple[bool, int]] = {}
    for alike in kinds.values():
        for k, v in enumerate(alike):
            rank[v] = bool(engine.layouts[v].partial), min(2 * k, 2 * (len(alike) - k) - 1)
    return sorted(dear, key=rank.__getitem__)[:LOOKED_AT]


def _distinct(regions: Iterable[Region]) -> Iterator[Region]:
    tried = set[frozenset[object]]()
    for region in regions:
        key = frozenset((node, id(move)) for node, move in region.items())
        if region and key not in tried:
            tried.add(key)
            yield region


def move_best(
    engine: Engine,
    region: Region,
    traffic: Traffic | None,
    least: float = 0.0,
    allowed: Allowed | None = None,
) -> float:
    """Moves the part of a region that should, if that pays more than the `least`, and the program doesn't send more then and is as
    allowed; how much cheaper it is."""
    part = _best_part(engine, region)
    sent = traffic.sent(engine) if traffic and part else 0.0

    def is_allowed() -> bool:
        return (not traffic or traffic.sent(engine) <= sent + 1e-6) and (allowed is None or allowed())

    return accept_if(engine, part, is_allowed, least)


def _regions(around: Around, values: Sequence[Value]) -> Iterator[Region]:
    """What may move together to save some values' relayouts: an axis that one of these moves goes to where some user has it,
    changes places with another axis, or goes to another dim; two on one dim turn round; or the value is made in the layout
    that some user wants."""
    engine = around.engine
    for value in values:
        yield from _to_nowhere(around, value)
    for ways in (_to_users, _to_each_other, _to_other_dims):
        for value in values[:VALUES]:
            layouts = [engine.layouts[value], *engine.wanted(value)]
            for axis in engine.mesh.shape:
                if len(_places(axis, layouts)) > 1:
                    yield from ways(around, value, axis, layouts)
    for value in values[:VALUES]:
        for axes in dict.fromkeys(d for x in (engine.layouts[value], *engine.wanted(value)) for d in x.dims):
            for a, b in combinations(axes, 2):
                yield turned(around, value, a, b, MOST)
    for value in values[:VALUES]:
        for layout in engine.wanted(value):
            if layout is not engine.layouts[value]:
                yield drawn(around, value, layout, MOST)


def _behind_users(around: Around, values: Sequence[Value]) -> Iterator[Region]:
    """Users that take a value where it lies, which is dear to bring to them, and behind them what has their results on another
    dim, if these are cheaper to bring there: a lookup of columns, with all that then works on rows."""
    engine, costs, weights = around.engine, around.engine.costs, around.engine.weights
    for value in values[:VALUES]:
        paid = weights.get(value, 1) * costs.serve(value.type, engine.layouts[value], engine.wanted(value))
        for user, way, axis in _as_it_is(around, value):
            for result, made in zip(user.results, way.results, strict=True):
                weight = weights.get(result, 1)
                for place in range(result.type.rank):
                    brought = with_axis(made.drop((axis,)), axis, place, engine.mesh)
                    limit = paid / weight
                    if brought is not made and costs.relayout(result.type, made, brought, limit) < limit:
                        yield moved(around, result, axis, place, True, MOST, {user: way})


def _as_it_is(around: Around, value: Value) -> Iterator[tuple[Op, Choice, str]]:
    """Users that a value is brought to, with ways to run them that take it where it lies, and the axis on which these differ."""
    layout = around.engine.layouts[value]
    for user in around.readers.get(value, ()):
        if isinstance(user, tuple):
            continue
        wanted = around.engine.choices[user].demands
        for axis in [a for a in around.engine.mesh.shape if a in layout.axes]:  # pieces stay where they are
            for way in around.ways(user, axis)[1:]:
                pairs = zip(user.operands, wanted, way.demands, strict=True)
                if any(v is value and x is not layout and y is layout for v, x, y in pairs):
                    yield user, way, axis


def _to_users(around: Around, value: Value, axis: str, layouts: Sequence[Layout]) -> Iterator[Region]:
    for place in _places(axis, layouts):
        if isinstance(place, int):
            for partials in (True, False) if place != NOWHERE else (True,):
                yield moved(around, value, axis, place, partials, MOST)


def _to_nowhere(around: Around, value: Value) -> Iterator[Region]:
    """All axes at once that some user doesn't want."""
    engine = around.engine
    sets = [tuple(a for a in engine.mesh.shape if a not in x.axes) for x in engine.wanted(value)]
    for axes in dict.fromkeys(sets):
        if len(axes) > 1:
            yield cleared(around, value, axes, FEW)


def _to_each_other(around: Around, value: Value, axis: str, layouts: Sequence[Layout]) -> Iterator[Region]:
    before = True  # `axis` in the mesh's order: one that moves too has been tried with it then
    for other in around.engine.mesh.shape:
        if other == axis:
            before = False
        elif any(other in x.axes for x in layouts) and not (before and len(_places(other, layouts)) > 1):
            yield exchanged(around, value, axis, other, MOST)


def _to_other_dims(around: Around, value: Value, axis: str, layouts: Sequence[Layout]) -> Iterator[Region]:
    places = _places(axis, layouts)
    for place in range(value.type.rank):
        if place not in places:
            yield moved(around, value, axis, place, True, MOST)


def _places(axis: str, layouts: Sequence[Layout]) -> dict[int | str, None]:
    """Where an axis is, in some layout or other."""
    return dict.fromkeys(x.placement.get(axis, NOWHERE) for x in layouts)


def _best_part(engine: Engine, region: Region) -> Region:
    """The part of a region that should move, by the least cost of all parts. A cut can't have all costs of relayouts: what a maker
    that moves would save on a user that stays is not counted. Whether the program gets cheaper is seen when it has moved."""
    cut, layouts, weights = MinCut(), engine.layouts, engine.weights
    variables: dict[Node, int] = {}
    made: dict[Value, tuple[int, Layout]] = {}  # by whom, and in which layout after moving
    read: dict[Value, list[tuple[int, Layout, Layout]]] = {}  # by whom, in which layouts before and after
    for node, move in region.items():
        variable, current = cut.variable(), now(engine, node)
        variables[node] = variable
        if isinstance(current, Choice):
            assert isinstance(node, Op) and isinstance(move, Choice)
            cut.one(variable, weights.get(node, 1) * (move.cost - current.cost))
        for v, layout in zip(made_by(node), results_of(node, move), strict=True):
            if layout is not layouts[v]:
                made[v] = variable, layout
        befores, afters = demands_of(node, current), demands_of(node, move)
        if befores != afters:
            for v, before, after in zip(read_by(node), befores, afters, strict=True):
                if before is not after:
                    read.setdefault(v, []).append((variable, before, after))
    for value, (maker, new) in made.items():
        _add_relayouts(engine, cut, value, maker, new, read.get(value, ()))
    for value, readers in read.items():
        if value not in made:
            _add_relayouts(engine, cut, value, None, layouts[value], readers)
    ones = cut.solve()
    return {node: region[node] for node, variable in variables.items() if variable in ones} if ones else {}


def _add_relayouts(
    engine: Engine,
    cut: MinCut,
    value: Value,
    maker: int | None,
    new: Layout,
    readers: Sequence[tuple[int, Layout, Layout]],
) -> None:
    """What it costs to have a value where it is wanted, each layout once however many users want it. maker: moves to `new`, if
    there is one."""
    weight, type, relayout = engine.weights.get(value, 1), value.type, engine.costs.relayout
    there, always = engine.layouts[value], engine.demands.get(value, {})
    free = value in engine.free_results
    if maker is not None and len(readers) == 1 and not free and always == {there: 1}:
        ((reader, _, after),) = readers
        if after is new:  # most often: it is read by one op, which goes along
            cut.ordered(reader, maker, weight * relayout(type, new, there))
            cut.ordered(maker, reader, weight * relayout(type, there, new))
            return
    stays: dict[Layout, list[int]] = {}  # wanted as long as one of these stays
    moves: dict[Layout, list[int]] = {}  # wanted if one of these moves
    for variable, before, after in readers:
        stays.setdefault(before, []).append(variable)
        moves.setdefault(after, []).append(variable)
    fixed = [x for x, n in always.items() if n > len(stays.get(x, ())) or x in moves]

    def prices(layout: Layout) -> tuple[float, float]:
        """If the maker stays, if it moves."""
        stay = weight * relayout(type, there, layout)
        return stay, stay if new is there else weight * relayout(type, new, layout)

    if maker is not None:
        for layout in fixed:
            stay, move = prices(layout)
            cut.one(maker, move - stay)
        if free:
            stay, move = [relayout(type, x, engine.free_result(type, x)) for x in (there, new)]
            cut.one(maker, weight * (move - stay))
    for layout, users in stays.items():
        if layout not in fixed:
            stay, move = prices(layout)
            _if_one_stays(cut, maker, users, stay, max(stay, move))
    for layout, users in moves.items():
        if layout not in fixed:
            _if_one_moves(cut, maker, users, *prices(layout))


def _if_one_stays(cut: MinCut, maker: int | None, users: list[int], stay: float, move: float) -> None:
    """What one of the users costs that stays: `stay`, or `move`, which is no less, if the maker moves."""
    if not move:
        return
    all_move = _joint(cut, users, every=True)
    cut.one(all_move, -stay)
    if maker is not None and maker != all_move and move > stay:
        cut.ordered(all_move, maker, move - stay)


def _if_one_moves(cut: MinCut, maker: int | None, users: list[int], stay: float, move: float) -> None:
    """What one of the users costs that moves: `stay`, or `move` if the maker moves too."""
    if not stay:
        return
    move = min(stay, move)
    one_moves = _joint(cut, users, every=False)
    cut.one(one_moves, move)
    if maker is not None and maker != one_moves and stay > move:
        cut.ordered(maker, one_moves, stay - move)


def _joint(cut: MinCut, users: list[int], every: bool) -> int:
    """A variable that can be 1 only if every user is, or has to be 1 if any is. Of one user it is that one's own."""
    if len(users) == 1:
        return users[0]
    joint = cut.variable()
    for user in users:
        cut.never(*((user, joint) if every else (joint, user)))
    return joint
