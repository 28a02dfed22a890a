"""The relayout planner: the cheapest sequence of steps that takes a value from one layout to another.

Steps are single collectives (or none at all: slicing and masking are local), each from one layout to the next. The plan
is a shortest path (A*, with `bound`) over layouts whose shard is no larger than the larger of the two ends, or
little larger where blocks have another size than they will have, weighted by `cost.step_cost`. Plans depend on types,
layouts and axis sizes only, never on the number of devices.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterable
from typing import NamedTuple

from ...ir.layout import Layout, local_type
from ...ir.mesh import Mesh, parse_axis, renamed_axis, split_axis
from ...ir.types import TensorType
from ..cost import prices, step_cost
from .bound import least_cost
from .direct import direct
from .exchange import fuse
from .steps import MAX_ATOMS, Step, steps

PADDED = 1.125  # times the larger shard, that blocks may take which have another size than they will have
SAME = 1 + 1e-9  # times as dear, which rounding may make of what costs the same
MAX_STATES = 200  # a search that visits more falls back to resolve, gather, slice


class Plan(NamedTuple):
    steps: tuple[Step, ...]
    cost: float


EMPTY = Plan((), 0.0)


def plan(type: TensorType, source: Layout, target: Layout, mesh: Mesh) -> Plan:
    """The cheapest plan from `source` to `target`; memoised on the mesh."""
    if source is target:
        return EMPTY
    plans, key = mesh.cache.setdefault("plans", {}), (type, source, target)
    known = plans.get(key)
    if known is None:
        known = plans[key] = _where_roomy(type, source, target, mesh) or _planned(type, source, target, mesh)
        known_bounds(mesh)[key] = known.cost
    return known


def _where_roomy(type: TensorType, source: Layout, target: Layout, mesh: Mesh) -> Plan | None:
    """On a mesh where large blocks are dear, the plan for where they are not, if it pays for no more of them than what it begins and
    ends with: any plan does, and none costs less otherwise, but for what joining steps to exchanges saves behind the search."""
    roomy = mesh.cache.get("roomy")
    if roomy is None:
        return None
    known = plan(type, source, target, roomy)
    if not known.steps:
        return known
    there, block = (local_type(type, x, mesh).nbytes for x in (source, target))
    cost = sum(step_cost(step, type, mesh) for step in known.steps)
    return Plan(known.steps, cost) if cost <= (known.cost + prices(mesh).hold(block, there)) * SAME else None


def _planned(type: TensorType, source: Layout, target: Layout, mesh: Mesh) -> Plan:
    names = _first_of_alike(source, target, mesh)
    return _renamed(type, source, target, names, mesh) if names else _plan(type, source, target, mesh)


def _first_of_alike(source: Layout, target: Layout, mesh: Mesh) -> dict[str, str]:
    """Axes of one size are alike, and plans differ by their names only: of the axes of two layouts, in the order in which these
    name them, the ones that come first in the mesh among those alike. {} if they do already, or links differ."""
    alike = mesh.cache.get("alike")
    if alike is None:
        hardware = prices(mesh).hardware
        same = hardware is None or not hardware.axes
        sizes = mesh.shape.values()
        alike = mesh.cache["alike"] = {
            axis: [a for a, n in mesh.axes if n == size]
            for axis, size in mesh.axes
            if same and sum(n == size for n in sizes) > 1
        }
    if not alike:
        return {}
    names: dict[str, str] = {}
    for axis in (*source.placement, *target.placement):
        name = parse_axis(axis)[0]
        if name in alike and name not in names:
            names[name] = next(a for a in alike[name] if a not in names.values())
    return {} if all(old == new for old, new in names.items()) else names


def _renamed(type: TensorType, source: Layout, target: Layout, names: dict[str, str], mesh: Mesh) -> Plan:
    """The plan, made under other names of the axes, which may be known for them already."""
    plans = mesh.cache["plans"]
    key = type, source.renamed(names), target.renamed(names)
    if key not in plans:
        plans[key] = _plan(*key, mesh)
    back = {new: old for old, new in names.items()}
    return Plan(tuple([_renamed_step(s, back) for s in plans[key].steps]), plans[key].cost)


def _renamed_step(step: Step, names: dict[str, str]) -> Step:
    axes = tuple([renamed_axis(a, names) for a in step.axes])
    if step.kind == "all_reduce":
        axes = tuple(sorted(axes))  # as in layouts: all-reduces over the same axes may be combined
    return step._replace(
        axes=axes,
        source=step.source.renamed(names),
        target=step.target.renamed(names),
        between=step.between and step.between.renamed(names),
    )


def relayout_cost(
    type: TensorType, source: Layout, target: Layout, mesh: Mesh, limit: float = math.inf
) -> float:
    """The cost of the plan. If that is `limit` or more, it may be inf instead: nobody asks for such a plan."""
    if source is target:
        return 0.0
    if limit < math.inf and relayout_bound(type, source, target, mesh) >= limit:
        return math.inf
    return plan(type, source, target, mesh).cost


def known_bounds(mesh: Mesh) -> dict[tuple[TensorType, Layout, Layout], float]:
    """Those that `bound` gave, and the costs of plans."""
    return mesh.cache.setdefault("bounds", {})


def relayout_bound(type: TensorType, source: Layout, target: Layout, mesh: Mesh) -> float:
    """A bound from below of the plan's cost, without a plan; memoised on the mesh."""
    bounds, key = known_bounds(mesh), (type, source, target)
    bound = bounds.get(key)
    if bound is None:
        pieces = source.has_pieces or target.has_pieces
        bound = bounds[key] = 0.0 if pieces else least_cost(type, source, target, mesh)
    return bound


def _plan(type: TensorType, source: Layout, target: Layout, mesh: Mesh) -> Plan:
    if not isinstance(type, TensorType):
        return EMPTY
    fits = nesting((source, target), mesh)[1]
    if fits is not target:
        first, second = plan(type, source, fits, mesh), plan(type, fits, target, mesh)
        return Plan(first.steps + second.steps, first.cost + second.cost)
    src, dst = refine((source, target), mesh)
    found = direct(type, src, dst, mesh)
    if found is None:
        return _fused(_found(type, src, dst, mesh).steps, type, mesh)
    known = _fused(found, type, mesh)
    if known.cost <= relayout_bound(type, src, dst, mesh) or _serves(known, src, dst, mesh):
        return known
    other = _found(type, src, dst, mesh, known.cost)
    return min(known, _fused(other.steps, type, mesh), key=lambda p: p.cost) if other.steps else known


def _fused(steps: Iterable[Step], type: TensorType, mesh: Mesh) -> Plan:
    steps = fuse(tuple(steps), type, mesh)
    return Plan(steps, sum(step_cost(s, type, mesh) for s in steps))


def _serves(plan: Plan, src: Layout, dst: Layout, mesh: Mesh) -> bool:
    """Whether a direct plan will do. It may not be the best where blocks are permuted and gathered or split as well, so other axes may
    do; or where an axis changes dims, and new ones may first be cut where it goes to, and change places with it."""
    if _only_steers(mesh):
        return True
    kinds = [s.kind for s in plan.steps if s.sends]
    if "exchange" in kinds or ("collective_permute" in kinds and len(kinds) > 1):
        return False
    places, new = src.placement, any(a not in src.placement for axes in dst.dims for a in axes)
    moves = any(a in places and a not in src.dims[d] for d, axes in enumerate(dst.dims) for a in axes)
    return not (new and moves)


def _only_steers(mesh: Mesh) -> bool:
    """Whether plans on a mesh only tell a search what to avoid, large blocks (`with_room`), and are not run: how dear the best one is
    where all hold such matters little."""
    return "roomy" in mesh.cache


def _found(type: TensorType, src: Layout, dst: Layout, mesh: Mesh, limit: float = math.inf) -> Plan:
    """The cheapest plan; if that costs `limit` or more, one that costs inf."""
    atoms = sorted(src.axes | dst.axes)
    pieces = {a: tuple(_prime_pieces(mesh, a)) for a in atoms}
    if sum(map(len, pieces.values())) > MAX_ATOMS:
        pieces = {a: _pieces_like(mesh, a, atoms) for a in atoms}
    cut = len(atoms) < sum(map(len, pieces.values())) <= MAX_ATOMS and _needs_pieces(src, dst)
    if cut and not _only_steers(mesh):
        coarse = _search(type, src, dst, mesh, limit)
        fine = _search(type, split(src, pieces), split(dst, pieces), mesh, min(limit, coarse.cost))
        return min(coarse, fine, key=lambda p: (p.cost, len(p.steps)))
    return _search(type, src, dst, mesh, limit)


def _needs_pieces(src: Layout, dst: Layout) -> bool:
    """Pieces help where axes trade places, not where axes only come or go."""
    return any(src.placement.get(a) != dst.placement.get(a) for a in src.axes | dst.axes)


def _prime_pieces(mesh: Mesh, axis: str) -> list[str]:
    size = mesh.axis_size(axis)
    prime = next((p for p in range(2, math.isqrt(size) + 1) if size % p == 0), None)
    if prime is None:
        return [axis]
    first, rest = split_axis(mesh, axis, prime)
    return [first, *_prime_pieces(mesh, rest)]


def _pieces_like(mesh: Mesh, axis: str, others: list[str]) -> tuple[str, ...]:
    """The axis cut once, so that its major piece has the size of another axis: the two can trade places then."""
    size = mesh.axis_size(axis)
    like = [n for n in map(mesh.axis_size, others) if 1 < n < size and size % n == 0]
    return split_axis(mesh, axis, max(like)) if like else (axis,)


def split(layout: Layout, pieces: dict[str, tuple[str, ...]]) -> Layout:
    """Writes axes as their pieces, major to minor."""
    if not any(a in pieces for a in layout.axes):
        return layout
    dims = tuple(tuple(p for a in axes for p in pieces.get(a, (a,))) for axes in layout.dims)
    partial = tuple((p, kind) for a, kind in layout.partial for p in pieces.get(a, (a,)))
    return Layout(dims, partial, layout.blocks)


def _span(axis: str, mesh: Mesh) -> tuple[str, int, int]:
    """The mesh axis that an axis is, or is a piece of, and from where to where, as products of its major pieces' sizes."""
    name, begin, size = parse_axis(axis)
    return name, begin, begin * (size if size is not None else mesh.shape[name])


def refine(layouts: tuple[Layout, ...], mesh: Mesh) -> tuple[Layout, ...]:
    """The same layouts over a common set of pieces, so that two axes are either equal or disjoint. Raises ValueError if
    there is none: see `nesting`."""
    names = {a for layout in layouts for a in layout.axes}
    if not any(":" in a for a in names):
        return layouts
    cuts: dict[str, set[int]] = {}
    for axis in names:
        name, begin, end = _span(axis, mesh)
        cuts.setdefault(name, set()).update((begin, end))
    pieces: dict[str, tuple[str, ...]] = {}
    for axis in names:
        name, begin, end = _span(axis, mesh)
        points = sorted(c for c in cuts[name] if begin <= c <= end)
        if len(points) > 2:
            if any(hi % lo for lo, hi in itertools.pairwise(points)):
                raise ValueError(f"the sub-axes of {name} in {', '.join(map(str, layouts))} don't nest")
            pieces[axis] = tuple(f"{name}:({lo}){hi // lo}" for lo, hi in itertools.pairwise(points))
    return tuple(split(layout, pieces) for layout in layouts)


def nesting(layouts: tuple[Layout, ...], mesh: Mesh) -> tuple[Layout, ...]:
    """The layouts; where the sub-axes of one don't nest in those before it (as 2 and 3 of 6 don't), it comes without."""
    if not any(x.has_pieces for x in layouts):
        return layouts
    cuts: dict[str, set[int]] = {}
    found: list[Layout] = []
    for layout in layouts:
        own: dict[str, set[int]] = {}
        for axis in layout.axes:
            name, begin, end = _span(axis, mesh)
            own.setdefault(name, set()).update((begin, end))
        clash: set[str] = set()
        for name, points in own.items():
            together = cuts.get(name, set()) | points
            if any(hi % lo for lo, hi in itertools.pairwise(sorted(together))):
                clash.add(name)
            else:
                cuts[name] = together
        found.append(layout.drop(a for a in layout.axes if parse_axis(a)[0] in clash))
    return tuple(found)


# ------------------------------------------------------------------------------------------------ the search
def _search(type: TensorType, src: Layout, dst: Layout, mesh: Mesh, limit: float = math.inf) -> Plan:
    """The cheapest plan; if that costs `limit` or more, one that costs inf."""
    bound = max(local_type(type, src, mesh).nbytes, local_type(type, dst, mesh).nbytes)
    best: dict[Layout, float] = {src: 0.0}
    came: dict[Layout, Step] = {}
    left: dict[Layout, float] = {dst: 0.0}  # at least, from a layout to `dst`
    queue: list[tuple[float, int, bool, str, float, Layout]] = [(0.0, 0, False, "", 0.0, src)]
    visited = 0
    if limit < math.inf:
        limit -= 1e-9 * limit
    while queue:
        _, hops, _, _, cost, at = heapq.heappop(queue)
        if at is dst:
            path: list[Step] = []
            while at is not src:
                path.append(came[at])
                at = came[at].source
            return Plan(tuple(reversed(path)), cost)
        if cost > best[at]:
            continue
        visited += 1
        if visited > MAX_STATES:
            break
        for step in steps(type, at, mesh, dst):
            to, known = step.target, best.get(step.target, math.inf)
            room = bound * PADDED if to.blocks else bound
            if known <= cost or (to is not dst and local_type(type, to, mesh).nbytes > room):
                continue
            total = cost + step_cost(step, type, mesh)
            if total < known and total < limit:
                best[to] = total
                came[to] = step
                if to not in left:
                    left[to] = least_cost(type, to, dst, mesh)
                least = total + left[to]
                if to is dst or least < best.get(dst, limit):
                    permutes = step.kind == "collective_permute"  # rather last: an exchange may end in one
                    heapq.heappush(queue, (least, hops + 1, permutes, repr(to), total, to))
    if visited <= MAX_STATES and limit < math.inf:
        return Plan((), math.inf)
    return _through_replicated(type, src, dst, mesh)


def _through_replicated(type: TensorType, src: Layout, dst: Layout, mesh: Mesh) -> Plan:
    """The plan that always exists: reduce, gather every dim, then slice and mask."""
    path: list[Step] = []
    at = src

    def go(step: Step) -> None:
        nonlocal at
        path.append(step)
        at = step.target

    for axis, kind in src.partial:
        rest = tuple(p for p in at.partial if p[0] != axis)
        go(Step("all_reduce", (axis,), at, at.with_partial(rest), reduction=kind))
    for d, axes in enumerate(src.dims):
        if axes and (axes != dst.dims[d] or src.blocks != dst.blocks):
            go(Step("all_gather", axes, at, at.with_dim(d, ()), dim=d))
    for d, axes in enumerate(dst.dims):
        if axes and axes != at.dims[d]:
            go(Step("slice", axes, at, at.with_dim(d, axes, dst.blocks[d] if dst.blocks else 0), dim=d))
    for axis, kind in dst.partial:
        go(Step("to_partial", (axis,), at, at.with_partial((*at.partial, (axis, kind))), reduction=kind))
    return Plan(tuple(path), sum(step_cost(s, type, mesh) for s in path))
