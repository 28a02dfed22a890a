"""Moves positions of a sharded dim between devices: the windows that ops need of their neighbours' blocks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ...ir.graph import Value
from ...ir.layout import Axes
from ...ir.types import TensorType
from .builder import Builder
from .position_moves import Moves, Round, Run, plan_moves

MANY = 256  # devices from which on moves are planned for all alike, where they are alike


class Window(NamedTuple):
    """The device at position k wants positions [start, start + length) with start = (k·stride + offset) // per, of those
    only the ones in [low, high)."""

    stride: int
    offset: int
    length: int
    low: int
    high: int
    per: int = 1

    def start(self, k: int) -> int:
        return (k * self.stride + self.offset) // self.per


def block_window(block: int, size: int) -> Window:
    """Of a dim of `size` positions, the device's block, if blocks have `block` positions."""
    return Window(block, 0, block, 0, size)


class Segment(NamedTuple):
    """Positions [start, limit) of one operand, as a part of a concatenation. whole: every device has all of it. operand:
    its number; a value that is joined with itself is one operand."""

    start: int
    limit: int
    whole: bool
    operand: int


@lru_cache(4096)
def window_moves(n: int, block: int, window: Window) -> Moves | None:
    """What to send so that each of `n` devices, holding blocks of `block` positions, has its window."""
    if n > MANY and window.stride == block * window.per:
        return _alike(n, block, window.offset // window.per, window.length)
    start = (np.arange(n) * window.stride + window.offset) // window.per
    low = np.clip(window.low - start, 0, window.length)
    high = np.clip(min(window.high, n * block) - start, 0, window.length)
    return plan_moves(n, (block,), (Run(0, low, high, start + low),), window.length)


def _alike(n: int, block: int, first: int, length: int) -> Moves | None:
    """The moves where the window of every device lies alike around its block, from `first` on: the same shifts for all,
    however many they are. At the ends of the row, where less would do, this sends a little more."""
    rounds: list[Round] = []
    away = range(first // block, (first + length - 1) // block + 1)
    if len(away) > n:
        return None
    for distance in away:
        take = max(first, distance * block)
        size = min(first + length, (distance + 1) * block) - take
        shift = -distance if distance else None
        pairs = ((0, 0),) if distance else ()  # the shift tells them
        starts = (take - distance * block,), (take - first,)
        rounds.append(Round(pairs, shift, False, size, True, *starts, (), ()))
    sent = [r.size for r in rounds if r.pairs]
    return Moves(tuple(rounds), length, sum(sent), len(sent))


@lru_cache(4096)
def concat_moves(n: int, blocks: tuple[int, ...], segments: tuple[Segment, ...], block: int) -> Moves | None:
    """What to send so that each device has its block of the concatenation of `segments`; `blocks` are the operands' local
    sizes."""
    begin = np.arange(n) * block
    runs: list[Run] = []
    at = 0
    for s in segments:
        size = s.limit - s.start
        low = np.clip(at - begin, 0, block)
        high = np.clip(at + size - begin, 0, block)
        runs.append(Run(s.operand, low, high, s.start + begin + low - at, s.whole))
        at += size
    return plan_moves(n, blocks, runs, block)


def moves_price(moves: Moves | None, position_bytes: float) -> tuple[float, int]:
    """(bytes that a device sends, messages); inf bytes if it isn't planned."""
    return (math.inf, 0) if moves is None else (moves.sent * position_bytes, moves.messages)


def fetch_window(b: Builder, value: Value, dim: int, axes: Axes, window: Window) -> Value:
    """The window of this device. What is wanted but beyond the blocks' ends has undefined content."""
    moves = window_moves(b.mesh.axes_size(axes), value.type.shape[dim], window)
    assert moves is not None, "the rule's price forbids it"
    return emit_moves(b, [value], dim, axes, moves)


def emit_moves(b: Builder, values: Sequence[Value], dim: int, axes: Axes, moves: Moves) -> Value:
    """The local result of a plan, `moves.length` positions of `dim`; positions that no run fills are undefined."""
    rounds = moves.rounds
    if not rounds:
        shape = values[0].type.shape
        empty = TensorType((*shape[:dim], moves.length, *shape[dim + 1 :]), values[0].type.dtype)
        return b.constant(0, empty)
    pieces = [_receive(b, values, dim, axes, r) for r in rounds]
    order = sorted(range(len(rounds)), key=lambda i: rounds[i].put[0])
    ends = [rounds[i].put[0] + rounds[i].size for i in order]
    starts = [rounds[i].put[0] for i in order]
    if all(r.static for r in rounds) and all(e <= s for e, s in zip(ends, starts[1:], strict=False)):
        return _tile(b, [pieces[i] for i in order], dim, starts, moves.length)
    return _overlay(b, pieces, dim, axes, moves)


def _receive(b: Builder, values: Sequence[Value], dim: int, axes: Axes, r: Round) -> Value:
    """The piece that this device gets in a round."""
    if r.static:
        piece = _from_row(b, values, dim, r.take[0], r.take[0] + r.size)
    else:
        row = b.concatenate(values, dim)
        piece = b.dynamic_slice(row, dim, lookup(b, axes, r.take), r.size)
    if not r.pairs:
        return piece
    if r.shift is not None:
        return b.shift(piece, axes, r.shift, wrap=r.wrap)
    return b.send(piece, axes, r.pairs)


def _from_row(b: Builder, values: Sequence[Value], dim: int, start: int, limit: int) -> Value:
    at = 0
    for v in values:
        size = v.type.shape[dim]
        if at <= start and limit <= at + size:
            return b.slice(v, dim, start - at, limit - at)
        at += size
    return b.slice(b.concatenate(values, dim), dim, start, limit)


def _tile(b: Builder, pieces: list[Value], dim: int, starts: list[int], length: int) -> Value:
    """Pieces side by side, the gaps between them undefined."""
    padded: list[Value] = []
    at = 0
    for piece, start, end in zip(pieces, starts, [*starts[1:], length], strict=True):
        low = start - at
        at = end if piece is pieces[-1] else start + piece.type.shape[dim]
        high = at - start - piece.type.shape[dim]
        padded.append(b.pad(piece, dim, low, high))
    return b.concatenate(padded, dim)


def _overlay(b: Builder, pieces: list[Value], dim: int, axes: Axes, moves: Moves) -> Value:
    """Each piece is put in its place, and counts where it is real."""
    out: Value | None = None
    for piece, r in zip(pieces, moves.rounds, strict=True):
        length = moves.length
        if r.static:
            placed = b.pad(piece, dim, r.put[0], length - r.put[0] - r.size)
        else:
            start = b.binary("subtract", b.index(length), lookup(b, axes, r.put))
            placed = b.dynamic_slice(b.pad(piece, dim, length, length), dim, start, length)
        if out is None:
            out = placed
            continue
        index = b.iota(TensorType(placed.type.shape, "i32"), dim)
        low = b.broadcast(lookup(b, axes, r.low), placed.type.shape)
        high = b.broadcast(lookup(b, axes, r.high), placed.type.shape)
        inside = b.binary("and", b.compare("GE", index, low), b.compare("LT", index, high))
        out = b.select(inside, placed, out)
    assert out is not None
    return out


def window_start(b: Builder, axes: Axes, window: Window) -> Value:
    """i32[]: where this device's window starts."""
    if window.stride % window.per:
        return lookup(b, axes, [window.start(k) for k in range(b.mesh.axes_size(axes))])
    return b.binary("add", b.offset(axes, window.stride // window.per), b.index(window.start(0)))


def lookup(b: Builder, axes: Axes, table: Sequence[int]) -> Value:
    """i32[]: this device's entry of a table with one entry per position on `axes`."""
    if all(x == table[0] for x in table):
        return b.index(table[0])
    steps = {y - x for x, y in itertools.pairwise(table)}
    if len(steps) == 1:  # affine in the position
        return b.binary("add", b.offset(axes, steps.pop()), b.index(table[0]))
    whole = b.constant(np.array(table, np.int32), TensorType((len(table),), "i32"))
    return b.reshape(b.dynamic_slice(whole, 0, b.axis_index(axes), 1), ())
