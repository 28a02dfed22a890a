"""rng_bit_generator by Threefry-2x32, as XLA has it: the state is a key and a counter."""

from __future__ import annotations

import math

import numpy as np

from ...errors import SpmdError
from ...ir.graph import Op
from ...ir.types import numpy_dtype

Array = np.ndarray
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_LOW = np.uint64(0xFFFFFFFF)


def threefry(key: tuple[np.uint32, np.uint32], x: Array, y: Array) -> tuple[Array, Array]:
    """Two words of random bits for each pair of words (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3")."""
    keys = (*key, key[0] ^ key[1] ^ np.uint32(0x1BD11BDA))
    x, y = x + keys[0], y + keys[1]
    for turn in range(5):
        for bits in _ROTATIONS[turn % 2]:
            x = x + y
            y = (y << np.uint32(bits)) | (y >> np.uint32(32 - bits))
            y = x ^ y
        x, y = x + keys[(turn + 1) % 3], y + keys[(turn + 2) % 3] + np.uint32(turn + 1)
    return x, y


def rng_bit_generator(op: Op, state: Array) -> list[Array]:
    """The state after it, and the bits. Raises SpmdError for another algorithm than THREE_FRY."""
    if op.attrs["rng_algorithm"] != "THREE_FRY":
        raise SpmdError(f"{op.loc} the interpreter does not know rng_algorithm={op.attrs['rng_algorithm']}")
    type = op.results[1].type
    dtype = numpy_dtype(type.dtype)
    key, start = state[0], state[1]
    halves = np.uint32(key & _LOW), np.uint32(key >> np.uint64(32))
    wide = dtype.itemsize == 8
    cut = 0 if wide else _cut(type.shape)
    half = type.shape if wide or not type.shape else _with(type.shape, cut, -(-type.shape[cut] // 2))
    with np.errstate(over="ignore"):
        counters = (start + np.arange(math.prod(half), dtype=np.uint64)).reshape(half)
        low, high = (counters & _LOW).astype(np.uint32), (counters >> np.uint64(32)).astype(np.uint32)
        x, y = threefry(halves, low, high)
        after = np.array([key, start + np.uint64(math.prod(half))], np.uint64)
    if wide:
        return [after, (x.astype(np.uint64) | (y.astype(np.uint64) << np.uint64(32))).astype(dtype)]
    if not type.shape:
        return [after, x.astype(dtype)]
    pairs = np.stack([x, y], cut + 1).reshape(_with(type.shape, cut, 2 * half[cut]))
    return [after, np.take(pairs, range(type.shape[cut]), cut).astype(dtype)]


def _cut(shape: tuple[int, ...]) -> int:
    """The dim along which the two words of a pair lie: the first even one, else the largest."""
    even = [d for d, n in enumerate(shape) if n % 2 == 0]
    return even[0] if even else shape.index(max(shape)) if shape else 0


def _with(shape: tuple[int, ...], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])
