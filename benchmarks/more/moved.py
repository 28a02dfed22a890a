"""Values that are laid out flat in between, turned round, rolled, padded at their boundaries, read by stencils, taken apart into
halves, ordered, and looked up by rank."""

from __future__ import annotations

import functools
import itertools
import operator

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W
from benchmarks.zoo.registry import A8, AB, FREE

from .registry import ABC, program, shifted

GRID, CUBE = P("a", "b"), P("a", "b", "c")
SQUARE = (256, 256)


def on_grid(name, fn, shape=SQUARE, tol=2e-4):
    """On 4 x 2 devices, cut along both dims, before and behind."""
    program(name, AB, fn, lambda r: (W(r, *shape, scale=1),), (GRID,), GRID, tol)


def in_rows(name, fn, shape=(2048, 16)):
    """On 8 devices, cut into rows."""
    shifted(name, A8, P("a"), P("a"), shape, fn)


def total(values):
    return functools.reduce(operator.add, values)


# ---- flat in between
program(
    "flat_rows",
    [("data", 2), ("seq", 4)],
    lambda w, x: jnp.tanh(x.reshape(-1, 128) @ w).reshape(x.shape),
    lambda r: (W(r, 128, 128), W(r, 8, 256, 128, scale=1)),
    (P(), P("data", "seq")),
    P("data", "seq"),
)
program(
    "flat_pixels",
    [("data", 2), ("space", 4)],
    lambda w, x: jax.nn.relu(x.reshape(-1, 64) @ w).reshape(*x.shape[:3], -1).mean((1, 2)),
    lambda r: (W(r, 64, 512), W(r, 4, 32, 32, 64, scale=1)),
    (P(), P("data", "space")),
    P("data"),
)
program("vdot", AB, jnp.vdot, lambda r: (W(r, *SQUARE), W(r, *SQUARE)), (GRID, GRID), tol=1e-3)
on_grid("norm_ravel", lambda x: x / jnp.linalg.norm(x.ravel()), tol=1e-3)
on_grid("std_flat", lambda x: (x - x.mean()) / jnp.std(x.reshape(-1)), tol=1e-3)
shifted("argmin_flat", AB, GRID, FREE, SQUARE, jnp.argmin)


def channel_stats(x):
    flat = x.reshape(-1, x.shape[-1])
    return ((flat - flat.mean(0)) / (flat.std(0) + 1e-3)).reshape(x.shape)


program(
    "channel_stats", ABC, channel_stats, lambda r: (W(r, 8, 32, 32, 16, scale=1),), (CUBE,), CUBE, tol=1e-3
)


def style(x):
    flat = x.reshape(x.shape[0], -1, x.shape[-1])
    return jnp.einsum("bnc,bnd->bcd", flat, flat)


program("style_gram", ABC, style, lambda r: (W(r, 8, 32, 32, 16, scale=1),), (CUBE,), tol=1e-3)


def laplacian(x):
    return 4.1 * x - total(jnp.roll(x, s, d) for s in (1, -1) for d in (0, 1))


on_grid("cg_stencil", lambda b: jax.scipy.sparse.linalg.cg(laplacian, b, maxiter=5)[0], (128, 128), tol=1e-2)

# ---- turned and rolled
on_grid("flip_both", lambda x: jnp.flip(x) * 2)
on_grid("fftshift_both", lambda x: jnp.fft.fftshift(x) * 2)
on_grid("roll_blocks", lambda x: jnp.roll(x, (64, 128), (0, 1)) * 2)
on_grid("rot90", lambda x: jnp.rot90(x) + 1)
shifted("flip_three", ABC, CUBE, CUBE, (32, 32, 64), lambda x: jnp.flip(x) * 2)
shifted("point_symmetry", ABC, CUBE, CUBE, (64, 64, 64), lambda x: (x + jnp.flip(x, (0, 1))) / 2)
shifted("flip_free", A8, P("a"), FREE, SQUARE, lambda x: jnp.flip(x, 0) * 2)


# ---- boundaries
def smoothed(x, mode):
    p = jnp.pad(x, 1, mode=mode)
    return (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2]) / 4


for each in ("edge", "reflect", "wrap", "symmetric"):
    on_grid(f"pad_{each}", functools.partial(smoothed, mode=each), (256, 128))
on_grid("pad_edge_loop", lambda x: lax.fori_loop(0, 3, lambda i, u: smoothed(u, "edge"), x), (256, 128))


def weno(x):
    p = jnp.pad(x, ((2, 2), (0, 0)), mode="wrap")
    a, b, c, d, e = (p[k : k + len(x)] for k in range(5))
    return (a - 2 * b + c) ** 2 * (c + d) + (c - 2 * d + e) ** 2 * (b + c)


in_rows("weno", weno, (1024, 16))

# ---- stencils
in_rows("delay_sum", lambda x: total((k + 1) * jnp.roll(x, k, 0) for k in range(8)))
on_grid("wide_stencil", lambda x: total(jnp.roll(x, k, d) / k for k in (1, -1, 2, -2, 3, -3) for d in (0, 1)))
shifted(
    "stencil_27",
    ABC,
    CUBE,
    CUBE,
    (32, 32, 32),
    lambda x: total(jnp.roll(x, at, (0, 1, 2)) for at in itertools.product((-1, 0, 1), repeat=3)) / 27,
)


def life(x):
    near = total(jnp.roll(x, at, (0, 1)) for at in itertools.product((-1, 0, 1), repeat=2)) - x
    return jnp.where(near == 3, 1.0, jnp.where(near == 2, x, 0.0))


on_grid("life", lambda x: lax.fori_loop(0, 3, lambda i, u: life(u), (x > 0).astype(x.dtype)), (256, 128))


# ---- halves
def lifted(x):
    even, odd = x[::2], x[1::2]
    odd = odd - (even + jnp.roll(even, -1, 0)) / 2
    return jnp.stack([even + (odd + jnp.roll(odd, 1, 0)) / 4, odd], 1).reshape(x.shape)


in_rows("lifting", lifted)
in_rows("staggered", lambda x: jnp.repeat(x[1::2] - (x[::2] + jnp.roll(x[::2], -1, 0)) / 2, 2, 0))

# ---- ordered, and looked up by rank
on_grid("sort_descending", lambda x: -jnp.sort(-x, 0), (1024, 32))
on_grid("rank_transform", lambda x: jnp.argsort(jnp.argsort(x, 0), 0) / len(x), (1024, 32))
on_grid(
    "scan_rows", lambda x: lax.scan(lambda s, t: (0.9 * s + t, jnp.tanh(s)), jnp.zeros(256), x)[1], (64, 256)
)
for rows, name in ((P("a"), "topk_own_rows"), (FREE, "topk_free"), (P(), "topk_whole")):
    shifted(name, A8, P(None, "a"), rows, (64, 4096), lambda x: lax.top_k(x, 8)[0])
shifted("argmax_own_rows", A8, P(None, "a"), P("a"), (64, 4096), lambda x: jnp.argmax(x, -1))
