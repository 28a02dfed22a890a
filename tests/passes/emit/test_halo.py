"""Plans of moves, run by hand on numbered positions."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmd_compiler.passes.emit import halo
from spmd_compiler.passes.emit.halo import Segment, Window, concat_moves, window_moves
from tests.share import examples

many = examples(200)
NOTHING = -1


def carry_out(moves, rows):
    """What every device has in the end; `rows`: what each holds at first."""
    n = len(rows)
    out = np.full((n, moves.length), NOTHING)
    for r in moves.rounds:
        pairs = [(k, k) for k in range(n)]
        if r.shift is not None:
            pairs = [(k, k + r.shift) for k in range(n)]
            pairs = [(a, b % n) for a, b in pairs] if r.wrap else [p for p in pairs if 0 <= p[1] < n]
        elif r.pairs:
            pairs = r.pairs
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)
        for sender, receiver in pairs:
            take, put = (x[0] if r.static else x[k] for x, k in ((r.take, sender), (r.put, receiver)))
            assert take >= 0 and take + r.size <= len(rows[sender])
            low, high = (r.low[receiver], r.high[receiver]) if r.low else (put, put + r.size)
            for i in range(low, high):
                out[receiver, i] = rows[sender][take + i - put]
    return out


@many
@given(
    st.integers(1, 9),
    st.integers(1, 6),
    st.integers(-9, 9),
    st.integers(-9, 20),
    st.integers(1, 9),
    st.integers(1, 3),
)
def test_windows(n, block, stride, offset, length, per):
    size = n * block
    window = Window(stride, offset, length, 0, size, per)
    moves = window_moves(n, block, window)
    assert moves is not None
    out = carry_out(moves, np.arange(size).reshape(n, block))
    for k in range(n):
        for i in range(length):
            position = window.start(k) + i
            if 0 <= position < size:
                assert out[k, i] == position
    assert moves.sent <= (n - 1) * length or moves.sent <= length * moves.messages


@pytest.mark.parametrize("offset", [-3, -1, 0, 2, 7])
def test_many_devices_have_the_same_shifts(offset, monkeypatch):
    window = Window(4, offset, 6, 0, 36)
    monkeypatch.setattr(halo, "MANY", 2)
    moves = window_moves.__wrapped__(9, 4, window)
    out = carry_out(moves, np.arange(36).reshape(9, 4))
    for k in range(9):
        wanted = np.arange(6) + 4 * k + offset
        inside = (wanted >= 0) & (wanted < 36)
        np.testing.assert_array_equal(out[k][inside], wanted[inside])


@many
@given(st.integers(1, 9), st.data())
def test_concatenations(n, data):
    parts = data.draw(st.lists(st.tuples(st.integers(1, 20), st.booleans()), min_size=1, max_size=4))
    rows: list[list[int]] = [[] for _ in range(n)]
    blocks, segments, joined = [], [], []
    base = 0
    for size, whole in parts:
        start = data.draw(st.integers(0, size - 1))
        limit = data.draw(st.integers(start + 1, size))
        block = size if whole else -(-size // n)
        held = np.concatenate([np.arange(base, base + size), np.full(n * block, NOTHING)])
        for k in range(n):
            rows[k] += list(held[:block] if whole else held[k * block : (k + 1) * block])
        blocks.append(block)
        segments.append(Segment(start, limit, whole, len(segments)))
        joined += list(range(base + start, base + limit))
        base += size
    block = -(-len(joined) // n)
    moves = concat_moves(n, tuple(blocks), tuple(segments), block)
    out = carry_out(moves, rows).reshape(-1)
    np.testing.assert_array_equal(out[: len(joined)], joined)


def test_the_busiest_device_sends_no_more_than_it_must():
    """Halving and joining: as many rounds as pieces that one device must send or receive."""
    assert window_moves(8, 4, Window(2, 0, 2, 0, 16)).sent == 4
    joined = concat_moves(8, (4, 4), (Segment(0, 32, False, 0), Segment(0, 32, False, 1)), 8)
    assert joined.sent == 8 and joined.messages == 2
    reverse = window_moves(8, 4, Window(-4, 28, 4, 0, 32))
    assert reverse.sent == 4 and reverse.messages == 1


def test_a_value_joined_with_itself_is_sent_without_a_copy():
    """A roll: of one operand every device sends the same positions."""
    rolled = concat_moves(4, (8,), (Segment(31, 32, False, 0), Segment(0, 31, False, 0)), 8)
    assert all(r.static for r in rolled.rounds)
    assert rolled.sent == 1 and rolled.messages == 1
