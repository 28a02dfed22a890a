"""slice, pad, reverse, concatenate: along a sharded dim, devices exchange the positions that they need."""

from __future__ import annotations

from typing import Any

from ...ir.graph import Op, Value
from ...ir.layout import PARTIAL_KINDS, local_type
from ...ir.types import Type
from ..cost import Work
from ..emit.builder import Builder, identity_value
from ..emit.halo import Segment, Window, concat_moves, emit_moves, fetch_window, moves_price, window_moves
from .base import R, Rule, Strategy, factored, numbered, shape_of
from .shape import ANY_PARTIAL
from .slicing import owner_kind
from .windows import Extent, dilate, fetch, placed, window_exchange


# ------------------------------------------------------------------------------------------------ slice
def _slice_extents(op: Op) -> list[Extent]:
    at = op.attrs
    sizes = zip(shape_of(op.operands[0]), shape_of(op.results[0]), strict=True)
    return [
        Extent(size, out, stride=s, low=-start)
        for (size, out), s, start in zip(sizes, at["strides"], at["start_indices"], strict=True)
    ]


def slice_(op: Op) -> Rule:
    """A dim that is cut stays sharded, or becomes whole: then its few positions are summed over the devices, of which
    one has them."""
    extents = _slice_extents(op)
    source = shape_of(op.operands[0])
    dims = numbered(source)
    kind = owner_kind(op.results[0].type.dtype)
    cut = [d for d, e in enumerate(extents) if e.size != e.out]
    extra: list[Strategy] = []
    for d in cut:
        e = extents[d]
        if e.out > 1:
            extra.append(Strategy((d,), (d,), d, window_exchange(e, d)))
        if e.out and e.out * 2 <= e.size and kind is not None:
            extra.append(Strategy((d,), (kind,), d))
    return factored(
        [dims],
        [placed(dims, cut)],
        source,
        _expand_slice,
        whole=cut,
        linear=ANY_PARTIAL,
        extra=extra,
        work=Work.over(op),
    )


def _expand_slice(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    source, result = op.operands[0].layout, op.results[0].layout
    assert source is not None and result is not None
    want = local_type(op.results[0].type, result, b.mesh)
    value = args[0]
    at = op.attrs
    starts, strides = list(at["start_indices"]), list(at["strides"])
    limits = list(at["limit_indices"])
    for d, e in enumerate(_slice_extents(op)):
        axes = source.dims[d]
        if not axes:
            continue
        if e.size == e.out:
            limits[d] = want.shape[d]
            continue
        if result.dims[d]:
            value = fetch(b, value, d, axes, e, want.shape[d], None).value
        else:
            value = _own_part(b, value, d, b.offset(axes, value.type.shape[d]), e)
        starts[d], limits[d] = 0, value.type.shape[d]
    if value.type is want:
        return [value]
    attrs = {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": tuple(strides)}
    return [b.op("slice", [value], want, attrs)]


def _own_part(b: Builder, value: Value, dim: int, offset: Value, e: Extent) -> Value:
    """The range that is sliced, as far as this device has it; elsewhere what adds nothing."""
    length = (e.out - 1) * e.stride + 1
    neutral = identity_value("sum", value.type.dtype)
    wide = dilate(b, value, dim, length, length, 1, neutral)
    start = b.binary("subtract", b.index(length - e.low), offset)
    return b.dynamic_slice(wide, dim, start, length)


# ------------------------------------------------------------------------------------------------ pad
def _pad_extents(op: Op) -> list[Extent]:
    at = op.attrs
    sizes = zip(shape_of(op.operands[0]), shape_of(op.results[0]), strict=True)
    pads = zip(at["edge_padding_low"], at["interior_padding"], strict=True)
    return [
        Extent(size, out, low=low, base=inside + 1 if size > 1 else 1)
        for (size, out), (low, inside) in zip(sizes, pads, strict=True)
    ]


def pad(op: Op) -> Rule:
    extents = _pad_extents(op)
    source = shape_of(op.operands[0])
    dims = numbered(source)
    moved = [d for d, e in enumerate(extents) if not e.trivial]
    extra = [
        Strategy((d, R), (d,), d, window_exchange(extents[d], d))
        for d in moved
        if extents[d].size > 1 and extents[d].out > 1
    ]
    return factored(
        [dims, ()],
        [placed(dims, moved)],
        source,
        _expand_pad,
        whole=moved,
        linear=[((0, 1), PARTIAL_KINDS)],
        extra=extra,
        work=Work.over(op),
    )


def _expand_pad(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    result = op.results[0].layout
    assert result is not None
    want = local_type(op.results[0].type, result, b.mesh)
    at = op.attrs
    low, high = list(at["edge_padding_low"]), list(at["edge_padding_high"])
    inside = list(at["interior_padding"])
    value, fill = args
    for d, e in enumerate(_pad_extents(op)):
        if result.dims[d] and not e.trivial:
            value, low[d], high[d], base = fetch(b, value, d, result.dims[d], e, want.shape[d], fill)
            inside[d] = base - 1
    if not any(low) and not any(high) and value.type is want:
        return [value]
    attrs = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": inside}
    return [b.op("pad", [value, fill], want, {k: tuple(v) for k, v in attrs.items()})]


# ------------------------------------------------------------------------------------------------ reverse
def _reversed(size: int, block: int) -> Window:
    return Window(-block, size - block, block, 0, size)


def reverse(op: Op) -> Rule:
    shape = shape_of(op.operands[0])
    dims = numbered(shape)
    moved = list(op.attrs["dimensions"])

    def exchange(d: int) -> Any:
        def price(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
            have = ins[0].shape[d]
            moves = window_moves(n, have, _reversed(shape[d], outs[0].shape[d]))
            return moves_price(moves, ins[0].nbytes / have)

        return price

    extra = [Strategy((d,), (d,), d, exchange(d)) for d in moved if shape[d] > 1]
    return factored(
        [dims],
        [placed(dims, moved)],
        shape,
        _expand_reverse,
        whole=moved,
        linear=ANY_PARTIAL,
        extra=extra,
        work=Work.over(op),
        permutes=True,
    )


def _expand_reverse(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    result = op.results[0].layout
    assert result is not None
    want = local_type(op.results[0].type, result, b.mesh)
    value = args[0]
    for d in op.attrs["dimensions"]:
        if result.dims[d]:
            window = _reversed(op.results[0].type.shape[d], want.shape[d])
            value = fetch_window(b, value, d, result.dims[d], window)
    return [b.op("reverse", [value], want, op.attrs)]


# ------------------------------------------------------------------------------------------------ concatenate
SMALL = 16  # an operand that is this much smaller than the result may as well be whole everywhere


def _ranges(op: Op, dim: int) -> list[tuple[int, int]]:
    """The positions of each operand that the result has."""
    if op.name == "splice":
        return list(zip(op.attrs["starts"], op.attrs["limits"], strict=True))
    return [(0, shape_of(v)[dim]) for v in op.operands]


def concatenate(op: Op) -> Rule:
    """The operands are partial together. Along the concatenated dim, each operand is sharded or whole."""
    shape = shape_of(op.results[0])
    dims = numbered(shape)
    n = len(op.operands)
    d = op.attrs["dimension"]
    linear = [(tuple(range(n)), PARTIAL_KINDS)]
    sizes = [shape_of(v)[d] for v in op.operands]
    extra: list[Strategy] = []
    if shape[d] > 1:
        big = tuple(d if size * SMALL > shape[d] and size > 1 else R for size in sizes)
        all_sharded = tuple(d if size > 1 else R for size in sizes)
        for operands in dict.fromkeys((all_sharded, big)):
            extra.append(Strategy(operands, (d,), d, _join_price(op, d, operands)))
    rest = placed(dims, [d])
    return factored(
        [rest] * n, [rest], shape, _expand_joined, whole=[d], linear=linear, extra=extra, work=Work.over(op)
    )


JOINS = ("concatenate", "splice")  # a value that is joined with itself moves like one operand


def numbers(op: Op) -> list[int]:
    """Per operand its number; operands that are one value have one number."""
    found: dict[Value, int] = {}
    return [found.setdefault(v, len(found)) for v in op.operands]


def _join_price(op: Op, d: int, places: tuple[int, ...]) -> Any:
    ranges, own = _ranges(op, d), numbers(op)

    def price(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        joined = zip(ranges, places, own, strict=True)
        segments = tuple(Segment(*r, whole=p == R, operand=i) for r, p, i in joined)
        block = outs[0].shape[d]
        sizes = {i: t.shape[d] for i, t in zip(own, ins, strict=True)}
        moves = concat_moves(n, tuple(sizes.values()), segments, block)
        return moves_price(moves, outs[0].nbytes / block)

    return price


def _expand_joined(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    result = op.results[0].layout
    assert result is not None
    d = op.attrs["dimension"]
    axes = result.dims[d]
    if not axes:
        ranges = _ranges(op, d)
        parts = [b.slice(v, d, *r) for v, r in zip(args, ranges, strict=True)]
        return [b.concatenate(parts, d)]
    want = local_type(op.results[0].type, result, b.mesh)
    segments = tuple(
        Segment(*r, whole=v.layout is not None and not v.layout.dims[d], operand=i)
        for r, v, i in zip(_ranges(op, d), op.operands, numbers(op), strict=True)
    )
    given = list(dict(zip(op.operands, args, strict=True)).values())
    sizes = tuple(v.type.shape[d] for v in given)
    moves = concat_moves(b.mesh.axes_size(axes), sizes, segments, want.shape[d])
    assert moves is not None, "the rule's price forbids it"
    return [emit_moves(b, given, d, axes, moves)]


RULES = {"slice": slice_, "pad": pad, "reverse": reverse, "concatenate": concatenate, "splice": concatenate}
