"""Mesh axes that a program's layouts name together, one behind the other, searched as one axis.

Where the user shards over `{data.fsdp}` throughout, what suits one of the two axes suits both. A search that decides one
axis after the other has to pass through assignments in which they differ, which cost more than either end. As one axis
of the product of their sizes they move together; what is found so is another start for the search over the real axes.
A few small arguments and results that have only one of the axes, such as biases beside the weights, are seen without it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...ir.graph import Module
from ...ir.layout import Axes, Layout, even_part
from ...ir.mesh import Mesh, merge_axes, parse_axis, piece_of
from ..cost import prices
from ..relayout.planner import split
from ..rules.strategy import Choice, Strategy

if TYPE_CHECKING:
    from .engine import State

FEW = 0.05  # of the bytes that have some axes together, that may have one of them alone
PER_DEVICE = {"in_layouts", "out_layouts", "outside", "manual_axes"}  # attributes that name axes of their own


@dataclass(frozen=True)
class Fusion:
    """bundles: the fused axis's name -> the axes that it stands for, or the piece of one, major to minor. mesh: with the fused
    axes. fine: with the real ones. cuts: the real axes that are in pieces, with these (`cut_axes`)."""

    bundles: dict[str, Axes]
    mesh: Mesh
    fine: Mesh
    cuts: dict[str, Axes] = field(default_factory=dict)

    def fuse(self, layout: Layout) -> Layout:
        """A layout that the user gave, on the fused mesh: without those axes that it does not have together."""
        layout = split(layout, self.cuts)
        names = {axes: name for name, axes in self.bundles.items()}
        layout = layout.drop(a for axes in names if not _together(axes, layout) for a in axes)
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
                layouts={v: self.real(x) for v, x in state.layouts.items()},
                choices={op: self._choice(c) for op, c in state.choices.items()},
                demands={v: {self.real(x): n for x, n in users.items()} for v, users in demands},
            )
        except _Straddles:
            return None

    def _choice(self, choice: Choice) -> Choice:
        # pieces of an axis that run in one way stand together: only the order of axes that cut one factor says anything
        groups: dict[Strategy, Axes] = {}
        for axis, pick in zip(choice.order, choice.picks, strict=True):
            groups[pick] = groups.get(pick, ()) + self._pieces(axis)
        order = [(a, pick) for pick, axes in groups.items() for a in merge_axes(self.fine, axes)]
        picks = tuple([pick for _, pick in order])
        return Choice(
            tuple(self.real(x) for x in choice.demands),
            tuple(self.real(x) for x in choice.results),
            choice.cost + sum(s.deferred for s in picks) - sum(s.deferred for s in choice.picks),
            tuple([a for a, _ in order]),
            picks,
        )

    def real(self, layout: Layout) -> Layout:
        """The same layout on the real axes."""
        if not layout.axes:
            return layout
        dims = tuple([merge_axes(self.fine, self._all_pieces(axes)) for axes in layout.dims])
        kinds = {kind for _, kind in layout.partial}
        partial = tuple(
            (a, kind)
            for kind in kinds
            for a in merge_axes(self.fine, self._all_pieces(a for a, k in layout.partial if k == kind))
        )
        return Layout(dims, partial, layout.blocks)

    def _all_pieces(self, axes: Iterable[str]) -> Axes:
        return tuple([a for axis in axes for a in self._pieces(axis)])

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
                found.append(piece_of(self.fine, real, low // before, high // low))
            before *= n
        return tuple(found)


class _Straddles(Exception):
    """A piece of a fused axis that is no product of pieces of real axes."""


def fusions_of(module: Module) -> list[Fusion]:
    """The axes of the module's mesh that belong together: those that no layout names apart, and those that a few do."""
    mesh = module.mesh
    if not may_have_other_axes(module):
        return []
    given: dict[Layout, float] = {}
    for layout, weight in _weighted(module):
        given[layout] = given.get(layout, 0.0) + weight
    chains = (_chains(given.items(), mesh, few) for few in (0.0, FEW))
    found = [fusion for x in chains if (fusion := _fusion(x, mesh)) is not None]
    return found[:1] if len(found) > 1 and found[0].bundles == found[1].bundles else found


def may_have_other_axes(module: Module) -> bool:
    """Whether other axes may stand for those of the mesh: none is named inside, and all have the same links."""
    hardware = prices(module.mesh).hardware
    same = hardware is None or not hardware.axes
    return same and not any(PER_DEVICE.intersection(op.attrs) for op in module.walk())


def _fusion(chains: Iterable[Axes], mesh: Mesh) -> Fusion | None:
    bundles = {"_".join(axes): axes for axes in chains}
    bundles = {name: axes for name, axes in bundles.items() if name not in mesh.shape}
    if not bundles:
        return None
    first = {axes[0]: name for name, axes in bundles.items()}
    rest = {a for axes in bundles.values() for a in axes[1:]}
    return Fusion(
        bundles, mesh_of([first.get(a, a) for a in mesh.shape if a not in rest], bundles, mesh), mesh
    )


def mesh_of(axes: Iterable[str], bundles: dict[str, Axes], fine: Mesh) -> Mesh:
    """The mesh with some axes, of which those in bundles stand for others, or pieces, of the real one; at its prices."""
    mesh = Mesh([(a, fine.axes_size(bundles.get(a, (a,)))) for a in axes])
    mesh.cache["prices"] = prices(fine)
    return mesh


def given_layouts(module: Module) -> Iterator[Layout]:
    """What the user's layouts say of arguments, results and constraints, and what of it an array can have."""
    return (layout for layout, _ in _weighted(module))


def _weighted(module: Module) -> Iterator[tuple[Layout, float]]:
    """The layouts that are given, with the bytes of what they are of; a constraint inside the program has no other one."""
    main, mesh = module.main, module.mesh
    inside = [v for op in module.walk() if op.name == "relayout" for v in op.results]
    asked = [(v.type, v.layout, float(v.type.nbytes)) for v in main.body.args]
    asked += [(v.type, v.layout, math.inf) for v in inside]
    for v, attrs in zip(main.body.returns, main.result_attrs, strict=True):
        asked.append((v.type, attrs.get("layout"), float(v.type.nbytes)))
    for type, layout, weight in asked:
        if layout is not None:
            layout = layout.drop([a for a in layout.axes if mesh.axis_size(a) == 1])
            yield layout, weight
            yield even_part(layout, type, mesh), weight


def _together(axes: Axes, layout: Layout) -> bool:
    """Whether some axes are on one dim, one behind the other."""
    return any(on[on.index(axes[0]) :][: len(axes)] == axes for on in layout.dims if axes[0] in on)


def _chains(layouts: Iterable[tuple[Layout, float]], mesh: Mesh, few: float) -> Iterator[Axes]:
    """The longest runs of axes of which few layouts, by weight, have one without the others, in this order and on one dim."""
    pairs = dict[str, str]()
    after = Counter[tuple[str | None, str | None]]()  # what follows each axis, wherever it is
    for layout, weight in layouts:
        for axes in layout.dims:
            names = [a.split(":")[0] for a in axes]
            after.update(dict.fromkeys(zip([None, *names], [*names, None], strict=True), weight))
        for axis in (*layout.partial_axes, *(a for a in layout.axes if ":" in a)):
            name = axis.split(":")[0]
            after.update({(name, None): math.inf, (None, name): math.inf})
    for (a, b), weight in after.items():
        if a is not None and b is not None and weight > 0:  # not by arrays without elements alone
            other = sum(w for (x, y), w in after.items() if (x == a) != (y == b))
            if other < math.inf and other <= few * weight:
                pairs[a] = b
    for head in [a for a in mesh.shape if a in pairs and a not in pairs.values()]:
        chain = [head]
        while chain[-1] in pairs:
            chain.append(pairs[chain[-1]])
        yield tuple(chain)
