"""Emits the collectives of relayout plans."""

from __future__ import annotations

import math

import numpy as np

from ...ir.graph import Value
from ...ir.layout import Axes, Layout, local_block, local_type
from ...ir.mesh import Mesh
from ...ir.types import TensorType, Type
from ..emit.builder import Builder, identity_value, is_zeros
from ..emit.halo import block_window, fetch_window
from .planner import plan
from .steps import Step, permuted_axes


def emit_relayout(b: Builder, value: Value, type: Type, source: Layout, target: Layout) -> Value:
    """`value`, a shard of `type` in `source`, as a shard in `target`."""
    if not isinstance(type, TensorType):
        return value
    if not type.size:
        empty = local_type(type, target, b.mesh)
        assert isinstance(empty, TensorType)
        return b.constant(0, empty)
    for step in plan(type, source, target, b.mesh).steps:
        value = _emit(b, value, type, step)
    return value


def take_block(b: Builder, value: Value, layout: Layout, type: Type, dim: int) -> Value:
    """This device's block of a dim that `value` has whole; beyond the dim's end there are zeros."""
    axes = layout.dims[dim]
    n = b.mesh.axes_size(axes)
    block = local_block(layout, dim, type.shape[dim], b.mesh)
    value = b.pad(value, dim, 0, n * block - value.type.shape[dim])
    return b.dynamic_slice(value, dim, b.offset(axes, block), block) if n > 1 else value


def _emit(b: Builder, value: Value, type: TensorType, step: Step) -> Value:
    kind, axes, source, target, dim = step.kind, step.axes, step.source, step.target, step.dim
    if kind == "all_reduce":
        return b.all_reduce(value, axes, step.reduction)
    if kind == "to_partial":
        if step.reduction in ("max", "min", "and", "or"):
            return value  # every device may hold the value itself
        if step.reduction in ("sum", "xor") and is_zeros(b.block, value):
            return value
        first = b.compare("EQ", b.axis_index(axes), b.index(0))
        assert isinstance(value.type, TensorType)
        return b.select(first, value, b.constant(identity_value(step.reduction, type.dtype), value.type))
    if kind == "slice":
        if not source.dims[dim]:
            return take_block(b, value, target, type, dim)
        block = local_block(target, dim, type.shape[dim], b.mesh)
        return b.dynamic_slice(value, dim, b.offset(axes, block), block)
    if kind == "all_gather":
        return _trim(b, b.all_gather(value, axes, dim), type, target, dim)
    if kind == "reduce_scatter":
        return b.reduce_scatter(_whole(b, value, type, source, target, dim, axes), axes, dim, step.reduction)
    if kind == "all_to_all":
        other = step.other
        value = _in_order(b, _whole(b, value, type, source, target, other, axes), step)
        return _trim(b, b.all_to_all(value, axes, other, dim), type, target, dim)
    if kind == "collective_permute":
        return b.permute(value, *permuted_axes(source, target))
    if kind == "exchange":
        assert step.between is not None
        value = _whole(b, value, type, source, step.between, step.other, axes)
        return _trim(b, _exchange(b, value, type, step), type, step.between, dim)
    assert kind == "reblock", kind
    block = local_block(target, dim, type.shape[dim], b.mesh)
    return fetch_window(b, value, dim, axes, block_window(block, type.shape[dim]))


def _trim(b: Builder, value: Value, type: TensorType, target: Layout, dim: int) -> Value:
    """Cuts the padding off a dim that has become whole."""
    return value if target.dims[dim] else b.slice(value, dim, 0, type.shape[dim])


def _whole(
    b: Builder,
    value: Value,
    type: TensorType,
    source: Layout,
    target: Layout,
    dim: int,
    axes: tuple[str, ...],
) -> Value:
    """Pads a dim that is about to be split to a multiple of the blocks."""
    if source.dims[dim]:
        return value
    block = local_block(target, dim, type.shape[dim], b.mesh)
    return b.pad_to_split(value, dim, block, axes)


def _in_order(b: Builder, value: Value, step: Step) -> Value:
    """The pieces of the dim that an all-to-all splits, in the order of the devices that get them: they lie as the axes do there."""
    if step.order == step.axes:
        return value
    d, shape, sizes = step.other, value.type.shape, [b.mesh.axis_size(a) for a in step.order]
    front, behind = range(d), range(d + len(sizes), len(shape) + len(sizes))
    pieces = b.reshape(value, (*shape[:d], *sizes, shape[d] // math.prod(sizes), *shape[d + 1 :]))
    turned = b.transpose(pieces, [*front, *(d + step.order.index(a) for a in step.axes), *behind])
    return b.reshape(turned, shape)


def _exchange(b: Builder, value: Value, type: TensorType, step: Step) -> Value:
    """`value`, its dim `step.other` padded to whole pieces, after the exchange: dim `step.dim` has grown n times."""
    assert step.between is not None
    axes, mesh = step.axes, b.mesh
    n = mesh.axes_size(axes)
    have, want = permuted_axes(step.between, step.target)
    behind = mesh.axes_size(have[have.index(axes[-1]) + 1 :])  # devices between neighbours on `axes`
    piece = local_block(step.between, step.other, type.shape[step.other], mesh)
    here = b.axis_index(axes)
    there = b.modulo(b.binary("divide", b.axis_index(want), b.index(behind)), n)
    shape = list(value.type.shape)
    block = shape[step.dim]
    shape[step.dim], shape[step.other] = block * n, piece
    result = b.constant(0, TensorType(tuple(shape), type.dtype))
    for j in range(n):
        to = b.modulo(b.binary("add", here, b.index(j)), n)
        sent = b.dynamic_slice(value, step.other, b.binary("multiply", to, b.index(piece)), piece)
        came = b.send(sent, have, _pairs(mesh, have, want, behind, n, j))
        source = b.modulo(b.binary("add", there, b.index(n - j)), n)
        result = b.dynamic_update_slice(result, came, step.dim, b.binary("multiply", source, b.index(block)))
    return result


def _pairs(
    mesh: Mesh, have: Axes, want: Axes, behind: int, n: int, shift: int
) -> tuple[tuple[int, int], ...]:
    """(sender, receiver) as positions on `have`: to where the block goes that the device `shift` further has."""
    sizes = {a: mesh.axis_size(a) for a in have}
    sender = np.arange(math.prod(sizes.values()))
    at = sender // behind % n
    neighbour = sender + ((at + shift) % n - at) * behind
    coordinates = dict(zip(want, np.unravel_index(neighbour, [sizes[a] for a in want]), strict=True))
    receiver = np.ravel_multi_index([coordinates[a] for a in have], [sizes[a] for a in have])
    return tuple(zip(sender.tolist(), receiver.tolist(), strict=True))
