"""Reductions whose window is the whole prefix (or suffix) of a sharded dim: each device reduces its block to a total, and
needs of the others only the reduction of the totals before (or behind) it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from ...ir.clone import clone_regions
from ...ir.graph import Block, Op, Value
from ...ir.layout import Axes
from ...ir.types import TensorType, Type
from .. import cost
from ..builder import Builder
from .base import Exchange
from .windows import Extent

Regions = tuple[Block, ...]


class Running(Enum):
    PREFIX = 1
    SUFFIX = 2


def running(e: Extent, dilation: int) -> Running | None:
    """Whether result o is the reduction of all positions up to o, or of all from o on."""
    if e.stride != 1 or e.base != 1 or dilation != 1 or e.out != e.size or e.span < e.size or e.size < 2:
        return None
    if e.low == e.span - 1:
        return Running.PREFIX
    return Running.SUFFIX if e.low == 0 else None


def totals_price(dim: int) -> Exchange:
    """The price of `extend` for the operands that are sharded on `dim`."""

    def price(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        row = sum(t.nbytes / t.shape[dim] for t in outs)
        if _gathers(n, row):
            return (n - 1) * row, len(outs)
        return len(_steps(n)) * row, len(_steps(n)) * len(outs)

    return price


def _steps(n: int) -> list[int]:
    """The distances of a scan by doubling: one device, then 1, 2, 4, … more."""
    return [1, *(2**i for i in range((n - 2).bit_length()))] if n > 1 else []


def _gathers(n: int, row: float) -> bool:
    """All totals at once, or a scan: fewer bytes for many devices, more messages."""
    message = cost.USUAL.message
    return (n - 1) * row + message <= len(_steps(n)) * (row + message)


def extend(
    b: Builder, op: Op, values: Sequence[Value], inits: Sequence[Value], dim: int, axes: Axes, before: bool
) -> list[Value]:
    """`values` with one more position on `dim`: in front, the reduction of everything `before` this device's blocks, or
    at the end, of everything behind them. The region of `op` reduces; padding in `values` must be neutral."""
    totals = _reduce(b, op.regions, values, inits, dim)
    others = beyond(b, op.regions, totals, inits, dim, axes, before)
    pairs = zip(others, values, strict=True)
    return [b.concatenate([x, v] if before else [v, x], dim) for x, v in pairs]


def beyond(
    b: Builder,
    regions: Regions,
    totals: list[Value],
    inits: Sequence[Value],
    dim: int,
    axes: Axes,
    before: bool,
) -> list[Value]:
    """From the `totals` of this device's blocks, of one position on `dim`, those of everything `before` or behind them."""
    n = b.mesh.axes_size(axes)
    row = sum(t.type.nbytes for t in totals)
    return (_gathered if _gathers(n, row) else _scanned)(b, regions, totals, inits, dim, axes, before)


def _reduce(
    b: Builder, regions: Regions, values: Sequence[Value], inits: Sequence[Value], dim: int
) -> list[Value]:
    """One position instead of all of `dim`."""
    types: list[Type] = []
    for v in values:
        shape = v.type.shape
        types.append(TensorType((*shape[:dim], *shape[dim + 1 :]), v.type.dtype))
    reduced = b.multi("reduce", [*values, *inits], types, {"dimensions": (dim,)}, clone_regions(regions))
    shape = values[0].type.shape
    return [b.reshape(r, (*shape[:dim], 1, *shape[dim + 1 :])) for r in reduced]


def _gathered(
    b: Builder,
    regions: Regions,
    totals: list[Value],
    inits: Sequence[Value],
    dim: int,
    axes: Axes,
    before: bool,
) -> list[Value]:
    rows = [b.all_gather(t, axes, dim) for t in totals]
    type = TensorType(rows[0].type.shape, "i32")
    here = b.broadcast(b.axis_index(axes), type.shape)
    counts = b.compare("LT" if before else "GT", b.iota(type, dim), here)
    return _reduce(b, regions, _or_else(b, counts, rows, inits), inits, dim)


def _scanned(
    b: Builder,
    regions: Regions,
    totals: list[Value],
    inits: Sequence[Value],
    dim: int,
    axes: Axes,
    before: bool,
) -> list[Value]:
    n = b.mesh.axes_size(axes)
    index = b.axis_index(axes)
    rest = index if before else b.binary("subtract", b.index(n - 1), index)  # devices on that side
    out = totals
    for i, step in enumerate(_steps(n)):
        there = b.compare("GE", rest, b.index(step))
        moved = [b.shift(v, axes, step if before else -step) for v in out]
        moved = _or_else(b, b.broadcast(there, moved[0].type.shape), moved, inits)
        if i == 0:
            out = moved
            continue
        pairs = zip(moved, out, strict=True)
        out = _reduce(
            b, regions, [b.concatenate([x, v] if before else [v, x], dim) for x, v in pairs], inits, dim
        )
    return out


def _or_else(b: Builder, counts: Value, values: list[Value], inits: Sequence[Value]) -> list[Value]:
    return [
        b.select(counts, v, b.broadcast(init, v.type.shape)) for v, init in zip(values, inits, strict=True)
    ]
