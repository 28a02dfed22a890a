"""Ops that pass one value on, in whatever layout it has: optimization_barrier, what puts a value into another memory of its
device (`jax.device_put` to a memory kind, offloading policies of `jax.checkpoint`) or says in which order its dims lie there
(`with_layout_constraint`), and the borders of manual regions.

Such an op has no factors: any layout serves, and the one on its one side follows from that on the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ...ir.graph import Op, Value
from ...ir.layout import Layout, canonical
from ...ir.mesh import Mesh
from ...ir.types import TensorType, Type
from ..emit.builder import Builder
from .base import Choice, In, Out, Rule, with_axis, with_turned, without_axis

if TYPE_CHECKING:
    from ..search.assignment import Costs


def keeps_values(op: Op) -> bool:
    """Whether a custom call is a constraint on how XLA lays out a device's part of a value."""
    return op.attrs.get("call_target_name") == "LayoutConstraint"


class PassingRule(Rule):
    """One operand, one result, the same layout."""

    __slots__ = ()
    enters = True  # the operand is the outer side

    def __init__(self) -> None:
        super().__init__([()], [()], (), (), _expand)

    def inner(self, layout: Layout, type: Type, mesh: Mesh) -> Layout:
        """Of the layout on the outer side, what of it the inner side can keep. `type`: on the outer side."""
        return layout

    def outer(self, inner: Layout, type: Type, mesh: Mesh) -> Layout | None:
        """The layout on the outer side; None if there is none."""
        return inner

    def _choose(self, costs: Costs, ins: tuple[In, ...], outs: tuple[Out, ...]) -> Choice:
        (x,), (y,), mesh = ins, outs, costs.mesh
        type = x.type if self.enters else y.type
        operands, results = (x.layout, *x.others), y.demands or ()
        outside, inside = (operands, results) if self.enters else (results, operands)
        found = [self.inner(o, type, mesh) for o in outside] + list(inside)
        found += [layout.without_partial() for layout in found]
        best: Choice | None = None
        for layout in dict.fromkeys([*found, Layout.replicated(x.type.rank)]):
            choice = self._pair(layout, type, mesh)
            if choice is None:
                continue
            cost = costs.marginal(x.type, x.layout, x.others, choice.demands[0])
            cost += costs.serve(y.type, choice.results[0], y.demands)
            if best is None or cost < best.cost:
                best = choice._replace(cost=cost)
        assert best is not None
        return best

    def _pair(self, inner: Layout, type: Type, mesh: Mesh) -> Choice | None:
        outer = self.outer(inner, type, mesh)
        if outer is None:
            return None
        return Choice((outer,), (inner,)) if self.enters else Choice((inner,), (outer,))

    def find_variants(
        self, op: Op, choice: Choice, axis: str, kinds: frozenset[str], mesh: Mesh
    ) -> tuple[Choice, ...]:
        (inner,) = choice.results if self.enters else choice.demands
        source, result = op.operands[0].type, op.results[0].type
        outside, inside = (source, result) if self.enters else (result, source)
        base = without_axis(inner, axis)
        if base.has_pieces:
            return (choice,)
        found = [inner, base]
        for place in (*range(inside.rank), *sorted(kinds)):
            new = with_axis(base, axis, place, mesh)
            if isinstance(place, int) and not _worth_a_try(new, place, inside, mesh):
                continue
            if len({kind for _, kind in new.partial}) < 2:
                found.append(new)
        ways = [self._pair(x, outside, mesh) for x in dict.fromkeys(found)]
        return tuple(w for w in ways if w is not None)

    def turn(self, op: Op, way: Choice, a: str, b: str, mesh: Mesh) -> Choice | None:
        (inner,) = way.results if self.enters else way.demands
        outside = (op.operands if self.enters else op.results)[0].type
        turned = with_turned(inner, a, b)
        if turned is inner or inner.blocks or inner.has_pieces:
            return None
        return self._pair(turned, outside, mesh)

    def giving(self, op: Op, result: int, layout: Layout, mesh: Mesh) -> Choice | None:
        outside = (op.operands if self.enters else op.results)[0].type
        way = self._pair(layout if self.enters else self.inner(layout, outside, mesh), outside, mesh)
        return way if way is not None and way.results[0] is layout and not layout.partial else None

    def own_cost(
        self, choice: Choice, ins: Sequence[In | Value], outs: Sequence[Out | Value], mesh: Mesh
    ) -> float:
        return 0.0

    def covers(self, op: Op, mesh: Mesh) -> bool:
        x, y = op.operands[0], op.results[0]
        outside, inside = (x, y) if self.enters else (y, x)
        assert inside.layout is not None
        return self.outer(inside.layout, outside.type, mesh) is outside.layout


class BorderRule(PassingRule):
    """Outside `outside`, over the manual axes, is part of the layout; inside they don't occur. The other axes pass."""

    __slots__ = ("enters", "manual", "outside")

    def __init__(self, op: Op):
        super().__init__()
        self.outside: Layout = op.attrs["outside"]
        self.manual = frozenset(op.attrs["manual_axes"])
        self.enters = op.name == "enter_manual"

    def inner(self, layout: Layout, type: Type, mesh: Mesh) -> Layout:
        layout = layout.drop(self.manual)
        for d, axes in enumerate(layout.dims):
            if axes and not self._joins(layout, d, type, mesh):
                layout = layout.with_dim(d, ())
        kinds = {kind for _, kind in (*self.outside.partial, *layout.partial)}
        return layout.without_partial() if len(kinds) > 1 else layout

    def outer(self, inner: Layout, type: Type, mesh: Mesh) -> Layout | None:
        if self.manual & inner.axes or not all(
            self._joins(inner, d, type, mesh) for d in range(inner.rank) if inner.dims[d]
        ):
            return None
        partial = (*self.outside.partial, *inner.partial)
        if len({kind for _, kind in partial}) > 1:
            return None
        none = (0,) * inner.rank
        blocks = zip(self.outside.blocks or none, inner.blocks or none, strict=True)
        dims = tuple(a + b for a, b in zip(self.outside.dims, inner.dims, strict=True))
        return canonical(Layout(dims, partial, tuple(a or b for a, b in blocks)), type, mesh)

    def _joins(self, inner: Layout, d: int, type: Type, mesh: Mesh) -> bool:
        """Whether the blocks of the parts are blocks of the whole: then the manual axes are the major ones of the dim."""
        if not self.outside.dims[d]:
            return True
        return (
            not (self.outside.blocks and self.outside.blocks[d])
            and not (inner.blocks and inner.blocks[d])
            and type.shape[d] % mesh.axes_size(self.outside.dims[d] + inner.dims[d]) == 0
        )

    def find_variants(
        self, op: Op, choice: Choice, axis: str, kinds: frozenset[str], mesh: Mesh
    ) -> tuple[Choice, ...]:
        return (choice,) if axis in self.manual else super().find_variants(op, choice, axis, kinds, mesh)


def _worth_a_try(layout: Layout, d: int, type: Type, mesh: Mesh) -> bool:
    """As in `Rule.divides`."""
    assert isinstance(type, TensorType)
    axes, size = layout.dims[d], type.shape[d]
    return size % mesh.axes_size(axes) == 0 or (len(axes) == 1 and size > mesh.axis_size(axes[0]))


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    return args if op.name in ("enter_manual", "leave_manual") else b.local(op, args)


RULES = {
    "optimization_barrier": lambda op: PassingRule(),
    "enter_manual": BorderRule,
    "leave_manual": BorderRule,
}
