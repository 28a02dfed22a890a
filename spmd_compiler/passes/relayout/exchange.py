"""Steps of a relayout that are cheaper together.

A permute between a slice and a gathering: larger blocks move at once, in one message instead of two. Only so much is sliced
off before that the permuted blocks are those that the gathering would make.

An all-to-all whose blocks then move on to other devices, as one exchange: each piece goes straight to where it ends.
The all-to-all over n devices and the permute behind it send (n-1)/n and 1 block. Together they are n permutes of 1/n block:
in the j-th, the device at position i of the axes sends the piece for position i + j, to where that position's block goes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

from ...ir.layout import Axes, Layout
from ...ir.mesh import Mesh, split_axis
from ...ir.types import TensorType
from ..cost import step_cost
from .steps import Step, add, permuted_axes, remove

MAX_PIECES = 8
MAX_DEVICES = 4096  # of the axes involved: the permutes are listed device by device


def fuse(steps: tuple[Step, ...], type: TensorType, mesh: Mesh) -> tuple[Step, ...]:
    """The steps, with a permute of larger blocks, or an exchange, in the place of several where that costs less."""
    fused: list[Step] = []
    for step in _larger_blocks(steps, type, mesh):
        last = fused[-1] if fused else None
        if last and last.kind == "all_to_all" and step.kind == "collective_permute":
            one = last._replace(kind="exchange", target=step.target, between=last.target)
            if _possible(one, mesh) and _cost((one,), type, mesh) < _cost((last, step), type, mesh):
                fused[-1] = one
                continue
        fused.append(step)
    return tuple(fused)


def _cost(steps: Sequence[Step], type: TensorType, mesh: Mesh) -> float:
    return sum(step_cost(s, type, mesh) for s in steps)


def _larger_blocks(steps: tuple[Step, ...], type: TensorType, mesh: Mesh) -> tuple[Step, ...]:
    kinds = [s.kind for s in steps]
    for i in range(len(steps) - 2):
        if kinds[i : i + 3] != ["slice", "collective_permute", "all_gather"]:
            continue
        gathers = list(itertools.takewhile(lambda s: s.kind == "all_gather", steps[i + 2 :]))
        for gather in gathers:
            others = [g for g in gathers if g is not gather]
            if any(g.dim == gather.dim for g in others):
                continue  # one behind the other
            whole = _permute_of_gathered(steps[i], steps[i + 1].target, gather, type, mesh)
            for g in others if whole else ():
                whole.append(_gather(g, whole[-1].target, type, mesh))
            if whole and _cost(whole, type, mesh) < _cost(steps[i : i + 2 + len(gathers)], type, mesh):
                return (*steps[:i], *whole, *steps[i + 2 + len(gathers) :])
    return steps


def _gather(step: Step, source: Layout, type: TensorType, mesh: Mesh) -> Step:
    """The same gathering, of a value in another layout."""
    cut = len(source.dims[step.dim]) - len(step.axes)
    return step._replace(source=source, target=remove(type, source, step.dim, cut, mesh))


def _permute_of_gathered(cut: Step, moved: Layout, gather: Step, type: TensorType, mesh: Mesh) -> list[Step]:
    """What does the same as a slice, a permute to `moved` and a gathering of no more than is sliced, with a permute of what
    the gathering makes; empty if there is no such thing."""
    target = _gather(gather, moved, type, mesh).target
    n, rest = divmod(mesh.axes_size(cut.axes), mesh.axes_size(gather.axes))
    if rest or any(x.blocks for x in (cut.source, moved, target)):
        return []
    axes: Axes = ()
    pieces: dict[str, Axes] = {}
    for axis in cut.axes:
        if n > 1 and (part := math.gcd(n, mesh.axis_size(axis))) > 1:
            n //= part
            if part < mesh.axis_size(axis):
                pieces[axis] = split_axis(mesh, axis, part)
            axes += pieces.get(axis, (axis,))[:1]
    if n > 1:
        return []
    steps: list[Step] = []
    source = cut.source
    target = Layout(tuple(tuple(p for a in dim for p in pieces.get(a, (a,))) for dim in target.dims))
    if axes:
        sliced = add(type, source, cut.dim, axes, mesh, target)
        if sliced is None or sliced.blocks:
            return []
        steps.append(Step("slice", axes, source, sliced, dim=cut.dim))
        source = sliced
    permute = Step("collective_permute", (), source, target)
    return [*steps, permute] if _same_blocks(permute, mesh) else []


def _same_blocks(step: Step, mesh: Mesh) -> bool:
    sizes = [[mesh.axes_size(axes) for axes in x.dims] for x in (step.source, step.target)]
    return sizes[0] == sizes[1]


def _possible(step: Step, mesh: Mesh) -> bool:
    assert step.between is not None
    have, _ = permuted_axes(step.between, step.target)
    pieces = mesh.axes_size(step.axes)
    if step.order != step.axes:
        return False
    return pieces <= MAX_PIECES and mesh.axes_size(have) <= MAX_DEVICES and not step.source.blocks
