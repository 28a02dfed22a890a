"""How a transform along a sharded dim that stays sharded is done: which way sends least.

- *steps*: Bailey's four steps (1990), with three all-to-alls. A dim of R·C positions is a matrix of R rows; rows and columns
  are shared by the devices in turn. Any R and C that are worth their padding will do; where the blocks of the dim are not
  those of the rows, neighbours exchange the rest before and after.
- *batch*: the other dims are split instead, by an all-to-all there and one back. They must be large enough for that.
- *gather*: every device transforms the whole dim, and keeps its block.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

from ..emit.halo import MANY, block_window, moves_price, window_moves

TRIED = 6  # factorizations with little padding, whose moves are planned; for many devices only the best


class Lines(NamedTuple):
    """`batch` transforms of `size` real or complex numbers, over `shards` devices. kind: FFT IFFT RFFT IRFFT. source,
    result: positions of the dim that a device holds before and after, and bytes of an element there."""

    kind: str
    size: int
    shards: int
    batch: int
    source: tuple[int, int]
    result: tuple[int, int]

    @property
    def positions(self) -> tuple[int, int]:
        """How many positions the whole dim has before and after: of a transform of real numbers half are enough."""
        half = self.size // 2 + 1
        return half if self.kind == "IRFFT" else self.size, half if self.kind == "RFFT" else self.size


class Way(NamedTuple):
    """name: of those above. rows, columns: R and C. sent: bytes of a device."""

    name: str
    sent: float
    messages: int
    rows: int = 0
    columns: int = 0


@lru_cache(4096)
def best_way(x: Lines) -> Way:
    """The way that sends least."""
    n = x.shards
    (had, read), (has, written) = x.source, x.result
    ways = [Way("gather", (n - 1) * x.batch * had * read, 1)]
    ways.append(Way("batch", (n - 1) * -(-x.batch // n) * (had * read + has * written), 2))
    found = [_steps(x, r) for r in _divisors(x.size)]
    fits = [w for w in found if w.sent < ways[0].sent]
    fits = sorted(fits, key=lambda w: w.sent)[: TRIED if n <= MANY else 1]
    ways += [_with_moves(x, w) for w in fits]
    return min(ways, key=lambda w: (w.sent, w.messages))


def _divisors(size: int) -> list[int]:
    small = [r for r in range(2, math.isqrt(size) + 1) if size % r == 0]
    return [*small, *(size // r for r in small if r * r != size)]


def _steps(x: Lines, rows: int) -> Way:
    """The three all-to-alls of R rows."""
    n, columns = x.shards, x.size // rows
    read, written = x.source[1], x.result[1]

    def part(count: int) -> int:
        return -(-count // n)

    r, c = part(rows), part(columns)
    if x.kind == "RFFT":
        h, k = part(rows // 2 + 1), part(frequency_rows(x.size, rows))
        sent = r * c * read + (h * c + 2 * h * k) * written
    elif x.kind == "IRFFT":
        g, k = part(columns // 2 + 1), part(frequency_rows(x.size, columns))
        sent = (2 * k * g + g * r) * read + r * c * written
    else:
        sent = 3 * r * c * written
    return Way("steps", (n - 1) * x.batch * sent, 3, rows, columns)


def _with_moves(x: Lines, way: Way) -> Way:
    enter, leave = (block_window(want, size) for _, want, size in borders(x, way))
    (had, *_), (made, *_) = borders(x, way)
    first = moves_price(window_moves(x.shards, had, enter), x.batch * x.source[1])
    last = moves_price(window_moves(x.shards, made, leave), x.batch * x.result[1])
    return way._replace(sent=way.sent + first[0] + last[0], messages=way.messages + first[1] + last[1])


def borders(x: Lines, way: Way) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
    """(positions that a device has, that it should have, size of the dim) before the steps and after them."""
    n, rows, columns = x.shards, way.rows, way.columns
    inside = frequency_rows(x.size, columns) if x.kind == "IRFFT" else rows
    outside = frequency_rows(x.size, rows) if x.kind == "RFFT" else columns
    first, last = x.positions
    return (x.source[0], -(-inside // n) * columns, first), (-(-outside // n) * rows, x.result[0], last)


def frequency_rows(size: int, row: int) -> int:
    """Rows that the frequencies 0 … size/2 of real numbers fill."""
    return size // 2 // row + 1
