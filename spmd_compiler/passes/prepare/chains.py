"""Two slices, pads or concatenations, one behind the other, as one. Each function takes the second op and the definitions
of the values so far, and gives the ops that replace it, or None. The last one has the replaced op's results."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...ir.graph import Op, Value

Defs = dict[Value, Op]
FEW = 8  # parts that are worth writing out


def slice_of_slice(op: Op, defs: Defs) -> list[Op] | None:
    """It is one slice, unless it cuts off from what takes every second position: two such parts may make a roll."""
    inner = defs.get(op.operands[0])
    if inner is None or inner.name != "slice":
        return None
    sizes = zip(inner.results[0].type.shape, op.results[0].type.shape, inner.attrs["strides"], strict=True)
    if any(t > 1 and n != m for n, m, t in sizes):
        return None
    steps = zip(inner.attrs["start_indices"], inner.attrs["strides"], strict=True)
    starts = tuple(s + t * x for (s, t), x in zip(steps, op.attrs["start_indices"], strict=True))
    strides = tuple(s * t for s, t in zip(inner.attrs["strides"], op.attrs["strides"], strict=True))
    return [_sliced(op, inner.operands[0], starts, strides)]


def _sliced(op: Op, source: Value, starts: tuple[int, ...], strides: tuple[int, ...]) -> Op:
    sizes = op.results[0].type.shape
    limits = tuple(s + (n - 1) * t + 1 if n else s for s, t, n in zip(starts, strides, sizes, strict=True))
    attrs = {"start_indices": starts, "limit_indices": limits, "strides": strides}
    return Op("slice", [source], op.results, attrs, (), op.loc)


def slice_of_pad(op: Op, defs: Defs) -> list[Op] | None:
    """It is a pad that crops, or a slice if no padding is left."""
    inner = defs.get(op.operands[0])
    if inner is None or inner.name != "pad" or any(s != 1 for s in op.attrs["strides"]):
        return None
    at = inner.attrs
    source = inner.operands[0]
    low, high = list(at["edge_padding_low"]), list(at["edge_padding_high"])
    for d, n in enumerate(source.type.shape):
        start, limit = op.attrs["start_indices"][d], op.attrs["limit_indices"][d]
        whole = inner.results[0].type.shape[d]
        if (start, limit) == (0, whole):
            continue
        low[d], high[d] = low[d] - start, high[d] - (whole - limit)
        if at["interior_padding"][d] or low[d] <= -n or high[d] <= -n:
            return None  # nothing but padding is left, or what it starts with is not plain
    if not any(at["interior_padding"]) and all(x <= 0 for x in (*low, *high)):
        return [_sliced(op, source, tuple(-x for x in low), (1,) * len(low))]
    return [_padded(op, inner.operands, low, high, at["interior_padding"])]


def _padded(op: Op, operands: list[Value], low: list[int], high: list[int], inside: Any) -> Op:
    attrs = {
        "edge_padding_low": tuple(low),
        "edge_padding_high": tuple(high),
        "interior_padding": tuple(inside),
    }
    return Op("pad", list(operands), op.results, attrs, (), op.loc)


def pad_of_slice(op: Op, defs: Defs) -> list[Op] | None:
    """It is a pad that crops, where a side is not both cropped and padded."""
    inner = defs.get(op.operands[0])
    if inner is None or inner.name != "slice" or any(s != 1 for s in inner.attrs["strides"]):
        return None
    at = op.attrs
    source = inner.operands[0]
    low, high = list(at["edge_padding_low"]), list(at["edge_padding_high"])
    for d, n in enumerate(source.type.shape):
        before, after = inner.attrs["start_indices"][d], n - inner.attrs["limit_indices"][d]
        if not before and not after:
            continue
        if at["interior_padding"][d] or (before and low[d] > 0) or (after and high[d] > 0):
            return None
        low[d], high[d] = low[d] - before, high[d] - after
        if low[d] <= -n or high[d] <= -n:
            return None
    return [_padded(op, [source, op.operands[1]], low, high, at["interior_padding"])]


def pad_of_pad(op: Op, defs: Defs) -> list[Op] | None:
    inner = defs.get(op.operands[0])
    if inner is None or inner.name != "pad" or not same_scalar(inner.operands[1], op.operands[1], defs):
        return None
    if any(inner.attrs["interior_padding"]) or any(op.attrs["interior_padding"]):
        return None
    sides: list[list[int]] = []
    for side in ("edge_padding_low", "edge_padding_high"):
        pairs = list(zip(inner.attrs[side], op.attrs[side], strict=True))
        if any(a < 0 < b for a, b in pairs):
            return None  # what is cropped first must not come back
        sides.append([a + b for a, b in pairs])
    shape = inner.operands[0].type.shape
    if any(x <= -n for side in sides for x, n in zip(side, shape, strict=True)):
        return None
    return [_padded(op, inner.operands, sides[0], sides[1], op.attrs["interior_padding"])]


def transpose_of_transpose(op: Op, defs: Defs) -> list[Op] | None:
    inner = defs.get(op.operands[0])
    if inner is None or inner.name != "transpose":
        return None
    order = tuple(inner.attrs["permutation"][d] for d in op.attrs["permutation"])
    return [Op("transpose", inner.operands, op.results, {**op.attrs, "permutation": order}, (), op.loc)]


def slice_of_joined(op: Op, defs: Defs) -> list[Op] | None:
    """A slice that lies in one operand of a concatenation is one of that operand."""
    inner = defs.get(op.operands[0])
    if inner is None or inner.name not in ("concatenate", "splice"):
        return None
    d = inner.attrs["dimension"]
    starts = inner.attrs.get("starts") or (0,) * len(inner.operands)
    limits = inner.attrs.get("limits") or tuple(v.type.shape[d] for v in inner.operands)
    start, limit = op.attrs["start_indices"], op.attrs["limit_indices"]
    at = 0
    for v, first, last in zip(inner.operands, starts, limits, strict=True):
        size = last - first
        if at <= start[d] and limit[d] <= at + size and op.results[0].type.shape[d]:
            moved = (*start[:d], start[d] - at + first, *start[d + 1 :])
            return [_sliced(op, v, moved, op.attrs["strides"])]
        at += size
    return None


def slice_of_splice(op: Op, defs: Defs) -> list[Op] | None:
    """A slice of what is put together of parts of one value, along the dim where it is, is put together of less of them."""
    inner = defs.get(op.operands[0])
    if inner is None or inner.name != "splice":
        return None
    d, source = inner.attrs["dimension"], inner.operands[0]
    begin, end = op.attrs["start_indices"][d], op.attrs["limit_indices"][d]
    starts, limits, at = list[int](), list[int](), 0
    for start, limit in zip(inner.attrs["starts"], inner.attrs["limits"], strict=True):
        first, last = start + max(begin - at, 0), start + min(end - at, limit - start)
        if first < last:
            starts.append(first)
            limits.append(last)
        at += limit - start
    if op.attrs["strides"][d] != 1 or len(starts) < 2 or (begin, end) == (0, at):
        return None  # `slice_of_joined` does what lies in one part
    before: list[Op] = []
    shape = op.results[0].type.shape
    type = op.results[0].type.with_shape((*shape[:d], source.type.shape[d], *shape[d + 1 :]))
    if type is not source.type:
        whole = Op("slice", [], [Value(type)], loc=op.loc)
        cut = op.attrs["start_indices"]
        before = [_sliced(whole, source, (*cut[:d], 0, *cut[d + 1 :]), op.attrs["strides"])]
        source = whole.results[0]
    attrs = {"dimension": d, "starts": tuple(starts), "limits": tuple(limits)}
    return [*before, Op("splice", [source] * len(starts), op.results, attrs, (), op.loc)]


def repeated(op: Op, defs: Defs) -> list[Op] | None:
    """What a reshape of a broadcast repeats along a dim of size 1 a few times is a concatenation, or the value itself."""
    inner = defs.get(op.operands[0])
    if inner is None or inner.name != "broadcast_in_dim":
        return None
    (value,), shape, dims = inner.operands, op.results[0].type.shape, inner.attrs["broadcast_dimensions"]
    small, wide = value.type.shape, inner.results[0].type.shape
    grown = [d for d, (a, b) in enumerate(zip(small, shape, strict=False)) if a != b]
    if len(small) != len(shape) or len(grown) > 1 or any(small[d] != 1 for d in grown):
        return None
    new = [(d, n) for d, n in enumerate(wide) if n > 1 and (d not in dims or small[dims.index(d)] == 1)]
    if not grown:
        return None if new else [Op("reshape", [value], op.results, {}, (), op.loc)]
    dim, times = grown[0], shape[grown[0]]
    if len(new) != 1 or times > FEW or math.prod(wide[: new[0][0]]) != math.prod(shape[:dim]):
        return None
    return [Op("concatenate", [value] * times, op.results, {"dimension": dim}, (), op.loc)]


def reverse_of_slice(op: Op, defs: Defs) -> list[Op] | None:
    """A few positions of a value in reverse order are a concatenation, as a reflecting boundary is."""
    inner, dims = defs.get(op.operands[0]), op.attrs["dimensions"]
    shape = op.results[0].type.shape
    size = shape[dims[0]] if len(dims) == 1 else 0
    if inner is None or inner.name != "slice" or not 1 < size <= FEW:
        return None
    (dim,), (source,), at = dims, inner.operands, inner.attrs
    type = op.results[0].type.with_shape((*shape[:dim], 1, *shape[dim + 1 :]))
    parts: list[Op] = []
    for k in reversed(range(size)):
        start = at["start_indices"][dim] + k * at["strides"][dim]
        starts = (*at["start_indices"][:dim], start, *at["start_indices"][dim + 1 :])
        parts.append(_sliced(Op("slice", [], [Value(type)], loc=op.loc), source, starts, at["strides"]))
    values = [part.results[0] for part in parts]
    return [*parts, Op("concatenate", values, op.results, {"dimension": dim}, (), op.loc)]


def fill_of(value: Value, defs: Defs) -> np.ndarray | None:
    """The one number that a value is full of, if it is a constant."""
    op = defs.get(value)
    while op is not None and op.name in ("broadcast_in_dim", "reshape"):
        op = defs.get(op.operands[0])
    if op is None or op.name != "constant" or op.attrs["value"].array.size != 1:
        return None
    return op.attrs["value"].array.reshape(())


def same_scalar(a: Value, b: Value, defs: Defs) -> bool:
    if a is b:
        return True
    x, y = fill_of(a, defs), fill_of(b, defs)
    return x is not None and y is not None and x.dtype == y.dtype and x.tobytes() == y.tobytes()
