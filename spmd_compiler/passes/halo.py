"""Windows of a sharded dim: what a device needs of its neighbours, moved by collective-permutes.

The dim is cut in blocks of `block` positions; the device at position k on the axes holds [k·block, (k+1)·block). It wants
the positions [start(k), start(k) + length) with start(k) = k·stride + offset. Each owner at distance s sends only the
part of its block that some device s before (or after) it wants.
"""

from __future__ import annotations

from ..ir.graph import Value
from ..ir.layout import Axes
from .builder import Builder


def window_shifts(n: int, block: int, stride: int, offset: int, length: int) -> dict[int, tuple[int, int]]:
    """Distance s -> the range of positions, inside the block of the owner k+s, that some device k wants."""
    wanted: dict[int, tuple[int, int]] = {}
    if length <= 0:
        return wanted
    for k in range(n):
        start = k * stride + offset
        for owner in range(max(0, start // block), min(n - 1, (start + length - 1) // block) + 1):
            low = max(start, owner * block) - owner * block
            high = min(start + length, (owner + 1) * block) - owner * block
            old = wanted.get(owner - k)
            wanted[owner - k] = (low, high) if old is None else (min(old[0], low), max(old[1], high))
    return wanted


def window_bytes(n: int, block: int, stride: int, offset: int, length: int) -> int:
    """Positions of the dim that the busiest device sends, as `fetch_window` runs."""
    return sum(high - low for s, (low, high) in window_shifts(n, block, stride, offset, length).items() if s)


def fetch_window(
    b: Builder, value: Value, dim: int, axes: Axes, stride: int, offset: int, length: int
) -> Value:
    """The window of this device, `length` positions of `dim`. Positions beyond the blocks' ends have undefined content."""
    n = b.mesh.axes_size(axes)
    block = value.type.shape[dim]
    if n == 1:
        return _cut(b, value, dim, None, (0, 0), block, 0, offset, length)
    shifts = window_shifts(n, block, stride, offset, length)
    if not shifts:
        return b.pad(b.slice(value, dim, 0, 0), dim, 0, length)
    first, last = min(shifts), max(shifts)
    pieces: list[Value] = []
    for s in range(first, last + 1):
        low, high = shifts.get(s, (0, 0))
        if low >= high:
            pieces.append(b.pad(b.slice(value, dim, 0, 0), dim, 0, block))
            continue
        if s == 0:
            pieces.append(value)
            continue
        part = b.shift(b.slice(value, dim, low, high), axes, -s)
        # the ends of the row of blocks may stay short: nobody reads beyond what is sent
        left = low if s != first or stride != block else 0
        right = block - high if s != last or stride != block else 0
        pieces.append(b.pad(part, dim, left, right))
    row = b.concatenate(pieces, dim)
    # row position 0 is global position (k + first)·block, plus what the first piece left out
    lead = shifts[first][0] if first != 0 and stride == block else 0
    origin = first * block + lead
    if stride == block:
        return _cut(b, row, dim, None, (0, 0), row.type.shape[dim], origin, offset, length)
    start = b.binary("multiply", b.axis_index(axes), b.index(stride - block))
    furthest = (n - 1) * (stride - block)
    bounds = (min(0, furthest), max(0, furthest))
    return _cut(b, row, dim, start, bounds, row.type.shape[dim], origin, offset, length)


def _cut(
    b: Builder,
    row: Value,
    dim: int,
    start: Value | None,
    bounds: tuple[int, int],
    have: int,
    origin: int,
    offset: int,
    length: int,
) -> Value:
    """[offset - origin (+ start), + length) of a row of `have` positions, padded where it sticks out. `bounds` are the
    smallest and largest `start`."""
    begin = offset - origin
    left = max(0, -(begin + bounds[0]))
    right = max(0, begin + bounds[1] + length - have)
    row = b.pad(row, dim, left, right)
    if start is None:
        return b.slice(row, dim, begin + left, begin + left + length)
    return b.dynamic_slice(row, dim, b.binary("add", start, b.index(begin + left)), length)
