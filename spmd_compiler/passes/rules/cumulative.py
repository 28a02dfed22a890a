"""Reductions whose window is the whole prefix (or suffix) of a sharded dim: each device reduces its block to a total, and
needs of the others only the reduction of the totals before (or behind) it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from ...ir.clone import clone_regions
from ...ir.graph import Block, Value
from ...ir.layout import Axes
from ...ir.types import TensorType, Type
from .. import cost
from ..emit.builder import Builder
from .base import Exchange
from .windows import Extent


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
    """The price of `Beyond` for the operands that are sharded on `dim`."""

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


@dataclass(frozen=True)
class Beyond:
    """What lies beyond this device's block of `dim`, all that comes `before` it or all behind it, reduced.

    regions: those of the reduction, which takes several values at once. inits: its neutral element per value.
    """

    b: Builder
    regions: tuple[Block, ...]
    inits: Sequence[Value]
    dim: int
    axes: Axes
    before: bool

    def extend(self, values: Sequence[Value]) -> list[Value]:
        """`values` with one more position on the dim, at the side of what is beyond, whose reduction it holds. Padding in
        `values` must be neutral."""
        return self._joined(self.reduced(self._reduce(values)), values)

    def reduced(self, totals: Sequence[Value]) -> list[Value]:
        """The reduction of what is beyond. `totals`: of this device's blocks, one position on the dim."""
        n = self.b.mesh.axes_size(self.axes)
        row = sum(t.type.nbytes for t in totals)
        return self._gathered(totals) if _gathers(n, row) else self._scanned(totals)

    def _gathered(self, totals: Sequence[Value]) -> list[Value]:
        b = self.b
        rows = [b.all_gather(t, self.axes, self.dim) for t in totals]
        type = TensorType(rows[0].type.shape, "i32")
        here = b.broadcast(b.axis_index(self.axes), type.shape)
        counts = b.compare("LT" if self.before else "GT", b.iota(type, self.dim), here)
        return self._reduce(self._or_else(counts, rows))

    def _scanned(self, totals: Sequence[Value]) -> list[Value]:
        b, n = self.b, self.b.mesh.axes_size(self.axes)
        index = b.axis_index(self.axes)
        rest = index if self.before else b.binary("subtract", b.index(n - 1), index)  # devices on that side
        out = totals
        for i, step in enumerate(_steps(n)):
            there = b.compare("GE", rest, b.index(step))
            moved = [b.shift(v, self.axes, step if self.before else -step) for v in out]
            moved = self._or_else(b.broadcast(there, moved[0].type.shape), moved)
            out = self._reduce(self._joined(moved, out)) if i else moved
        return list(out)

    def _reduce(self, values: Sequence[Value]) -> list[Value]:
        """One position instead of all of the dim."""
        b, d, shape = self.b, self.dim, values[0].type.shape
        types = [TensorType((*shape[:d], *shape[d + 1 :]), v.type.dtype) for v in values]
        regions = clone_regions(self.regions)
        reduced = b.multi("reduce", [*values, *self.inits], types, {"dimensions": (d,)}, regions)
        return [b.reshape(r, (*shape[:d], 1, *shape[d + 1 :])) for r in reduced]

    def _joined(self, beyond: Sequence[Value], values: Sequence[Value]) -> list[Value]:
        pairs = zip(beyond, values, strict=True)
        return [self.b.concatenate([x, v] if self.before else [v, x], self.dim) for x, v in pairs]

    def _or_else(self, counts: Value, values: Sequence[Value]) -> list[Value]:
        """The neutral elements where values don't count."""
        b, pairs = self.b, zip(values, self.inits, strict=True)
        return [b.select(counts, v, b.broadcast(init, v.type.shape)) for v, init in pairs]
