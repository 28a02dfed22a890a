"""Dims along which a result needs a window of operand positions: what to fetch, and what is left to do locally."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from ...ir.graph import Value
from ...ir.layout import Axes
from ...ir.types import TensorType, Type
from ..emit.builder import Builder
from ..emit.halo import Window, fetch_window, lookup, moves_price, window_moves, window_start
from .base import Exchange


def placed(dims: Sequence[int], moved: Container[int]) -> tuple[int | None, ...]:
    """Result dims: those that are moved have default blocks, whatever the operand has."""
    return tuple(None if d in moved else d for d in dims)


class Extent(NamedTuple):
    """Along one dim, result position o needs the positions [o·stride - low, + span) of the operand, after dilation by
    `base`; `size` and `out` are the operand's and the result's sizes. reverse: the results come last to first."""

    size: int
    out: int
    stride: int = 1
    span: int = 1
    low: int = 0
    base: int = 1
    reverse: bool = False

    @property
    def last(self) -> int:
        """The last dilated position that some result needs."""
        return (self.out - 1) * self.stride + self.span - 1 - self.low

    @property
    def leaves(self) -> bool:
        """True if some result needs positions that the operand does not have."""
        return self.low > 0 or self.last > (self.size - 1) * self.base

    @property
    def trivial(self) -> bool:
        """True if each result needs just its own position."""
        return self == Extent(self.size, self.size)


@lru_cache(4096)
def window_of(e: Extent, block: int) -> Window:
    """The operand positions that a device needs for `block` results."""
    step = block * e.stride
    first = -e.low
    if e.reverse:
        first += (e.out - block) * e.stride
        step = -step
    dilated = _dilated(e, block)
    count = (dilated - 1) // e.base + 1
    if step % e.base == 0:
        count = max(1, (dilated - 1 - (-first) % e.base) // e.base + 1)
    return Window(
        step, first + e.base - 1, count, max(0, -(e.low // e.base)), min(e.size, e.last // e.base + 1), e.base
    )


def _dilated(e: Extent, block: int) -> int:
    return (block - 1) * e.stride + e.span


def window_price(e: Extent, n: int, local: Type, dim: int, block: int) -> tuple[float, int]:
    """(bytes, messages) of fetching what `block` results need of the `local` shards."""
    have = local.shape[dim]
    return moves_price(window_moves(n, have, window_of(e, block)), local.nbytes / have)


def window_exchange(e: Extent, dim: int) -> Exchange:
    """The price where operand 0 is windowed on `dim` and the result's dim has the same number."""

    def exchange(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        return window_price(e, n, ins[0], dim, outs[0].shape[dim])

    return exchange


class Fetched(NamedTuple):
    """A window, and how it is still to be padded (low, high) and dilated; then result o needs [o·stride, + span)."""

    value: Value
    low: int
    high: int
    base: int


def fetch(
    b: Builder, value: Value, dim: int, axes: Axes, e: Extent, block: int, fill: Any, mask: bool = False
) -> Fetched:
    """What this device needs for its `block` results; positions that the operand does not have are `fill`, a scalar
    Value or a number. mask: also those that only results beyond `e.out` need."""
    w = window_of(e, block)
    row = fetch_window(b, value, dim, axes, w)
    n = b.mesh.axes_size(axes)
    if mask or e.leaves:
        row = _inside(b, row, dim, axes, w, e, fill, mask)
    dilated = _dilated(e, block)
    have = (w.length - 1) * e.base + 1
    if w.stride % e.base == 0:
        low = phase(w, e, 0)
        high = dilated - low - have
        if high >= 0:
            return Fetched(row, low, high, e.base)
        return Fetched(dilate(b, row, dim, low, high, e.base, fill), 0, 0, 1)
    row = dilate(b, row, dim, e.base - 1, max(0, dilated - have), e.base, fill)
    start = lookup(b, axes, [e.base - 1 - phase(w, e, k) for k in range(n)])
    return Fetched(b.dynamic_slice(row, dim, start, dilated), 0, 0, 1)


def phase(w: Window, e: Extent, k: int) -> int:
    """How far, in dilated positions, the window of device k starts behind where its first result does."""
    return w.start(k) * e.base - (k * w.stride + w.offset - e.base + 1)


def _inside(
    b: Builder, row: Value, dim: int, axes: Axes, w: Window, e: Extent, fill: Any, both: bool
) -> Value:
    type = TensorType(row.type.shape, "i32")
    first = window_start(b, axes, w)
    index = b.binary("add", b.iota(type, dim), b.broadcast(first, type.shape))
    ok: Value | None = None
    if both or e.low > 0:
        ok = b.compare("GE", index, b.constant(0, type))
    if both or e.last > (e.size - 1) * e.base:
        below = b.compare("LT", index, b.constant(e.size, type))
        ok = below if ok is None else b.binary("and", ok, below)
    assert ok is not None
    return b.select(ok, row, b.full(row.type, fill))


def dilate(b: Builder, value: Value, dim: int, low: int, high: int, base: int, fill: Any) -> Value:
    """`value` with base - 1 fills between its positions, and low and high around them."""
    return b.pad(value, dim, low, high, fill, 0 if value.type.shape[dim] == 1 else base - 1)
