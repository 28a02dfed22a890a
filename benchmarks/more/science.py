"""Simulations, graphs and statistics: states that loops carry, whole rows that all need, scans over what is sharded."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, ids
from benchmarks.zoo.registry import A8

from .registry import ABC, program

D8 = [("data", 8)]
AB = [("a", 2), ("b", 4)]


# ---- states that loops carry
def shortest_paths(d):
    """Floyd and Warshall: one row goes to all in each iteration."""
    return lax.fori_loop(0, len(d), lambda k, d: jnp.minimum(d, d[:, k][:, None] + d[k]), d)


def eliminated(a):
    def body(k, a):
        factor = jnp.where(jnp.arange(len(a)) > k, a[:, k] / a[k, k], 0)
        return a - factor[:, None] * a[k]

    return lax.fori_loop(0, len(a) - 1, body, a)


def gates(state, us):
    """A circuit: each gate turns one of the qubits, of which the first are sharded."""
    for q, u in enumerate(us):
        state = jnp.moveaxis(jnp.tensordot(u, state, ((1,), (q,))), 0, q)
    return state


def boltzmann(f):
    """D2Q9: streams along nine directions, and collides."""
    steps = np.array([[0, 0], [1, 0], [-1, 0], [0, 1], [0, -1], [1, 1], [-1, 1], [1, -1], [-1, -1]])
    weights = np.array([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4, np.float32)

    def step(_, f):
        f = jnp.stack([jnp.roll(f[i], steps[i], (0, 1)) for i in range(9)])
        rho = f.sum(0)
        u = jnp.tensordot(steps.T.astype(np.float32), f, 1) / rho
        cu = jnp.tensordot(steps.astype(np.float32), u, 1)
        still = weights[:, None, None] * rho * (1 + 3 * cu + 4.5 * cu * cu - 1.5 * (u * u).sum(0))
        return f - 0.6 * (f - still)

    return lax.fori_loop(0, 5, step, f)


def ising(spins, key):
    def step(spins, key):
        uniform = jax.random.uniform(key, spins.shape)
        around = sum(jnp.roll(spins, s, axis) for s in (1, -1) for axis in (0, 1))
        board = (jnp.arange(spins.shape[0])[:, None] + jnp.arange(spins.shape[1])) % 2 == 0
        flip = board & (uniform < jnp.exp(-0.8 * spins * around))
        return jnp.where(flip, -spins, spins), spins.mean()

    return lax.scan(step, spins, jax.random.split(key, 4))


def tridiagonal(d):
    """Thomas' algorithm along dim 0, with constant coefficients."""

    def down(carry, d):
        c, last = carry
        m = 1 / (4 - c)
        return (m, (d + last) * m), (m, (d + last) * m)

    _, (c, d) = lax.scan(down, (0.0, jnp.zeros_like(d[0])), d)
    _, x = lax.scan(lambda x, cd: (cd[1] + cd[0] * x,) * 2, jnp.zeros_like(d[0]), (c, d), reverse=True)
    return x


def adi(u):
    return tridiagonal(tridiagonal(u).T).T


def multigrid(u, f):
    def smooth(u, f):
        p = jnp.pad(u, 1)
        return 0.25 * (p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:] + f)

    def residual(u, f):
        p = jnp.pad(u, 1)
        return f - 4 * u + p[:-2, 1:-1] + p[2:, 1:-1] + p[1:-1, :-2] + p[1:-1, 2:]

    def cycle(u, f, levels):
        u = smooth(smooth(u, f), f)
        if levels:
            r = residual(u, f)
            coarse = r.reshape(r.shape[0] // 2, 2, r.shape[1] // 2, 2).sum((1, 3))
            e = cycle(jnp.zeros_like(coarse), coarse, levels - 1)
            u = u + jnp.repeat(jnp.repeat(e, 2, 0), 2, 1)
        return smooth(smooth(u, f), f)

    return cycle(u, f, 2)


def advected(q, u, v):
    """Semi-Lagrangian: each cell looks up where it came from."""
    i, j = jnp.meshgrid(*(jnp.arange(n, dtype=jnp.float32) for n in q.shape), indexing="ij")
    return jax.scipy.ndimage.map_coordinates(q, [i - u, j - v], order=1, mode="wrap")


def paths(key, s):
    """Prices along random paths, and an Asian option's value."""
    z = jax.random.normal(key, (len(s), 32))
    z = jnp.concatenate([z, -z], 1)
    s = s[:, None] * jnp.exp(jnp.cumsum(0.1 * z, 1))
    return jnp.maximum(s.mean(1) - 1, 0).mean()


program("floyd_rows", A8, shortest_paths, lambda r: (W(r, 128, 128, scale=1) ** 2,), (P("a"),), P("a"))
program(
    "floyd_2d", AB, shortest_paths, lambda r: (W(r, 128, 128, scale=1) ** 2,), (P("a", "b"),), P("a", "b")
)
program(
    "eliminate_rows",
    A8,
    eliminated,
    lambda r: (W(r, 64, 64) + 4 * np.eye(64, dtype=np.float32),),
    (P("a"),),
    P("a"),
    1e-3,
)
program(
    "qubits",
    ABC,
    gates,
    lambda r: (W(r, *[2] * 14, scale=1), [W(r, 2, 2, scale=1) for _ in range(14)]),
    (P("a", "b", "c"), P()),
    P("a", "b", "c"),
    1e-3,
)
program(
    "lattice_boltzmann",
    AB,
    boltzmann,
    lambda r: (1 + 0.1 * r.rand(9, 64, 64).astype(np.float32),),
    (P(None, "a", "b"),),
    P(None, "a", "b"),
    1e-3,
)
program(
    "ising",
    AB,
    ising,
    lambda r: (np.sign(W(r, 64, 64)), jax.random.PRNGKey(0)),
    (P("a", "b"), P()),
    (P("a", "b"), P()),
)
program("thomas_free_dim", A8, tridiagonal, lambda r: (W(r, 128, 256),), (P(None, "a"),), P(None, "a"))
program("thomas_sharded_dim", A8, tridiagonal, lambda r: (W(r, 128, 256),), (P("a"),), P("a"))
program("adi", A8, adi, lambda r: (W(r, 256, 256),), (P("a"),), P("a"))
program(
    "multigrid", AB, multigrid, lambda r: (W(r, 128, 128), W(r, 128, 128)), (P("a", "b"),) * 2, P("a", "b")
)
program("multigrid_rows", A8, multigrid, lambda r: (W(r, 128, 64), W(r, 128, 64)), (P("a"),) * 2, P("a"))
program(
    "semi_lagrangian",
    A8,
    advected,
    lambda r: (W(r, 256, 128), *[W(r, 256, 128, scale=1)] * 2),
    (P("a"),) * 3,
    P("a"),
)
program(
    "asian_option",
    D8,
    paths,
    lambda r: (jax.random.PRNGKey(0), 1 + 0.1 * r.rand(4096).astype(np.float32)),
    (P(), P("data")),
    P(),
)


# ---- sequences
def forward_algorithm(start, move, emit, seen):
    """An HMM's likelihood, the states sharded."""

    def step(alpha, y):
        return jax.nn.logsumexp(alpha[:, None] + move, 0) + emit[:, y], None

    return jax.nn.logsumexp(lax.scan(step, start + emit[:, seen[0]], seen[1:])[0])


def viterbi(scores, move):
    def step(best, s):
        way = best[:, :, None] + move
        return way.max(1) + s, way.argmax(1)

    best, back = lax.scan(step, scores[:, 0], jnp.moveaxis(scores[:, 1:], 1, 0))
    last = best.argmax(-1)
    _, tags = lax.scan(
        lambda t, b: (jnp.take_along_axis(b, t[:, None], 1)[:, 0],) * 2, last, back, reverse=True
    )
    return jnp.concatenate([tags.T, last[:, None]], 1)


def advantages(rewards, values, done):
    def step(last, rvd):
        r, v, nxt, d = rvd
        last = r + 0.99 * nxt * (1 - d) - v + 0.95 * 0.99 * (1 - d) * last
        return last, last

    following = jnp.concatenate([values[1:], jnp.zeros_like(values[:1])])
    out = lax.scan(step, jnp.zeros_like(values[0]), (rewards, values, following, done), reverse=True)[1]
    return (out - out.mean()) / (out.std() + 1e-6)


def filtered(means, obs):
    """A Kalman filter on each track."""

    def step(carry, y):
        m, p = carry
        m, p = m @ F, jnp.einsum("ij,bjk,lk->bil", F, p, F) + 0.1 * jnp.eye(4)
        gain = p[:, :, :2] @ jnp.linalg.inv(p[:, :2, :2] + 0.5 * jnp.eye(2))
        m = m + jnp.einsum("bij,bj->bi", gain, y - m[:, :2])
        return (m, p - gain @ p[:, :2]), m

    F = jnp.eye(4) + 0.1 * jnp.eye(4, k=2)
    return lax.scan(step, (means, jnp.broadcast_to(jnp.eye(4), (len(means), 4, 4))), obs)[1]


def _hmm(r):
    return (W(r, 64, scale=1), W(r, 64, 64, scale=1), W(r, 64, 32, scale=1), ids(r, 48, hi=32))


program("hmm_states", A8, forward_algorithm, _hmm, (P("a"), P("a"), P("a"), P()), P())
program("hmm_columns", A8, forward_algorithm, _hmm, (P("a"), P(None, "a"), P("a"), P()), P())
program(
    "viterbi_batch",
    D8,
    viterbi,
    lambda r: (W(r, 32, 24, 16, scale=1), W(r, 16, 16, scale=1)),
    (P("data"), P()),
    P("data"),
)


def _gae(r):
    return (W(r, 64, 256, scale=1), W(r, 64, 256, scale=1), (r.rand(64, 256) < 0.1).astype(np.float32))


program("gae_envs", D8, advantages, _gae, (P(None, "data"),) * 3, P(None, "data"))
program("gae_time", D8, advantages, _gae, (P("data"),) * 3, P("data"))
program(
    "kalman", D8, filtered, lambda r: (W(r, 64, 4), W(r, 24, 64, 2)), (P("data"), P(None, "data")), None, 1e-3
)


# ---- statistics and images
def compacted(x):
    """Positive values first: a running count, and a scatter."""
    keep = x > 0
    to = jnp.where(keep, jnp.cumsum(keep) - 1, len(x))
    return jnp.zeros_like(x).at[to].set(x, mode="drop"), keep.sum()


def integral_image(x):
    return jnp.cumsum(jnp.cumsum(x, 0), 1)


def median_filter(x):
    p = jnp.pad(x, 1, mode="edge")
    n, m = x.shape
    return jnp.median(jnp.stack([p[i : i + n, j : j + m] for i in range(3) for j in range(3)]), 0)


def components(mask):
    """Labels of what hangs together, by the least label around, until none changes."""
    labels = jnp.where(mask, jnp.arange(mask.size).reshape(mask.shape), mask.size)

    def step(carry):
        labels, _ = carry
        p = jnp.pad(labels, 1, constant_values=mask.size)
        new = jnp.minimum(jnp.minimum(p[:-2, 1:-1], p[2:, 1:-1]), jnp.minimum(p[1:-1, :-2], p[1:-1, 2:]))
        new = jnp.where(mask, jnp.minimum(labels, new), mask.size)
        return new, jnp.any(new != labels)

    return lax.while_loop(lambda c: c[1], step, (labels, True))[0]


def als_step(ratings, v):
    """Each user's factors solve a system of its own, and then each item's."""
    u = jnp.linalg.solve(v.T @ v + jnp.eye(v.shape[1]), v.T @ ratings.T).T
    return u, jnp.linalg.solve(u.T @ u + jnp.eye(v.shape[1]), u.T @ ratings).T


def page_rank(adjacency, rank):
    out = adjacency / jnp.maximum(adjacency.sum(1, keepdims=True), 1)
    return lax.fori_loop(0, 10, lambda _, r: 0.85 * (r @ out) + 0.15 / len(r), rank)


def moving(x):
    s = jnp.cumsum(x, 0)
    return (s[16:] - s[:-16]) / 16


def stft(x):
    frames = jnp.stack([x[:, i * 32 : i * 32 + 64] for i in range(x.shape[1] // 32 - 1)], 1)
    return jnp.abs(jnp.fft.rfft(frames * jnp.hanning(64)))


program("compact", A8, compacted, lambda r: (W(r, 4096, scale=1),), (P("a"),), (P("a"), P()))
program("integral_image", AB, integral_image, lambda r: (W(r, 256, 256),), (P("a", "b"),), P("a", "b"))
program("median_filter", AB, median_filter, lambda r: (W(r, 64, 64),), (P("a", "b"),), P("a", "b"))
program("components", AB, components, lambda r: (r.rand(64, 64) < 0.5,), (P("a", "b"),), P("a", "b"))
program(
    "als",
    A8,
    als_step,
    lambda r: (W(r, 512, 256, scale=1), W(r, 256, 16)),
    (P("a"), P()),
    (P("a"), P()),
    1e-3,
)
program(
    "page_rank",
    A8,
    page_rank,
    lambda r: ((r.rand(512, 512) < 0.1).astype(np.float32), np.full(512, 1 / 512, np.float32)),
    (P("a"), P("a")),
    P("a"),
)
program("moving_average", A8, moving, lambda r: (W(r, 4112, 32),), (P("a"),), P("a"), 1e-3)
program("stft_time", A8, stft, lambda r: (W(r, 4, 4096, scale=1),), (P(None, "a"),), None, 1e-3)
program(
    "mttkrp",
    ABC,
    lambda x, b, c: jnp.einsum("ijk,jr,kr->ir", x, b, c),
    lambda r: (W(r, 64, 64, 64), W(r, 64, 16), W(r, 64, 16)),
    (P("a", "b", "c"), P("b"), P("c")),
    P("a"),
)
program(
    "quantiles",
    A8,
    lambda x: jnp.quantile(x, jnp.array([0.1, 0.5, 0.9]), 0),
    lambda r: (W(r, 1024, 32, scale=1),),
    (P("a"),),
    P(),
)
program(
    "interpolate",
    A8,
    lambda q, x, y: jnp.interp(q, x, y),
    lambda r: (W(r, 4096, scale=1), np.sort(W(r, 256, scale=1)), W(r, 256)),
    (P("a"), P(), P()),
    P("a"),
)
program(
    "bincount",
    A8,
    lambda i, w: jnp.zeros(64).at[i].add(w),
    lambda r: (ids(r, 4096, hi=64), W(r, 4096)),
    (P("a"),) * 2,
    P(),
)
program("differences", A8, lambda x: jnp.diff(x, 2, 0), lambda r: (W(r, 1024, 64),), (P("a"),), None)
program(
    "gradients",
    AB,
    lambda x: jnp.stack(jnp.gradient(x)),
    lambda r: (W(r, 256, 256),),
    (P("a", "b"),),
    P(None, "a", "b"),
)
