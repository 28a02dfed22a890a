"""Mesh axes that a program's layouts only ever name together, one behind the other, searched as one axis.

Where the user shards over `{data.fsdp}` throughout, what suits one of the two axes suits both. A search that decides one
axis after the other has to pass through assignments in which they differ, which cost more than either end. As one axis
of the product of their sizes they move together; what is found so is another start for the search over the real axes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..ir.graph import Module
from ..ir.layout import Axes, Layout, even_part
from ..ir.mesh import Mesh, parse_axis
from .cost import prices
from .rules.base import Choice

if TYPE_CHECKING:
    from .engine import State

PER_DEVICE = {"in_layouts", "out_layouts", "outside", "manual_axes"}  # attributes that name axes of their own


@dataclass(frozen=True)
class Fusion:
    """bundles: the fused axis's name -> the axes that it stands for, major to minor. mesh: with the fused axes."""

    bundles: dict[str, Axes]
    mesh: Mesh
    fine: Mesh

    def fuse(self, layout: Layout) -> Layout:
        """A layout that the user gave, on the fused mesh."""
        names = {axes: name for name, axes in self.bundles.items()}
        dims: list[Axes] = []
        for axes in layout.dims:
            for pieces, name in names.items():
                if pieces[0] in axes:
                    at = axes.index(pieces[0])
                    axes = (*axes[:at], name, *axes[at + len(pieces) :])
            dims.append(axes)
        return Layout(tuple(dims), layout.partial, layout.blocks)

    def split(self, state: State) -> State | None:
        """The same assignment on the real axes; None if it cuts a fused axis where no real axes meet."""
        demands = state.demands.items()
        try:
            return state._replace(
                layouts={v: self._layout(x) for v, x in state.layouts.items()},
                choices={op: self._choice(c) for op, c in state.choices.items()},
                demands={v: {self._layout(x): n for x, n in users.items()} for v, users in demands},
            )
        except _Straddles:
            return None

    def _choice(self, choice: Choice) -> Choice:
        pieces = [self._pieces(axis) for axis in choice.order]
        return Choice(
            tuple(self._layout(x) for x in choice.demands),
            tuple(self._layout(x) for x in choice.results),
            choice.cost,
            tuple(a for axes in pieces for a in axes),
            tuple(pick for axes, pick in zip(pieces, choice.picks, strict=True) for _ in axes),
        )

    def _layout(self, layout: Layout) -> Layout:
        if not layout.axes:
            return layout
        dims = tuple(tuple(a for axis in axes for a in self._pieces(axis)) for axes in layout.dims)
        partial = tuple((a, kind) for axis, kind in layout.partial for a in self._pieces(axis))
        return Layout(dims, partial, layout.blocks)

    def _pieces(self, axis: str) -> Axes:
        """The real axes, or pieces of them, that an axis of the fused mesh or a piece of it consists of."""
        name, start, size = parse_axis(axis)
        if name not in self.bundles:
            return (axis,)
        if size is None:
            return self.bundles[name]
        found: list[str] = []
        end, before = start * size, 1
        for real in self.bundles[name]:
            n = self.fine.axis_size(real)
            low, high = max(start, before), min(end, before * n)
            if low < high:
                if low % before or high % low or (before * n) % high:
                    raise _Straddles
                whole = (low, high) == (before, before * n)
                found.append(real if whole else f"{real}:({low // before}){high // low}")
            before *= n
        return tuple(found)


class _Straddles(Exception):
    """A piece of a fused axis that is no product of pieces of real axes."""


def fusion_of(module: Module) -> Fusion | None:
    """The axes of the module's mesh that belong together; None if there are none."""
    given = list(given_layouts(module))
    mesh = module.mesh
    if any(PER_DEVICE.intersection(op.attrs) for op in module.walk()):
        return None
    hardware = prices(mesh).hardware
    if hardware is not None and hardware.axes:
        return None  # the links of its axes differ
    bundles = {"_".join(axes): axes for axes in _chains(given, mesh)}
    bundles = {name: axes for name, axes in bundles.items() if name not in mesh.shape}
    if not bundles:
        return None
    first = {axes[0]: name for name, axes in bundles.items()}
    rest = {a for axes in bundles.values() for a in axes[1:]}
    sizes = [(first.get(a, a), mesh.axes_size(bundles.get(first.get(a, a), (a,)))) for a in mesh.shape]
    fused = Mesh([pair for a, pair in zip(mesh.shape, sizes, strict=True) if a not in rest])
    fused.cache["prices"] = prices(mesh)
    return Fusion(bundles, fused, mesh)


def given_layouts(module: Module) -> Iterator[Layout]:
    """What the user's layouts say of arguments, results and constraints, and what of it an array can have."""
    main, mesh = module.main, module.mesh
    values = [*main.body.args, *(v for op in module.walk() if op.name == "relayout" for v in op.results)]
    asked = [(v.type, v.layout) for v in values]
    asked += [(v.type, x.get("layout")) for v, x in zip(main.body.returns, main.result_attrs, strict=True)]
    for type, layout in asked:
        if layout is not None:
            layout = layout.drop([a for a in layout.axes if mesh.axis_size(a) == 1])
            yield layout
            yield even_part(layout, type, mesh)


def _chains(layouts: Iterable[Layout], mesh: Mesh) -> Iterator[Axes]:
    """The longest runs of axes of which no layout has one without the others, in this order and on one dim."""
    # what follows each axis, and what precedes it, wherever it is
    behind: dict[str, set[str | None]] = {a: set() for a in mesh.shape}
    before: dict[str, set[str | None]] = {a: set() for a in mesh.shape}
    for layout in layouts:
        for axes in layout.dims:
            names = [a.split(":")[0] for a in axes]
            for a, b in zip([None, *names], [*names, None], strict=True):
                if a is not None:
                    behind[a].add(b)
                if b is not None:
                    before[b].add(a)
        for axis in (*layout.partial_axes, *(a for a in layout.axes if ":" in a)):
            behind[axis.split(":")[0]].add(None)
            before[axis.split(":")[0]].add(None)
    follows = {a: next(iter(bs)) for a, bs in behind.items() if len(bs) == 1}
    pairs = {a: b for a, b in follows.items() if b is not None and before[b] == {a}}
    for head in [a for a in mesh.shape if a in pairs and a not in pairs.values()]:
        chain = [head]
        while chain[-1] in pairs:
            chain.append(pairs[chain[-1]])
        yield tuple(chain)
