"""Plans how positions of a dim move between devices: which device sends what to which, in as few rounds as possible.

Every device holds one block of each operand. Laid end to end these blocks are its *row*. A *run* says what the devices
want of one operand: on device k, positions [low, high) of the local result are positions source, source + 1, … of the
operand. Wanted positions are cut by owner into *pieces*; a *round* is one collective-permute, in which a device sends at
most one piece and receives at most one, all padded to the longest. Pieces that stay on their device cost nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

PIECES = 1 << 18  # more than that are not planned
ROUNDS = 64  # more than that are no better than an all-gather


class Run(NamedTuple):
    """low, high, source: one entry per device. whole: every device has the whole operand."""

    operand: int
    low: np.ndarray
    high: np.ndarray
    source: np.ndarray
    whole: bool = False


class Round(NamedTuple):
    """pairs: (sender, receiver), () if nothing is sent; shift, wrap: the distance that they share, None if they don't.
    take: where a device's piece starts in its row; put: where it goes in the local result; both one number for all
    devices if `static`, else per device. low, high: the part of the local result that is real, per device."""

    pairs: tuple[tuple[int, int], ...]
    shift: int | None
    wrap: bool
    size: int
    static: bool
    take: tuple[int, ...]
    put: tuple[int, ...]
    low: tuple[int, ...]
    high: tuple[int, ...]


class Moves(NamedTuple):
    """The local result has `length` positions; each device sends `sent` positions, in `messages` collectives."""

    rounds: tuple[Round, ...]
    length: int
    sent: int
    messages: int


class _Piece(NamedTuple):
    sender: int
    receiver: int
    take: int
    put: int
    size: int
    run: int


def plan_moves(n: int, blocks: Sequence[int], runs: Sequence[Run], length: int) -> Moves | None:
    """The moves that give every device what the `runs` say; None if there are too many pieces to plan."""
    pieces: list[_Piece] = []
    bases = np.concatenate([[0], np.cumsum(blocks)])
    for r, run in enumerate(runs):
        found = _pieces(r, run, n, blocks[run.operand], int(bases[run.operand]))
        if found is None or len(pieces) + len(found) > PIECES:
            return None
        pieces += found
    row = int(bases[-1])
    sent = [p for p in pieces if p.sender != p.receiver]
    groups = _by_distance(sent, n)
    busiest = max([0, *_counts([p.sender for p in sent]), *_counts([p.receiver for p in sent])])
    if len(groups) > busiest <= ROUNDS:
        mixed = _fit(sorted(sent, key=lambda p: -p.size))
        if (_positions(mixed), len(mixed)) < (_positions(groups), len(groups)):
            groups = mixed
    if len(groups) > ROUNDS:
        return None
    stay = _by_distance([p for p in pieces if p.sender == p.receiver], n)
    if len(groups) == 1 and _is_permutation(pieces, length):
        groups, stay = [pieces], []
    rounds = [_round(group, n, row) for group in groups]
    here = [_round(group, n, row)._replace(pairs=(), shift=None) for group in stay]
    return Moves((*here, *rounds), length, sum(x.size for x in rounds), len(rounds))


def _is_permutation(pieces: list[_Piece], length: int) -> bool:
    """Whether whole blocks change places, or stay: one permute tells it, which goes together with others."""
    senders = {p.sender for p in pieces}
    return len(senders) == len(pieces) and all(p.size == length for p in pieces)


def _positions(groups: list[list[_Piece]]) -> int:
    return sum(max(p.size for p in group) for group in groups)


def _pieces(r: int, run: Run, n: int, block: int, base: int) -> list[_Piece] | None:
    """The pieces of one run, by receiver and then by owner."""
    size = np.maximum(run.high - run.low, 0)
    if run.whole:
        return [
            _Piece(k, k, base + int(run.source[k]), int(run.low[k]), int(size[k]), r)
            for k in np.flatnonzero(size).tolist()
        ]
    first = run.source // block
    last = np.where(size > 0, (run.source + size - 1) // block, first - 1)
    owners = int(np.max(last - first, initial=-1)) + 1
    if n * owners > PIECES:
        return None
    found: list[_Piece] = []
    for j in range(owners):
        owner = first + j
        begin = np.maximum(run.source, owner * block)
        end = np.minimum(run.source + size, (owner + 1) * block)
        for k in np.flatnonzero(end > begin).tolist():
            at = int(begin[k])
            put = int(run.low[k] + at - run.source[k])
            d = int(owner[k])
            found.append(_Piece(d, k, base + at - d * block, put, int(end[k]) - at, r))
    return found


def _counts(devices: list[int]) -> list[int]:
    return np.bincount(devices).tolist() if devices else []


def _by_distance(pieces: list[_Piece], n: int) -> list[list[_Piece]]:
    """Rounds in which all pieces go equally far (around the ring of devices): they suit neighbours' halos. Of the pieces
    that stay, those of a run are together."""
    classes: dict[int, list[_Piece]] = {}
    for p in pieces:
        classes.setdefault((p.receiver - p.sender) % n or -1 - p.run, []).append(p)
    return [group for key in sorted(classes) for group in _fit(classes[key])]


def _fit(pieces: list[_Piece]) -> list[list[_Piece]]:
    """Each piece in the first round in which its sender and its receiver are free."""
    rounds: list[list[_Piece]] = []
    busy: list[set[int]] = []  # senders as they are, receivers as -1 - number
    for p in pieces:
        ends = (p.sender, -1 - p.receiver)
        i = next((i for i, used in enumerate(busy) if used.isdisjoint(ends)), len(rounds))
        if i == len(rounds):
            rounds.append([])
            busy.append(set())
        busy[i].update(ends)
        rounds[i].append(p)
    return rounds


def _round(group: list[_Piece], n: int, row: int) -> Round:
    size = max(p.size for p in group)
    pairs = tuple(sorted((p.sender, p.receiver) for p in group))
    low, high = [0] * n, [0] * n
    for p in group:
        low[p.receiver], high[p.receiver] = p.put, p.put + p.size
    shift, wrap = _shift(pairs, n)
    begin, end = min(p.take for p in group), max(p.take + p.size for p in group)
    moved = {p.take - p.put for p in group}
    if len(moved) == 1 and end - begin == size:
        put = begin - moved.pop()
        return Round(pairs, shift, wrap, size, True, (begin,), (put,), tuple(low), tuple(high))
    take, put = [0] * n, [0] * n
    for p in group:
        start = min(p.take, row - size)  # a short piece at the row's end brings along what lies before it
        take[p.sender], put[p.receiver] = start, p.put - (p.take - start)
    return Round(pairs, shift, wrap, size, False, tuple(take), tuple(put), tuple(low), tuple(high))


def _shift(pairs: tuple[tuple[int, int], ...], n: int) -> tuple[int | None, bool]:
    """(distance, whether it goes around) if these pairs are most of what a shift by that distance has."""
    straight = {b - a for a, b in pairs}
    if len(straight) == 1:
        distance = straight.pop()
        return (distance, False) if 2 * len(pairs) >= n - abs(distance) else (None, False)
    around = {(b - a) % n for a, b in pairs}
    if len(around) == 1 and 2 * len(pairs) >= n:
        return around.pop(), True
    return None, False
