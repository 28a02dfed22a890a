"""dynamic_slice and dynamic_update_slice. Along a sharded dim that is cut, each device takes or writes what falls in its
own block: a slice is then partial (one device has each position), an update stays where the operand is."""

from __future__ import annotations

import numpy as np

from ...ir.graph import Op, Value
from ...ir.layout import PARTIAL_KINDS, local_block, local_type
from ...ir.types import TensorType, numpy_dtype
from ..cost import Work
from ..emit.builder import INDEX, Builder, identity_value
from .base import R, Rule, Strategy, factored, numbered, shape_of

# types that every backend can sum over devices
SUMMED = {"f16", "bf16", "f32", "f64", "c64", "c128", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64"}


def owner_kind(dtype: str) -> str | None:
    """The partial kind of a value that one device has and the others hold the sum's neutral element of; None if there is none."""
    return "or" if dtype == "i1" else "sum" if dtype in SUMMED else None


def clamped(b: Builder, start: Value, last: int) -> Value:
    """i32[]: a start index of any integer type, clamped to [0, last]."""
    type = start.type
    assert isinstance(type, TensorType)
    top = min(last, int(np.iinfo(numpy_dtype(type.dtype)).max))
    start = b.op("clamp", [b.constant(0, type), start, b.constant(top, type)], type)
    return start if type.dtype == INDEX else b.op("convert", [start], TensorType((), INDEX))


def _bounded(b: Builder, value: Value, low: int, high: int) -> Value:
    return b.op("clamp", [b.index(low), value, b.index(high)], value.type)


# ------------------------------------------------------------------------------------------------ dynamic_slice
def dynamic_slice(op: Op) -> Rule:
    source = shape_of(op.operands[0])
    dims = numbered(source)
    cut = [d for d in dims if op.attrs["slice_sizes"][d] != source[d]]
    starts = len(op.operands) - 1
    kind = owner_kind(op.results[0].type.dtype)
    extra = [Strategy((d, *(R,) * starts), (kind,), d) for d in cut if kind is not None and source[d] > 1]
    return factored(
        [dims] + [()] * starts,
        [dims],
        source,
        _expand_slice,
        whole=cut,
        linear=[((0,), PARTIAL_KINDS)],
        extra=extra,
        work=Work(2 * op.results[0].type.nbytes),
    )


def _expand_slice(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    source, layout = op.operands[0], op.operands[0].layout
    assert layout is not None
    value, starts = args[0], list(args[1:])
    sizes = list(op.attrs["slice_sizes"])
    cut = [d for d, axes in enumerate(layout.dims) if axes and sizes[d] != source.type.shape[d]]
    for d, axes in enumerate(layout.dims):
        if axes and d not in cut:
            sizes[d] = value.type.shape[d]
    if not cut:
        return b.local(op, args, {**op.attrs, "slice_sizes": tuple(sizes)})
    want = local_type(op.results[0].type, op.results[0].layout or layout, b.mesh)
    starts = [
        clamped(b, s, n - size)
        for s, n, size in zip(starts, source.type.shape, op.attrs["slice_sizes"], strict=True)
    ]
    ahead: dict[int, Value] = {}  # how far the slice starts behind what is taken of the block
    for d in cut:
        block = value.type.shape[d]
        mine = b.binary("subtract", starts[d], b.offset(layout.dims[d], block))
        sizes[d] = min(sizes[d], block)
        starts[d] = _bounded(b, mine, 0, block - sizes[d])
        ahead[d] = b.binary("subtract", mine, starts[d])
    taken = TensorType(tuple(sizes), value.type.dtype)
    value = b.op("dynamic_slice", [value, *starts], taken, {"slice_sizes": tuple(sizes)})
    neutral = identity_value("sum", value.type.dtype)
    for d, by in ahead.items():
        have, size = sizes[d], want.shape[d]
        if size == 1:
            scalar = TensorType(value.type.shape, value.type.dtype)
            value = b.select(b.compare("EQ", by, b.index(0)), value, b.constant(neutral, scalar))
            continue
        fill = b.constant(neutral, TensorType((), value.type.dtype))
        start = _bounded(b, b.binary("add", by, b.index(size)), 0, have + size)
        value = b.dynamic_slice(b.pad(value, d, size, size, fill), d, start, size)
    return [value]


# ------------------------------------------------------------------------------------------------ dynamic_update_slice
def dynamic_update_slice(op: Op) -> Rule:
    """Operand and update are partial together. In place: what is written counts, not what stays."""
    source, update = shape_of(op.operands[0]), shape_of(op.operands[1])
    dims = numbered(source)
    cut = [d for d in dims if source[d] != update[d]]
    starts = len(op.operands) - 2
    written = tuple(None if d in cut else d for d in dims)
    return factored(
        [dims, written] + [()] * starts,
        [dims],
        source,
        _expand_update,
        whole=[d for d in cut if not update[d]],
        linear=[((0, 1), PARTIAL_KINDS)],
        work=Work(2 * op.operands[1].type.nbytes),
    )


def _expand_update(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    source, layout = op.operands[0], op.operands[0].layout
    assert layout is not None
    sizes = shape_of(op.operands[1])
    cut = [d for d, axes in enumerate(layout.dims) if axes and sizes[d] != source.type.shape[d]]
    if not cut:
        return b.local(op, args)
    value, update = args[:2]
    starts = [clamped(b, s, n - k) for s, n, k in zip(args[2:], source.type.shape, sizes, strict=True)]
    behind: dict[int, Value] = {}  # where in the update the part of the block starts that is rewritten
    shape = list(update.type.shape)
    for d in cut:
        block = local_block(layout, d, source.type.shape[d], b.mesh)
        mine = b.binary("subtract", starts[d], b.offset(layout.dims[d], block))
        shape[d] = min(sizes[d], block)
        starts[d] = _bounded(b, mine, 0, block - shape[d])
        behind[d] = b.binary("subtract", starts[d], mine)
    part = TensorType(tuple(shape), value.type.dtype)
    mask: Value | None = None
    for d, by in behind.items():
        inside, update = _shifted_update(b, update, d, by, part)
        mask = inside if mask is None else b.binary("and", mask, inside)
    assert mask is not None
    # what is rewritten beyond the update keeps its content
    old = b.op("dynamic_slice", [value, *starts], part, {"slice_sizes": part.shape})
    new = b.select(mask, update, old)
    return [b.op("dynamic_update_slice", [value, new, *starts], value.type)]


def _shifted_update(b: Builder, update: Value, dim: int, by: Value, part: TensorType) -> tuple[Value, Value]:
    """(i1 of type `part`'s shape: the update reaches there; the update from position `by` on, as long as `part`)."""
    size, length = update.type.shape[dim], part.shape[dim]
    index = b.binary("add", b.iota(TensorType((length,), INDEX), 0), b.broadcast(by, (length,)))
    low = b.compare("GE", index, b.constant(0, TensorType((length,), INDEX)))
    high = b.compare("LT", index, b.constant(size, TensorType((length,), INDEX)))
    inside = b.broadcast(b.binary("and", low, high), part.shape, (dim,))
    if size == 1:
        return inside, update
    start = _bounded(b, b.binary("add", by, b.index(length)), 0, size + length)
    return inside, b.dynamic_slice(b.pad(update, dim, length, length), dim, start, length)


RULES = {"dynamic_slice": dynamic_slice, "dynamic_update_slice": dynamic_update_slice}
