"""What a change of layout costs at least, told without a plan: searches that compare costs need few plans then."""

from __future__ import annotations

from ...ir.layout import Layout, local_block, local_type
from ...ir.mesh import Mesh
from ...ir.types import TensorType
from ..cost import JOINED, prices


def least_cost(type: TensorType, source: Layout, target: Layout, mesh: Mesh) -> float:
    """A bound from below of the cost of every plan between layouts whose axes are equal or disjoint: a device reads its
    block and writes the other one, and what it lacks of that is sent, in one message at least. What is sent is 0 where
    that is not worked out: blocks with much padding, links of different speeds."""
    if source is target:
        return 0.0
    price, block = prices(mesh), local_type(type, target, mesh).nbytes
    there = local_type(type, source, mesh).nbytes
    touched = price.touch * (there + block)
    if block > price.room:
        touched += price.hold(block, there)  # at least, however it grows
    lacking = _lacking(type, source, target, mesh)
    if not lacking or (price.hardware is not None and price.hardware.axes):
        return touched
    return touched + block * lacking + (JOINED if source.partial else 1) * price.message


def _lacking(type: TensorType, source: Layout, target: Layout, mesh: Mesh) -> float:
    """What some device has to send, or to get, at least, in blocks of the target."""
    if not type.size:
        return 0.0
    summed = [a for a, kind in source.partial if (a, kind) not in target.partial]
    if summed:
        sizes = zip(type.shape, source.dims, target.dims, strict=True)
        if any(size % mesh.axes_size(axes) for size, *ends in sizes for axes in ends):
            return 1.0  # an all-reduce of what there is may send less than scattering the padding would
        return _to_reduce(mesh, summed, target)
    have = 1.0  # of the devices that are first on the axes of new partials: these hold everything, the others nothing
    blocks = bool(source.blocks or target.blocks)
    for d, (size, old, new) in enumerate(zip(type.shape, source.dims, target.dims, strict=True)):
        if old == new:
            continue
        n, m = mesh.axes_size(old), mesh.axes_size(new)
        shared = 0
        while shared < min(len(old), len(new)) and old[shared] == new[shared]:
            shared += 1
        if blocks or size % n or size % m:  # the first device has a whole block; others may have padding
            own, want = local_block(source, d, size, mesh), local_block(target, d, size, mesh)
            if want > size:
                return 0.0
            if any(_has_none(type, d, axis, source, target, mesh) for axis in old[shared:]):
                have = 0.0
            have *= min(1.0, own / want)
        elif shared == len(new):
            have *= m / n
        elif shared < len(old):
            have = 0.0  # some device lies first on one axis and last on the other
    return 1 - have


def _to_reduce(mesh: Mesh, axes: list[str], target: Layout) -> float:
    """What a reduce-scatter over the axes that end in the target's dims sends and an all-reduce over the others; devices
    further on may share that among them, and gather the results."""
    scattered = mesh.axes_size([a for a in axes if a in target.axes])
    everywhere = mesh.axes_size(axes) / scattered
    sent = scattered - 1 + 2 * (everywhere - 1) / everywhere
    return 1 + (sent - 1) * mesh.axes_size(axes) / mesh.size


def _has_none(type: TensorType, dim: int, axis: str, source: Layout, target: Layout, mesh: Mesh) -> bool:
    """True if a device that is last on `axis`, and first on the others, has nothing of its block along `dim`, which is full
    in the target."""
    size, own = type.shape[dim], local_block(source, dim, type.shape[dim], mesh)
    last = mesh.axis_size(axis) - 1
    start = last * _stride(source.dims[dim], axis, mesh) * own
    for d, axes in enumerate(target.dims):
        want = local_block(target, d, type.shape[d], mesh)
        first = last * _stride(axes, axis, mesh) * want if axis in axes else 0
        if first + want > type.shape[d]:
            return False  # with padding
        if d == dim and max(first, start) < min(first + want, start + own, size):
            return False
    return True


def _stride(axes: tuple[str, ...], axis: str, mesh: Mesh) -> int:
    """How many blocks lie between neighbours on one of the axes."""
    return mesh.axes_size(axes[axes.index(axis) + 1 :])
