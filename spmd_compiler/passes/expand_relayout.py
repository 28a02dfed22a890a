"""Emits the collectives of relayout plans."""

from __future__ import annotations

from ..ir.graph import Value
from ..ir.layout import Layout, local_block, local_type
from ..ir.types import TensorType, Type
from .builder import Builder, identity_value
from .halo import Window, fetch_window
from .relayout import plan
from .relayout_steps import Step


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
        first = b.compare("EQ", b.axis_index(axes), b.index(0))
        assert isinstance(value.type, TensorType)
        neutral = b.constant(identity_value(step.reduction, type.dtype), value.type)
        if step.reduction in ("max", "min", "and", "or"):
            return value  # every device may hold the value itself
        return b.select(first, value, neutral)
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
        value = _whole(b, value, type, source, target, other, axes)
        return _trim(b, b.all_to_all(value, axes, other, dim), type, target, dim)
    if kind == "collective_permute":
        return _permute(b, value, source, target)
    assert kind == "reblock", kind
    block = local_block(target, dim, type.shape[dim], b.mesh)
    return fetch_window(b, value, dim, axes, Window(block, 0, block, 0, type.shape[dim]))


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
    return b.pad(value, dim, 0, block * b.mesh.axes_size(axes) - value.type.shape[dim])


def _permute(b: Builder, value: Value, source: Layout, target: Layout) -> Value:
    """Blocks move between devices: the k-th block of `source` goes where `target` has its k-th block."""
    have = [a for axes in source.dims for a in axes]
    want = [a for axes in target.dims for a in axes]
    have += [a for a in want if a not in have]
    want += [a for a in have if a not in want]
    return b.permute(value, tuple(have), tuple(want))
