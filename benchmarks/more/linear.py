"""Linear algebra, and optimisation by it."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W

from .registry import program

X8 = [("x", 8)]
XY = [("x", 4), ("y", 2)]


# ---- linear algebra
def lanczos(a, v):
    def step(c, _):
        v, old, beta = c
        w = a @ v - beta * old
        alpha = w @ v
        w = w - alpha * v
        beta = jnp.sqrt(w @ w)
        return (w / (beta + 1e-6), v, beta), (alpha, beta)

    return lax.scan(step, (v / jnp.sqrt(v @ v), 0 * v, 0.0), None, 8)[1]


def _symmetric(r, n=512):
    a = W(r, n, n)
    return (a + a.T) / 2 + np.eye(n, dtype=np.float32)


program("lanczos_rows", X8, lanczos, lambda r: (_symmetric(r), W(r, 512)), (P("x"), P()), tol=1e-3)
program("lanczos_2d", XY, lanczos, lambda r: (_symmetric(r), W(r, 512)), (P("x", "y"), P("y")), tol=1e-3)


def arnoldi(a, v):
    """GMRES's basis, with modified Gram-Schmidt as classical."""
    q = jnp.zeros((9, len(v))).at[0].set(v / jnp.sqrt(v @ v))

    def step(i, q):
        w = a @ q[i]
        w = w - q.T @ (q @ w)
        return q.at[i + 1].set(w / (jnp.sqrt(w @ w) + 1e-6))

    return lax.fori_loop(0, 8, step, q)


program("arnoldi_rows", X8, arnoldi, lambda r: (_symmetric(r), W(r, 512)), (P("x"), P("x")), tol=1e-3)


def cholesky_qr(a):
    r = jnp.linalg.cholesky(a.T @ a).T
    return jax.scipy.linalg.solve_triangular(r.T, a.T, lower=True).T, r


program("cholesky_qr", X8, cholesky_qr, lambda r: (W(r, 4096, 64),), (P("x"),), tol=1e-3)


def randomized_range(a, omega):
    y = a @ omega
    for _ in range(2):
        y = a @ (a.T @ y)
        y = y / jnp.sqrt((y * y).sum(0))
    return y.T @ a


program("randomized_rows", X8, randomized_range, lambda r: (W(r, 2048, 512), W(r, 512, 32)), (P("x"), P()))
program("randomized_2d", XY, randomized_range, lambda r: (W(r, 1024, 512), W(r, 512, 32)), (P("x", "y"), P()))


def matrix_exponential(a):
    x, term = jnp.eye(len(a)) + a / 16, a / 16
    for k in range(2, 5):
        term = term @ a / (16 * k)
        x = x + term
    for _ in range(4):
        x = x @ x
    return x


program("matrix_exponential_rows", X8, matrix_exponential, lambda r: (W(r, 256, 256),), (P("x"),), P("x"))
program(
    "matrix_exponential_2d", XY, matrix_exponential, lambda r: (W(r, 256, 256),), (P("x", "y"),), P("x", "y")
)


def _regular(r):
    return (_symmetric(r, 256) + 4 * np.eye(256, dtype=np.float32),)


def newton_schulz(a):
    x = a.T / (jnp.abs(a).sum(0).max() * jnp.abs(a).sum(1).max())
    return lax.fori_loop(0, 6, lambda _, x: 2 * x - x @ (a @ x), x)


program(
    "inverse_rows",
    X8,
    newton_schulz,
    _regular,
    (P("x"),),
    P("x"),
    tol=1e-3,
)
program(
    "inverse_2d",
    XY,
    newton_schulz,
    _regular,
    (P("x", "y"),),
    P("x", "y"),
    tol=1e-3,
)


def kron_matvec(a, b, v):
    return (a @ v.reshape(a.shape[1], b.shape[1]) @ b.T).reshape(-1)


program(
    "kron_matvec",
    XY,
    kron_matvec,
    lambda r: (W(r, 256, 256), W(r, 128, 128), W(r, 256 * 128)),
    (P("x"), P("y"), P(("x", "y"))),
)


def block_lu(a):
    n = len(a) // 2
    a11, a12, a21, a22 = a[:n, :n], a[:n, n:], a[n:, :n], a[n:, n:]
    return a22 - a21 @ jnp.linalg.solve(a11, a12)


program(
    "schur_complement",
    X8,
    block_lu,
    _regular,
    (P(None, "x"),),
    tol=1e-3,
)


def strassen(a, b):
    n = len(a) // 2
    (a1, a2), (a3, a4) = ([m[:n, :n], m[:n, n:]] for m in (a, jnp.roll(a, -n, 0)))
    (b1, b2), (b3, b4) = ([m[:n, :n], m[:n, n:]] for m in (b, jnp.roll(b, -n, 0)))
    m1, m2, m3, m4 = (a1 + a4) @ (b1 + b4), (a3 + a4) @ b1, a1 @ (b2 - b4), a4 @ (b3 - b1)
    m5, m6, m7 = (a1 + a2) @ b4, (a3 - a1) @ (b1 + b2), (a2 - a4) @ (b3 + b4)
    return jnp.block([[m1 + m4 - m5 + m7, m3 + m5], [m2 + m4, m1 - m2 + m3 + m6]])


program("strassen_rows", X8, strassen, lambda r: (W(r, 256, 256), W(r, 256, 256)), (P("x"), P()))


# ---- optimisation
def admm_lasso(a, b, z, u, chol):
    atb = a.T @ b

    def step(c, _):
        z, u = c
        x = jax.scipy.linalg.cho_solve((chol, True), atb + z - u)
        z = jnp.sign(x + u) * jnp.maximum(jnp.abs(x + u) - 0.01, 0)
        return (z, u + x - z), None

    return lax.scan(step, (z, u), None, 5)[0]


def _lasso_args(r):
    a = W(r, 1024, 128)
    return (
        a,
        W(r, 1024),
        np.zeros(128, np.float32),
        np.zeros(128, np.float32),
        np.linalg.cholesky(a.T @ a + np.eye(128)).astype(np.float32),
    )


program("admm_lasso", X8, admm_lasso, _lasso_args, (P("x"), P("x"), P(), P(), P()), tol=1e-3)


def logistic_newton(w, x, y):
    def step(w, _):
        p = jax.nn.sigmoid(x @ w)
        h = (x * (p * (1 - p))[:, None]).T @ x + 1e-1 * jnp.eye(x.shape[1])
        return w - jnp.linalg.solve(h, x.T @ (p - y)), None

    return lax.scan(step, w, None, 4)[0]


program(
    "logistic_newton",
    X8,
    logistic_newton,
    lambda r: (np.zeros(64, np.float32), W(r, 2048, 64), (r.rand(2048) > 0.5).astype(np.float32)),
    (P(), P("x"), P("x")),
    tol=1e-3,
)


def fista(a, b):
    def step(c, k):
        x, y = c
        new = y - 0.1 * (a.T @ (a @ y - b))
        new = jnp.sign(new) * jnp.maximum(jnp.abs(new) - 0.001, 0)
        return (new, new + k / (k + 3) * (new - x)), None

    x = jnp.zeros(a.shape[1])
    return lax.scan(step, (x, x), jnp.arange(6.0))[0][0]


program("fista_rows", X8, fista, lambda r: (W(r, 1024, 512), W(r, 1024)), (P("x"), P("x")))
program("fista_columns", X8, fista, lambda r: (W(r, 1024, 512), W(r, 1024)), (P(None, "x"), P()))
program("fista_2d", XY, fista, lambda r: (W(r, 1024, 512), W(r, 1024)), (P("x", "y"), P("x")), P("y"))


def two_loop(g, s, y):
    """L-BFGS's direction from its history."""
    rho = 1 / ((s * y).sum(1) + 1e-3)
    al = []
    for i in range(len(s) - 1, -1, -1):
        al.append(rho[i] * (s[i] @ g))
        g = g - al[-1] * y[i]
    for i in range(len(s)):
        g = g + (al[len(s) - 1 - i] - rho[i] * (y[i] @ g)) * s[i]
    return g


program(
    "lbfgs",
    X8,
    two_loop,
    lambda r: (W(r, 65536), W(r, 5, 65536), W(r, 5, 65536)),
    (P("x"), P(None, "x"), P(None, "x")),
    P("x"),
    tol=1e-3,
)


def nmf(v, w, h):
    def step(c, _):
        w, h = c
        h = h * (w.T @ v) / (w.T @ w @ h + 1e-6)
        return (w * (v @ h.T) / (w @ (h @ h.T) + 1e-6), h), None

    return lax.scan(step, (w, h), None, 4)[0]


def _nmf_args(r):
    return np.abs(W(r, 1024, 512)), np.abs(W(r, 1024, 32)), np.abs(W(r, 32, 512))


program("nmf_rows", X8, nmf, _nmf_args, (P("x"), P("x"), P()), (P("x"), P()))
program("nmf_2d", XY, nmf, _nmf_args, (P("x", "y"), P("x"), P(None, "y")), (P("x"), P(None, "y")))
