"""reshape: splits and merges of dims keep what sharding they can.

Both shapes are cut into groups of dims of equal size (`[16,128,256] -> [2048,256]` is {16,128 | 2048} and {256 | 256}).
Within a group the axes shard the flattened elements from the most significant factor on: axes carry over as long as the
dims before them are cut to single positions. An axis that fits only in part is cut into sub-axes, or, on the first dims of a
group, cuts both sides in blocks that don't divide them: of [5,6] over 2, blocks of 3 rows are blocks of 18 of [30].
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...ir.graph import Op, Value
from ...ir.layout import Axes, Layout, block_size, canonical, local_block
from ...ir.mesh import Mesh, split_axis
from ..cost import Work, prices
from ..emit.builder import Builder
from .base import Choice, In, Out, Rule, shape_of, with_axis, with_turned, without_axis

if TYPE_CHECKING:
    from ..search.assignment import Costs


def groups(source: tuple[int, ...], target: tuple[int, ...]) -> list[tuple[list[int], list[int]]]:
    """Pairs of runs of dims (without those of size 1) whose products are equal, as short as possible; none if there are
    no elements."""
    out: list[tuple[list[int], list[int]]] = []
    if 0 in source:
        return out
    i = j = 0
    left = [d for d, n in enumerate(source) if n != 1]
    right = [d for d, n in enumerate(target) if n != 1]
    while i < len(left) and j < len(right):
        a, b = [left[i]], [right[j]]
        m, n = source[left[i]], target[right[j]]
        i, j = i + 1, j + 1
        while m != n:
            if m < n:
                m *= source[left[i]]
                a.append(left[i])
                i += 1
            else:
                n *= target[right[j]]
                b.append(right[j])
                j += 1
        out.append((a, b))
    return out


def carry(
    layout: Layout, source: tuple[int, ...], target: tuple[int, ...], mesh: Mesh
) -> tuple[Layout, Layout]:
    """(kept, carried): the part of `layout` that a reshape preserves, on the source and on the target shape."""
    kept: list[Axes] = [()] * len(source)
    out: list[Axes] = [()] * len(target)
    blocks_in, blocks_out = [0] * len(source), [0] * len(target)
    for left, right in groups(source, target):
        if len(left) == len(right) == 1:
            kept[left[0]] = out[right[0]] = layout.dims[left[0]]
            if layout.blocks:
                blocks_in[left[0]] = blocks_out[right[0]] = layout.blocks[left[0]]
            continue
        _carry_group(layout, source, target, left, right, mesh, kept, out)
        first, onto = left[0], right[0]
        axes, given = layout.dims[first], layout.blocks[first] if layout.blocks else 0
        if not given and mesh.axes_size(kept[first]) == mesh.axes_size(axes):
            continue
        block, over = divmod(
            local_block(layout, first, source[first], mesh) * _inner(source, left), _inner(target, right)
        )
        if over == 0:
            for d in left:
                kept[d] = ()
            for d in right:
                out[d] = ()
            kept[first] = out[onto] = axes
            blocks_in[first] = given
            blocks_out[onto] = 0 if block == block_size(target[onto], mesh.axes_size(axes)) else block
    partial = layout.partial
    return (
        Layout(tuple(kept), partial, tuple(blocks_in)),
        Layout(tuple(out), partial, tuple(blocks_out)),
    )


def _inner(shape: tuple[int, ...], run: list[int]) -> int:
    """How many elements one position of a run's first dim has."""
    return math.prod(shape[d] for d in run[1:])


def aligned(layout: Layout, source: tuple[int, ...], target: tuple[int, ...], mesh: Mesh) -> Layout:
    """`layout`, the first dim of each group that is split or merged in blocks that are blocks of both shapes."""
    for left, right in groups(source, target):
        axes = layout.dims[left[0]]
        if len(left) == len(right) == 1 or not axes:
            continue
        inner = _inner(source, left)
        unit = math.lcm(inner, _inner(target, right))
        block = block_size(source[left[0]] * inner, mesh.axes_size(axes) * unit) * unit
        layout = layout.with_dim(left[0], axes, block // inner)
    return layout


def _carry_group(
    layout: Layout,
    source: tuple[int, ...],
    target: tuple[int, ...],
    left: list[int],
    right: list[int],
    mesh: Mesh,
    kept: list[Axes],
    out: list[Axes],
) -> None:
    """Walks both runs from the major end; `room` is what of the current target dim is not cut yet."""
    at = 0
    room = target[right[0]]
    for d in left:
        rest = source[d]  # what of this source dim is not cut yet
        for axis in layout.dims[d]:
            pending: str | None = axis
            while pending is not None:
                n = mesh.axis_size(pending)
                while room == 1 and at + 1 < len(right):
                    at += 1
                    room = target[right[at]]
                part = n if rest % n == 0 and room % n == 0 else _common(n, rest, room)
                if part == 1:
                    return
                rest_of_axis: str | None = None
                if part != n:
                    pending, rest_of_axis = split_axis(mesh, pending, part)
                kept[d] += (pending,)
                out[right[at]] += (pending,)
                rest //= part
                room //= part
                if rest_of_axis is not None and room != 1:
                    return
                pending = rest_of_axis
        if rest != 1:
            return


def _common(n: int, rest: int, room: int) -> int:
    """The largest major piece of an axis of size n that divides both dims."""
    return math.gcd(n, math.gcd(rest, room))


class ReshapeRule(Rule):
    """Keeps what carries over; what does not is gathered, or moved to a dim where it does."""

    __slots__ = ("source", "target")

    def __init__(self, op: Op):
        self.source, self.target = shape_of(op.operands[0]), shape_of(op.results[0])
        work = Work(2 * op.results[0].type.nbytes)
        super().__init__([()], [()], (), (), Builder.local, work)

    def _choose(self, costs: Costs, ins: tuple[In, ...], outs: tuple[Out, ...]) -> Choice:
        mesh = costs.mesh
        x, out = ins[0], outs[0]
        wishes = [x.layout, *x.others]
        wishes += [self._back(layout, mesh) for layout in out.demands or ()]
        wishes += [aligned(wish, self.source, self.target, mesh) for wish in (x.layout, *x.others)]
        wishes += [
            self._back(aligned(layout, self.target, self.source, mesh), mesh) for layout in out.demands or ()
        ]
        wishes.append(Layout.replicated(len(self.source)))
        candidates: dict[tuple[Layout, Layout], None] = {}
        for wish in wishes:
            kept, carried = carry(wish, self.source, self.target, mesh)
            candidates[(kept, carried)] = None
            lost = [
                a for a in wish.placement if a not in kept.axes and not isinstance(wish.placement[a], str)
            ]
            lost = [a for a in lost if not any(k.split(":")[0] == a.split(":")[0] for k in kept.axes)]
            for axis in lost:
                for d in range(len(self.source)):
                    moved = kept.with_dim(d, (*kept.dims[d], axis))
                    again, onward = carry(moved, self.source, self.target, mesh)
                    if again is moved:
                        candidates[(again, onward)] = None
        best: Choice | None = None
        for kept, carried in candidates:
            demand = canonical(kept, x.type, mesh)
            result = canonical(carried, out.type, mesh)
            cost = self._cost(kept, mesh)
            cost += costs.marginal(x.type, x.layout, x.others, demand) + costs.serve(
                out.type, result, out.demands
            )
            if best is None or cost < best.cost - 1e-9:
                best = Choice((demand,), (result,), cost)
        assert best is not None
        return best

    def find_variants(
        self, op: Op, choice: Choice, axis: str, kinds: frozenset[str], mesh: Mesh
    ) -> tuple[Choice, ...]:
        (demand,) = choice.demands
        (result,) = choice.results
        base, after = without_axis(demand, axis), without_axis(result, axis)
        if any(x.has_pieces or x.blocks for x in (base, after)):
            return (choice,)
        wishes = [base, *(with_axis(base, axis, kind, mesh) for kind in sorted(kinds))]
        wishes += [with_axis(base, axis, d, mesh) for d in range(len(self.source))]
        wishes += [self._back(with_axis(after, axis, d, mesh), mesh) for d in range(len(self.target))]
        wishes += [aligned(wish, self.source, self.target, mesh) for wish in wishes]
        wishes = [canonical(wish, op.operands[0].type, mesh) for wish in wishes]
        found = {(demand, result): choice._replace(cost=self._cost(demand, mesh))}
        for wish in wishes:
            kept, carried = carry(wish, self.source, self.target, mesh)
            if (
                kept is wish
                and not kept.has_pieces
                and not carried.has_pieces
                and (kept, carried) not in found
            ):
                found[kept, carried] = Choice((kept,), (carried,), self._cost(kept, mesh))
        return tuple(found.values())

    def turn(self, op: Op, way: Choice, a: str, b: str, mesh: Mesh) -> Choice | None:
        wish = with_turned(way.demands[0], a, b)
        if wish is way.demands[0] or any(x.blocks or x.has_pieces for x in (wish, *way.results)):
            return None
        kept, carried = carry(wish, self.source, self.target, mesh)
        if kept is not wish or carried.has_pieces:
            return None
        return Choice((kept,), (carried,), self._cost(kept, mesh))

    def giving(self, op: Op, result: int, layout: Layout, mesh: Mesh) -> Choice | None:
        source = self._back(layout, mesh)
        kept, carried = carry(source, self.source, self.target, mesh)
        if kept is not source or canonical(carried, op.results[0].type, mesh) is not layout:
            return None
        demand = canonical(source, op.operands[0].type, mesh)
        return Choice((demand,), (layout,), self._cost(demand, mesh))

    def own_cost(
        self, choice: Choice, ins: Sequence[In | Value], outs: Sequence[Out | Value], mesh: Mesh
    ) -> float:
        return self._cost(choice.demands[0], mesh)

    def _cost(self, layout: Layout, mesh: Mesh) -> float:
        part = 1.0
        for d, size in enumerate(self.source):
            part *= local_block(layout, d, size, mesh) / max(size, 1)
        return prices(mesh).work(self.work) * part

    def _back(self, layout: Layout, mesh: Mesh) -> Layout:
        return carry(layout, self.target, self.source, mesh)[1]

    def covers(self, op: Op, mesh: Mesh) -> bool:
        layout, result = op.operands[0].layout, op.results[0].layout
        assert layout is not None and result is not None
        kept, carried = carry(layout, self.source, self.target, mesh)
        return (
            canonical(kept, op.operands[0].type, mesh) is layout
            and canonical(carried, op.results[0].type, mesh) is result
        )


def reshape(op: Op) -> Rule:
    return ReshapeRule(op)


RULES = {"reshape": reshape}
