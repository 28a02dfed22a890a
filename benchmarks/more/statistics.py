"""Statistics and sampling, transforms."""

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


# ---- statistics
def mixture(x, mu, var, pi):
    """Two steps of EM for a mixture of diagonal Gaussians."""
    for _ in range(2):
        lp = jnp.log(pi) - 0.5 * (((x[:, None] - mu) ** 2) / var + jnp.log(var)).sum(-1)
        q = jax.nn.softmax(lp, 1)
        n = q.sum(0)
        mu = q.T @ x / n[:, None]
        var = q.T @ (x * x) / n[:, None] - mu * mu + 1e-2
        pi = n / len(x)
    return mu, var, pi


def _mixture_args(r):
    return (
        W(r, 4096, 16, scale=1),
        W(r, 32, 16, scale=1),
        np.ones((32, 16), np.float32),
        np.full(32, 1 / 32, np.float32),
    )


program("mixture_rows", X8, mixture, _mixture_args, (P("x"), P(), P(), P()), tol=1e-3)
program("mixture_2d", XY, mixture, _mixture_args, (P("x"), P("y"), P("y"), P("y")), tol=1e-3)


def neighbours(x, q):
    d = (q * q).sum(1)[:, None] - 2 * q @ x.T + (x * x).sum(1)
    return lax.top_k(-d, 8)


program("neighbours_data", X8, neighbours, lambda r: (W(r, 4096, 32), W(r, 64, 32)), (P("x"), P()))
program("neighbours_2d", XY, neighbours, lambda r: (W(r, 4096, 32), W(r, 64, 32)), (P("x"), P("y")))


def gaussian_process(x, y, z):
    def k(a, b):
        return jnp.exp(-0.5 * ((a[:, None] - b[None]) ** 2).sum(-1))

    c = jnp.linalg.cholesky(k(x, x) + 0.1 * jnp.eye(len(x)))
    return k(z, x) @ jax.scipy.linalg.cho_solve((c, True), y)


program(
    "gaussian_process",
    X8,
    gaussian_process,
    lambda r: (W(r, 256, 4, scale=1), W(r, 256), W(r, 1024, 4, scale=1)),
    (P(), P(), P("x")),
    P("x"),
    tol=1e-3,
)


def hamiltonian(x, q, key):
    """Hamiltonian Monte Carlo of a regression, chains side by side."""

    def grad(q):
        return (q @ x.T - 1) @ x / len(x) + q

    p = jax.random.normal(jax.random.wrap_key_data(key), q.shape)

    def leap(c, _):
        q, p = c
        p = p - 0.05 * grad(q)
        q = q + 0.1 * p
        return (q, p - 0.05 * grad(q)), None

    new, p2 = lax.scan(leap, (q, p), None, 5)[0]

    def e(q, p):
        return 0.5 * ((q @ x.T - 1) ** 2).mean(1) + 0.5 * (q * q).sum(1) + 0.5 * (p * p).sum(1)

    return jnp.where((e(new, p2) < e(q, p) + 1)[:, None], new, q)


def _hmc_args(r):
    return W(r, 512, 64), W(r, 128, 64), np.array([0, 1], np.uint32)


program(
    "hmc_chains",
    X8,
    hamiltonian,
    _hmc_args,
    (P(), P("x"), P()),
    P("x"),
    tol=1e-3,
)
program(
    "hmc_data",
    XY,
    hamiltonian,
    _hmc_args,
    (P("y"), P("x"), P()),
    P("x"),
    tol=1e-3,
)


def particles(x, w, u):
    """Systematic resampling: positions in the sums of weights, then rows by them."""
    c = jnp.cumsum(w / w.sum())
    at = jnp.searchsorted(c, (jnp.arange(len(w)) + u) / len(w))
    return x[jnp.minimum(at, len(w) - 1)]


program(
    "particles_rows",
    X8,
    particles,
    lambda r: (W(r, 4096, 16), r.rand(4096).astype(np.float32), np.float32(0.5)),
    (P("x"), P("x"), P()),
    P("x"),
)


def genetic(pop, fit, a, b, mask):
    """A tournament, a crossover, and the best kept."""
    parents = jnp.where((fit[a] > fit[b])[:, None], pop[a], pop[b])
    child = jnp.where(mask, parents, jnp.roll(parents, 1, 0))
    return child.at[0].set(pop[jnp.argmax(fit)])


program(
    "genetic_rows",
    X8,
    genetic,
    lambda r: (W(r, 1024, 64), W(r, 1024), ids(r, 1024), ids(r, 1024), r.rand(1024, 64) > 0.5),
    (P("x"), P("x"), P("x"), P("x"), P("x")),
    P("x"),
)


def tempering(x, beta):
    """Neighbouring temperatures change places."""
    e = (x * x).sum(1)
    pairs = x.reshape(-1, 2, x.shape[1])
    swap = (e.reshape(-1, 2) @ jnp.array([1.0, -1.0])) * (beta.reshape(-1, 2) @ jnp.array([1.0, -1.0])) > 0
    pairs = jnp.where(swap[:, None, None], pairs[:, ::-1], pairs)
    rest = jnp.roll(pairs.reshape(x.shape), 1, 0)
    return jnp.where((jnp.arange(len(x)) % 2 == 0)[:, None], rest, pairs.reshape(x.shape))


program(
    "tempering",
    X8,
    tempering,
    lambda r: (W(r, 64, 1024), np.linspace(0, 1, 64, dtype=np.float32)),
    (P("x"), P("x")),
    P("x"),
)


# ---- transforms
def hadamard(x):
    """Walsh-Hadamard transform by butterflies."""
    n, h = x.shape[0], 1
    while h < n:
        y = x.reshape(n // (2 * h), 2, h, -1)
        x = jnp.stack([y[:, 0] + y[:, 1], y[:, 0] - y[:, 1]], 1).reshape(n, -1)
        h *= 2
    return x


program("hadamard_rows", X8, hadamard, lambda r: (W(r, 256, 128),), (P("x"),), P("x"))
program("hadamard_2d", XY, hadamard, lambda r: (W(r, 256, 128),), (P("x", "y"),), P("x", "y"))


def haar(x):
    """Three levels of Haar wavelets."""
    out = []
    for _ in range(3):
        out.append((x[::2] - x[1::2]) / 2)
        x = (x[::2] + x[1::2]) / 2
    return x, out


program("haar_rows", X8, haar, lambda r: (W(r, 512, 128),), (P("x"),), (P("x"), P("x")))


def toeplitz(c, x):
    """A circulant product by FFT."""
    return jnp.fft.irfft(jnp.fft.rfft(c, axis=0)[:, None] * jnp.fft.rfft(x, axis=0), n=len(x), axis=0)


program("toeplitz_columns", X8, toeplitz, lambda r: (W(r, 512), W(r, 512, 256)), (P(), P(None, "x")))
program("toeplitz_rows", X8, toeplitz, lambda r: (W(r, 512), W(r, 512, 256)), (P("x"), P("x")), P("x"))


def split_step(psi, v, k):
    """Schroedinger's equation in two dimensions: half steps in space and momentum."""

    def step(psi, _):
        psi = jnp.fft.ifft2(
            jnp.fft.fft2(psi * jnp.exp(-0.5j * v)) * jnp.exp(-1j * (k[:, None] ** 2 + k[None] ** 2))
        )
        return psi * jnp.exp(-0.5j * v), None

    return lax.scan(step, psi, None, 3)[0]


def _split_step_args(r):
    psi = W(r, 128, 128) + 1j * W(r, 128, 128)
    return psi.astype(np.complex64), W(r, 128, 128), W(r, 128)


program(
    "split_step_rows",
    X8,
    split_step,
    _split_step_args,
    (P("x"), P("x"), P()),
    P("x"),
)
program(
    "split_step_2d",
    XY,
    split_step,
    _split_step_args,
    (P("x", "y"), P("x", "y"), P()),
    P("x", "y"),
)
