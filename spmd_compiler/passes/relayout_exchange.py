"""Steps of a relayout that are cheaper together.

A permute between a slice and the gathering of as much: the whole blocks move at once, in one message instead of two.

An all-to-all whose blocks then move on to other devices, as one exchange: each piece goes straight to where it ends.
The all-to-all over n devices and the permute behind it send (n-1)/n and 1 block. Together they are n permutes of 1/n block:
in the j-th, the device at position i of the axes sends the piece for position i + j, to where that position's block goes.
"""

from __future__ import annotations

from ..ir.mesh import Mesh
from ..ir.types import TensorType
from .cost import step_cost
from .relayout_steps import Step, permuted_axes

MAX_PIECES = 8
MAX_DEVICES = 4096  # of the axes involved: the permutes are listed device by device


def fuse(steps: tuple[Step, ...], type: TensorType, mesh: Mesh) -> tuple[Step, ...]:
    """The steps, with a permute of whole blocks, or an exchange, in the place of several where that costs less."""
    fused: list[Step] = []
    for step in steps:
        if step.kind == "all_gather" and [x.kind for x in fused[-2:]] == ["slice", "collective_permute"]:
            parts = [*fused[-2:], step]
            whole = Step("collective_permute", (), fused[-2].source, step.target)
            apart = sum(step_cost(x, type, mesh) for x in parts)
            if _same_blocks(whole, mesh) and step_cost(whole, type, mesh) < apart:
                fused[-2:] = [whole]
                continue
        last = fused[-1] if fused else None
        if last and last.kind == "all_to_all" and step.kind == "collective_permute":
            one = last._replace(kind="exchange", target=step.target, between=last.target)
            apart = step_cost(last, type, mesh) + step_cost(step, type, mesh)
            if _possible(one, type, mesh) and step_cost(one, type, mesh) < apart:
                fused[-1] = one
                continue
        fused.append(step)
    return tuple(fused)


def _same_blocks(step: Step, mesh: Mesh) -> bool:
    ends = (step.source, step.target)
    sizes = [[mesh.axes_size(axes) for axes in x.dims] for x in ends]
    return sizes[0] == sizes[1] and not any(x.blocks for x in ends)


def _possible(step: Step, type: TensorType, mesh: Mesh) -> bool:
    assert step.between is not None
    have, _ = permuted_axes(step.between, step.target)
    pieces = mesh.axes_size(step.axes)
    return pieces <= MAX_PIECES and mesh.axes_size(have) <= MAX_DEVICES and not step.source.blocks
