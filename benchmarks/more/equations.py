"""Partial differential equations, particles, dynamic programs, filters."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, ids

from .registry import program

X8 = [("x", 8)]
XY = [("x", 4), ("y", 2)]
YX = [("x", 2), ("y", 4)]


# ---- partial differential equations
def gray_scott(u, v):
    def lap(a):
        return sum(jnp.roll(a, s, d) for s in (1, -1) for d in (0, 1)) - 4 * a

    def step(c, _):
        u, v = c
        uvv = u * v * v
        return (u + 0.16 * lap(u) - uvv + 0.04 * (1 - u), v + 0.08 * lap(v) + uvv - 0.1 * v), None

    return lax.scan(step, (u, v), None, 5)[0]


program(
    "gray_scott_2d",
    XY,
    gray_scott,
    lambda r: (r.rand(128, 128).astype(np.float32), r.rand(128, 128).astype(np.float32)),
    (P("x", "y"), P("x", "y")),
    P("x", "y"),
)


def wave(u, old, c):
    def step(s, _):
        u, old = s
        p = jnp.pad(u, 1)
        lap = p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u
        return (2 * u - old + c * lap, u), u[64]

    return lax.scan(step, (u, old), None, 5)


def _wave_args(r):
    return W(r, 128, 128), W(r, 128, 128), r.rand(128, 128).astype(np.float32) * 0.1


program(
    "wave_receiver",
    X8,
    wave,
    _wave_args,
    (P("x"), P("x"), P("x")),
    ((P("x"), P("x")), P()),
)
program(
    "wave_gradient",
    X8,
    lambda u, old, c, d: jax.grad(lambda c: ((wave(u, old, c)[1] - d) ** 2).sum())(c),
    lambda r: (*_wave_args(r), W(r, 5, 128)),
    (P("x"), P("x"), P("x"), P()),
    P("x"),
)


def red_black(u, f):
    i = jnp.arange(u.shape[0])[:, None] + jnp.arange(u.shape[1])[None]

    def half(u, colour):
        p = jnp.pad(u, 1)
        new = (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - f) / 4
        return jnp.where(i % 2 == colour, new, u)

    return lax.fori_loop(0, 4, lambda _, u: half(half(u, 0), 1), u)


program(
    "red_black_2d",
    XY,
    red_black,
    lambda r: (W(r, 128, 128), W(r, 128, 128)),
    (P("x", "y"), P("x", "y")),
    P("x", "y"),
)


def burgers(u):
    """Upwind with limiter, and the step by the largest speed."""

    def step(u, _):
        dt = 0.4 / (jnp.abs(u).max() + 1e-3)
        d = jnp.roll(u, -1, 1) - u
        s = jnp.where(
            d * jnp.roll(d, 1, 1) > 0, jnp.sign(d) * jnp.minimum(jnp.abs(d), jnp.abs(jnp.roll(d, 1, 1))), 0
        )
        left = u + 0.5 * s
        f = 0.5 * left * left
        return u - dt * (f - jnp.roll(f, 1, 1)), None

    return lax.scan(step, u, None, 4)[0]


program(
    "burgers_space",
    X8,
    burgers,
    lambda r: (W(r, 16, 2048, scale=1),),
    (P(None, "x"),),
    P(None, "x"),
    tol=1e-3,
)


def sph(x, v):
    """Density and forces of all pairs."""
    d = x[:, None] - x[None]
    r2 = (d * d).sum(-1)
    w = jnp.exp(-r2)
    rho = w.sum(1)
    p = rho - 1
    f = -((p[:, None] / rho[:, None] ** 2 + p[None] / rho[None] ** 2) * w)[..., None] * d
    v = v + 0.01 * f.sum(1)
    return x + 0.01 * v, v


program(
    "sph_rows",
    X8,
    sph,
    lambda r: (W(r, 512, 3, scale=1), W(r, 512, 3)),
    (P("x"), P("x")),
    (P("x"), P("x")),
    tol=1e-3,
)


def ewald(x, q, k):
    """Structure factors and their forces."""
    phase = x @ k.T
    s = q @ jnp.exp(1j * phase)
    return (q[:, None] * jnp.imag(jnp.exp(-1j * phase) * s)) @ k


program(
    "ewald_particles",
    X8,
    ewald,
    lambda r: (W(r, 2048, 3, scale=1), W(r, 2048), W(r, 256, 3, scale=1)),
    (P("x"), P("x"), P()),
    P("x"),
    tol=1e-3,
)
program(
    "ewald_waves",
    XY,
    ewald,
    lambda r: (W(r, 2048, 3, scale=1), W(r, 2048), W(r, 256, 3, scale=1)),
    (P("x"), P("x"), P("y")),
    P("x"),
    tol=1e-3,
)


# ---- dynamic programs
def warp(a, b):
    """Dynamic time warping by columns, pairs side by side."""

    def column(row, x):
        cost = jnp.abs(b - x[:, None])
        low = jnp.minimum(row, jnp.pad(row, ((0, 0), (1, 0)), constant_values=9.0)[:, :-1])

        def cell(left, t):
            here, below = t
            new = here + jnp.minimum(left, below)
            return new, new

        row = lax.scan(cell, jnp.full(len(a), 9.0), (cost.T, low.T))[1].T
        return row, None

    return lax.scan(column, jnp.abs(b - a[:, :1]), a.T[1:])[0][:, -1]


program("warp_pairs", X8, warp, lambda r: (W(r, 64, 32, scale=1), W(r, 64, 32, scale=1)), (P("x"), P("x")))


def binomial(s, k):
    """An American option on a tree that shrinks by one each step."""
    up, p = 1.02, 0.51
    v = jnp.maximum(k[:, None] - s[:, None] * up ** (2.0 * jnp.arange(33) - 32), 0)
    for n in range(31, -1, -1):
        price = s[:, None] * up ** (2.0 * jnp.arange(n + 1) - n)
        v = jnp.maximum(p * v[:, 1:] + (1 - p) * v[:, :-1], k[:, None] - price)
    return v[:, 0]


program(
    "binomial_options",
    X8,
    binomial,
    lambda r: (1 + r.rand(1024).astype(np.float32), 1 + r.rand(1024).astype(np.float32)),
    (P("x"), P("x")),
    P("x"),
)


def knapsack(values, weights):
    """The best value by capacity, items one after the other."""

    def item(best, t):
        v, w = t
        moved = jnp.where(jnp.arange(len(best)) >= w, jnp.roll(best, w), -1e9)
        return jnp.maximum(best, v + moved), None

    return lax.scan(item, jnp.zeros(4096), (values, weights))[0]


program(
    "knapsack",
    X8,
    knapsack,
    lambda r: (r.rand(16).astype(np.float32), 1 + ids(r, 16, hi=64)),
    (P(), P()),
    P("x"),
)


def alignment(scores):
    """Smith-Waterman along antidiagonals, stored skewed."""

    def diagonal(c, s):
        a, b = c
        new = jnp.maximum(0, jnp.maximum(b + s, jnp.maximum(a, jnp.pad(a, ((0, 0), (1, 0)))[:, :-1]) - 1))
        return (new, jnp.pad(a, ((0, 0), (1, 0)))[:, :-1]), new.max(1)

    z = jnp.zeros(scores.shape[1:])
    return lax.scan(diagonal, (z, z), scores)[1].max(0)


program("alignment_pairs", X8, alignment, lambda r: (W(r, 64, 64, 64, scale=1),), (P(None, "x"),))
program("alignment_cells", X8, alignment, lambda r: (W(r, 64, 8, 512, scale=1),), (P(None, None, "x"),))


def bilateral(x):
    """Each pixel the mean of its 5 x 5 neighbours, weighted by likeness."""
    p = jnp.pad(x, 2, mode="edge")
    n, m = x.shape
    top, w = 0.0, 0.0
    for i in range(5):
        for j in range(5):
            y = p[i : i + n, j : j + m]
            g = jnp.exp(-((y - x) ** 2))
            top, w = top + g * y, w + g
    return top / w


program("bilateral_rows", X8, bilateral, lambda r: (W(r, 256, 128, scale=1),), (P("x"),), P("x"))
program("bilateral_2d", YX, bilateral, lambda r: (W(r, 256, 128, scale=1),), (P("x", "y"),), P("x", "y"))


def nonlocal_block(p, x):
    q, k, v = (x.reshape(len(x), -1, x.shape[-1]) @ p[n] for n in "qkv")
    return x + (jax.nn.softmax(q @ k.swapaxes(1, 2) / 8) @ v).reshape(x.shape)


program(
    "nonlocal_rows",
    XY,
    nonlocal_block,
    lambda r: ({n: W(r, 32, 32) for n in "qkv"}, W(r, 8, 16, 16, 32, scale=1)),
    (P(), P("y", "x")),
    P("y", "x"),
)
