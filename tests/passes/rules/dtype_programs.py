"""Programs over every family of rules, for arrays of any element type, any rank, and any size, zero included."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

Array = jax.Array
Program = Callable[[Array], Any]
FLOATS = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz")
INTEGERS = ("int32", "int8", "uint8", "uint16", "int4", "uint4")
DTYPES = (*FLOATS, *INTEGERS, "bool", "complex64")


def data(dtype: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Small numbers, most of them zero, so that sums of floats are exact in any order."""
    rng = np.random.RandomState(seed)
    x = rng.choice([0, 0, 0, 1, 2], shape)
    if dtype == "complex64":
        return (x + 1j * rng.choice([0, 1], shape)).astype(dtype)
    return np.asarray(x).astype(jnp.dtype(dtype))


def _kind(x: Array) -> str:
    if x.dtype == bool:
        return "b"
    for kind, of in (("c", jnp.complexfloating), ("f", jnp.floating)):
        if jnp.issubdtype(x.dtype, of):
            return kind
    return "i"


def _last(x: Array) -> int:
    return x.ndim - 1


def elementwise(x: Array) -> Any:
    if _kind(x) == "b":
        return x & ~x, x ^ True, jnp.where(x, x, ~x)
    y = x * x - x
    if _kind(x) == "i":
        return y, lax.population_count(x), x | 1, lax.shift_left(x, lax.full_like(x, 1))
    if _kind(x) == "c":
        return y, jnp.conj(x), x.real + x.imag, abs(x), lax.complex(x.imag, x.real)
    return y, jnp.tanh(x), lax.clamp(0.0 * lax.full_like(x, 1), x, lax.full_like(x, 1)), jnp.sign(x)


def conversions(x: Array) -> Any:
    to = [jnp.float32, jnp.int32, jnp.bfloat16, jnp.int8, jnp.float8_e5m2, bool, jnp.int4]
    parts = [x.real, x.imag] if _kind(x) == "c" else [x]
    return [lax.convert_element_type(p, t) for p in parts for t in to] + [
        x == x,
        lax.ne(x, lax.full_like(x, 1)),
    ]


def bits(x: Array) -> Any:
    """The same bits as numbers of the same width, of twice and of half of it."""
    if _kind(x) in "bc":
        return x
    width = 4 if x.dtype.name.endswith("int4") else 8 * x.dtype.itemsize
    same = lax.bitcast_convert_type(x, f"uint{width}")
    if width < 8 or not x.ndim:
        return same
    half = lax.bitcast_convert_type(x, f"uint{width // 2}")
    return same, half, lax.bitcast_convert_type(half, f"uint{width}")


def reductions(x: Array) -> Any:
    dims = tuple(range(0, x.ndim, 2))
    if _kind(x) == "b":
        return x.any(dims), x.all(), jnp.any(x, -1) if x.ndim else x
    total = lax.reduce(x, x.dtype.type(0), lax.add, dims)
    if _kind(x) == "c":
        return total, x.sum(), lax.reduce(x, x.dtype.type(1), lax.mul, (0,)[: x.ndim])
    most = [lax.reduce(x, lax.full((), 0, x.dtype), f, dims) for f in (lax.max, lax.min)]
    if _kind(x) == "i":
        most += [lax.reduce(x, lax.full((), 0, x.dtype), lax.bitwise_or, (0,)[: x.ndim])]
    return total, *most


def ordering(x: Array) -> Any:
    if not x.ndim or _kind(x) in "c":
        return x
    d = x.ndim // 2
    out = [lax.sort(x, dimension=d), lax.sort((x, lax.iota(jnp.int32, x.size).reshape(x.shape)), dimension=d)]
    if x.shape[d] and _kind(x) != "b":
        out += [lax.argmax(x, d, jnp.int32), lax.argmin(x, d, jnp.int32)]
    if x.shape[-1] > 1 and _kind(x) != "b":
        out += [lax.top_k(x, 2)]
    return out


def cumulative(x: Array) -> Any:
    if not x.ndim or _kind(x) == "b":
        return x
    d = x.ndim - 1
    out = [lax.cumsum(x, d), lax.cumsum(x, 0, reverse=True)]
    return out if _kind(x) == "c" else [*out, lax.cummax(x, 0), lax.cummin(x, d)]


def products(x: Array) -> Any:
    if _kind(x) == "b" or not x.ndim:
        return x
    rows = x.reshape(-1, x.shape[-1]) if x.size else x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    gram = lax.dot_general(rows, rows, (((1,), (1,)), ((), ())))
    batched = lax.dot_general(x, x, (((_last(x),), (_last(x),)), (tuple(range(_last(x))),) * 2))
    outer = lax.dot_general(rows, rows, (((0,), (0,)), ((), ())), preferred_element_type=x.dtype)
    return gram, batched, outer


def moves(x: Array) -> Any:
    if not x.ndim:
        return x.reshape(1, 1)
    zero = lax.full((), 0, x.dtype)
    wide = lax.pad(x, zero, [(1, 2, 0), *((-1 if n > 1 else 0, 1, 1) for n in x.shape[1:])])
    return (
        wide,
        lax.rev(x, tuple({0, _last(x)})),
        lax.concatenate([x, x[..., :1], x], _last(x)),
        x[::-2],
        x[tuple(slice(n // 3, n, 2) for n in x.shape)],
        jnp.roll(x, 1, 0) if x.size else x,
        lax.transpose(x, tuple(range(x.ndim))[::-1]),
    )


def shapes(x: Array) -> Any:
    n = x.size
    out = [x.reshape(n), x.reshape((1, *x.shape, 1)), lax.broadcast(x, (2,)), jnp.expand_dims(x, 0)]
    if x.ndim > 1:
        out += [x.reshape((x.shape[0] * x.shape[1], *x.shape[2:])), x.reshape(x.shape[::-1])]
    if n % 4 == 0:
        out += [x.reshape(4, n // 4), x.reshape(n // 4, 2, 2)]
    return out, lax.broadcasted_iota(x.dtype, (3, 5), 1) if _kind(x) != "b" else x


def indexing(x: Array) -> Any:
    if not x.size or not x.ndim:
        return x
    n = x.shape[0]
    where = jnp.array([n - 1, 0, n // 2, n + 3])
    rows = x[where]
    start = x.real.astype(jnp.int32).max()
    part = lax.dynamic_slice_in_dim(x, start, max(1, n // 2), 0)
    put = lax.dynamic_update_slice_in_dim(x, part, 1 - start, _last(x) if x.ndim == 1 else 0)
    placed = x.at[where].set(rows[::-1])
    if _kind(x) == "b":
        return rows, part, put, placed
    return rows, part, put, placed, x.at[where[:2]].add(rows[:2])


def windows(x: Array) -> Any:
    if not x.size or not x.ndim or _kind(x) == "b":
        return x
    ones = (1,) * (x.ndim - 1)
    size, stride = (min(3, x.shape[0]), *ones), (2, *ones)
    sums = lax.reduce_window(x, x.dtype.type(0), lax.add, size, stride, "SAME")
    if _kind(x) == "c":
        return sums
    return sums, lax.reduce_window(x, lax.full((), 0, x.dtype), lax.max, size, stride, "VALID")


def pooled_gradient(x: Array) -> Any:
    if _kind(x) != "f" or not x.size or not x.ndim:
        return x
    ones = (1,) * (x.ndim - 1)

    def pool(x: Array) -> Array:
        return lax.reduce_window(x, -jnp.inf, lax.max, (2, *ones), (2, *ones), "SAME")

    y, back = jax.vjp(pool, x)
    return y, back(y)


def convolutions(x: Array) -> Any:
    if _kind(x) == "b" or x.ndim not in (3, 4) or not x.size:
        return x
    kernel = lax.full((4, x.shape[1], *(min(2, n) for n in x.shape[2:])), 1, x.dtype)
    return lax.conv_general_dilated(x, kernel, (1,) * (x.ndim - 2), "SAME")


def loops(x: Array) -> Any:
    def step(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], Array]:
        y, total = carry
        y = ~y if _kind(x) == "b" else lax.sub(y, lax.full_like(y, 1))
        return (y, total ^ y if _kind(x) == "b" else total + y), y

    last, rows = lax.scan(step, (x, x), length=3)
    return last, rows, lax.cond((x == x).all(), lambda v: v, lambda v: lax.full_like(v, 1), x)


def transforms(x: Array) -> Any:
    if _kind(x) == "c" and x.ndim and x.size:
        return jnp.fft.fft(x, axis=0), jnp.fft.ifftn(x, axes=tuple(range(max(0, x.ndim - 3), x.ndim)))
    return x if x.dtype != jnp.float32 or not x.ndim or not x.size else jnp.fft.rfft(x)


def random_bits(x: Array) -> Any:
    key = jax.random.key(3)
    noise = jax.random.bits(key, x.shape, jnp.uint32)
    if _kind(x) == "b":
        return jax.random.bernoulli(key, 0.5, x.shape) ^ x
    return (noise % 3).astype(x.dtype) + x, jax.random.permutation(key, x) if x.ndim and x.size else x


FAMILIES: dict[str, Program] = {
    f.__name__: f
    for f in (
        elementwise,
        conversions,
        bits,
        reductions,
        ordering,
        cumulative,
        products,
        moves,
        shapes,
        indexing,
        windows,
        pooled_gradient,
        convolutions,
        loops,
        transforms,
        random_bits,
    )
}
