"""What a change of layout costs at least, told without a plan: searches that compare costs need few plans then."""

from __future__ import annotations

from ..ir.layout import Layout, local_block, local_type
from ..ir.mesh import Mesh
from ..ir.types import TensorType
from .cost import prices


def least_cost(type: TensorType, source: Layout, target: Layout, mesh: Mesh) -> float:
    """A bound from below of the cost of every plan between layouts whose axes are equal or disjoint: a device reads its
    block and writes the other one, and what it lacks of that is sent, in one message at least. What is sent is 0 where
    that is not worked out: blocks with much padding, links of different speeds."""
    if source is target:
        return 0.0
    price, block = prices(mesh), local_type(type, target, mesh).nbytes
    touched = price.touch * (local_type(type, source, mesh).nbytes + block)
    lacking = _lacking(type, source, target, mesh)
    if not lacking or (price.hardware is not None and price.hardware.axes):
        return touched
    return touched + block * lacking + price.message


def _lacking(type: TensorType, source: Layout, target: Layout, mesh: Mesh) -> float:
    """The part of its target block that some device can't make of its source block."""
    if not type.size:
        return 0.0
    if not set(target.partial).issuperset(source.partial):
        return 1.0  # of every element some other device has a term
    have = 1.0  # of the devices that are first on the axes of new partials: these hold everything, the others nothing
    blocks = bool(source.blocks or target.blocks)
    for d, (size, old, new) in enumerate(zip(type.shape, source.dims, target.dims, strict=True)):
        if old == new:
            continue
        n, m = mesh.axes_size(old), mesh.axes_size(new)
        if blocks or size % n or size % m:  # the first device has a whole block; others may have padding
            own, want = local_block(source, d, size, mesh), local_block(target, d, size, mesh)
            if want > size:
                return 0.0
            have *= min(1.0, own / want)
            continue
        shared = 0
        while shared < min(len(old), len(new)) and old[shared] == new[shared]:
            shared += 1
        if shared == len(new):
            have *= m / n
        elif shared < len(old):
            have = 0.0  # some device lies first on one axis and last on the other
    return 1 - have
