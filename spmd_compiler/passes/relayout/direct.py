"""Relayout plans that need no search: every axis changes at most once, and no two trade places between dims."""

from __future__ import annotations

import itertools

from ...ir.layout import Axes, Layout
from ...ir.mesh import Mesh
from ...ir.types import TensorType
from .steps import Step, add, remove


def direct(type: TensorType, src: Layout, dst: Layout, mesh: Mesh) -> list[Step] | None:
    """Shrinks first (slices, reduce-scatters), then moves axes between dims, then reduces and gathers; where axes have to
    come or go in the middle of a dim, the blocks are permuted once. None if axes trade places, or blocks are uneven."""
    if src.blocks or dst.blocks:
        return None
    if src.dims == dst.dims:
        return _reductions(src, dst)
    stay: list[Axes] = []
    gone: list[Axes] = []
    moved: list[tuple[int, int, Axes]] = []  # (from, to, axes)
    for d, (have, want) in enumerate(zip(src.dims, dst.dims, strict=True)):
        stay.append(tuple(a for a in have if a in want))
        gone.append(tuple(a for a in have if not isinstance(dst.placement.get(a), int)))
        leaving = [a for a in have if a not in want and isinstance(dst.placement.get(a), int)]
        for to in dict.fromkeys(dst.placement[a] for a in leaving):
            assert isinstance(to, int)
            moved.append((d, to, tuple(a for a in leaving if dst.placement[a] == to)))
    sources = {d for d, _, _ in moved}
    if len(sources) < len(moved) or sources.intersection(to for _, to, _ in moved):
        return None
    steps: list[Step] = []
    at = src

    def go(kind: str, axes: Axes, target: Layout | None, **more: int | str) -> bool:
        nonlocal at
        if target is None:
            return False
        steps.append(Step(kind, axes, at, target, **more))  # type: ignore[arg-type]
        at = target
        return True

    def reorder(dims: list[Axes]) -> None:
        target = Layout(tuple(dims), at.partial, at.blocks)
        if target is not at:
            go("collective_permute", (), target)

    leaving = {d: axes for d, _, axes in moved}
    if moved:
        reorder([s + g + leaving.get(d, ()) for d, (s, g) in enumerate(zip(stay, gone, strict=True))])
    owed = dict(src.partial)

    def shrink(d: int) -> bool:
        """New axes of a dim, in runs from the same source: sliced, or scattered while they are reduced."""
        new = [a for a in dst.dims[d] if not isinstance(src.placement.get(a), int)]
        for kind, run in itertools.groupby(sorted(new, key=lambda a: a in owed), owed.get):
            axes = tuple(run)
            rest = at.with_partial(p for p in at.partial if p[0] not in axes)
            target = add(type, rest, d, axes, mesh, dst)
            if not go(
                "slice" if kind is None else "reduce_scatter", axes, target, dim=d, reduction=kind or ""
            ):
                return False
        return True

    if not all(shrink(d) for d in range(type.rank) if d not in sources):
        return None
    for d, to, axes in moved:
        shrunk = remove(type, at, d, len(at.dims[d]) - len(axes), mesh)
        order = tuple(a for a in dst.dims[to] if a in axes)
        if not go("all_to_all", axes, add(type, shrunk, to, order, mesh, dst), dim=d, other=to):
            return None
    if not all(shrink(d) for d in sources):
        return None
    reorder([want + g for want, g in zip(dst.dims, gone, strict=True)])
    for step in _reductions(at, dst, gather=False):
        go(step.kind, step.axes, step.target, reduction=step.reduction)
    # along the outermost dim last: that brings the most, in one piece
    for d, axes in reversed([*enumerate(gone)]):
        if axes:
            go("all_gather", axes, remove(type, at, d, len(dst.dims[d]), mesh), dim=d)
    for step in _reductions(at, dst):
        go(step.kind, step.axes, step.target, reduction=step.reduction)
    return steps if at is dst else None


def _reductions(src: Layout, dst: Layout, gather: bool = True) -> list[Step]:
    """Partials that are reduced to nothing, and (with `gather`) values that become partials."""
    steps: list[Step] = []
    at = src
    over = [(a, k) for a, k in src.partial if dst.placement.get(a) != k]
    for kind in dict.fromkeys(k for _, k in over):
        axes = tuple(a for a, k in over if k == kind)
        target = at.with_partial(p for p in at.partial if p[0] not in axes)
        steps.append(Step("all_reduce", axes, at, target, reduction=kind))
        at = target
    for a, kind in dst.partial if gather else ():
        if at.placement.get(a) != kind:
            target = at.with_partial((*at.partial, (a, kind)))
            steps.append(Step("to_partial", (a,), at, target, reduction=kind))
            at = target
    return steps
