"""Iterations, graphs and particles, linear algebra."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, ids
from benchmarks.zoo.registry import A8, AB, FREE

from .registry import ABC, program

# ---- loops
program(
    "jacobi_3d",
    ABC,
    lambda u: lax.fori_loop(
        0, 5, lambda i, u: sum(jnp.roll(u, s, d) for s in (1, -1) for d in range(3)) / 6, u
    ),
    lambda r: (W(r, 64, 64, 64, scale=1),),
    (P("a", "b", "c"),),
    P("a", "b", "c"),
)
program(
    "heat_dirichlet",
    AB,
    lambda u: lax.fori_loop(
        0,
        5,
        lambda i, u: u.at[1:-1, 1:-1].set(
            u[1:-1, 1:-1]
            + 0.1 * (u[2:, 1:-1] + u[:-2, 1:-1] + u[1:-1, 2:] + u[1:-1, :-2] - 4 * u[1:-1, 1:-1])
        ),
        u,
    ),
    lambda r: (W(r, 256, 256, scale=1),),
    (P("a", "b"),),
    P("a", "b"),
)
program(
    "heat_pad",
    AB,
    lambda u: lax.fori_loop(
        0,
        5,
        lambda i, u: (lambda p: u + 0.1 * (p[2:, 1:-1] + p[:-2, 1:-1] + p[1:-1, 2:] + p[1:-1, :-2] - 4 * u))(
            jnp.pad(u, 1)
        ),
        u,
    ),
    lambda r: (W(r, 256, 256, scale=1),),
    (P("a", "b"),),
    P("a", "b"),
)


def cg(A, b):
    def body(i, s):
        x, r_, p, rs = s
        Ap = A @ p
        al = rs / (p @ Ap)
        x = x + al * p
        r_ = r_ - al * Ap
        rn = r_ @ r_
        return x, r_, r_ + rn / rs * p, rn

    return lax.fori_loop(0, 10, body, (jnp.zeros_like(b), b, b, b @ b))[0]


def system(r):
    """A positive matrix, and a right-hand side."""
    a = r.rand(512, 512)
    return (a @ a.T + 512 * np.eye(512)).astype(np.float32), W(r, 512, scale=1)


program(
    "cg",
    A8,
    cg,
    system,
    (P("a"), P("a")),
    P("a"),
    tol=1e-3,
)
program(
    "cg_2d",
    AB,
    cg,
    system,
    (P("a", "b"), P("a")),
    P("a"),
    tol=1e-3,
)


def kmeans(x, c):
    def body(i, c):
        d = ((x[:, None] - c[None]) ** 2).sum(-1)
        a = jax.nn.one_hot(jnp.argmin(d, 1), c.shape[0])
        return (a.T @ x) / (a.sum(0)[:, None] + 1e-6)

    return lax.fori_loop(0, 5, body, c)


program(
    "kmeans",
    [("data", 8)],
    kmeans,
    lambda r: (W(r, 4096, 16, scale=1), W(r, 32, 16, scale=1)),
    (P("data"), P()),
    P(),
    tol=1e-2,
)


def sink(C):
    def body(i, uv):
        u, v = uv
        u = -jax.nn.logsumexp(C + v[None], 1)
        v = -jax.nn.logsumexp(C + u[:, None], 0)
        return u, v

    u, v = lax.fori_loop(0, 8, body, (jnp.zeros(C.shape[0]), jnp.zeros(C.shape[1])))
    return C + u[:, None] + v[None]


program("sinkhorn", AB, sink, lambda r: (W(r, 512, 512, scale=1),), (P("a", "b"),), P("a", "b"))
program(
    "while_power",
    A8,
    lambda A, v: lax.while_loop(
        lambda s: s[1] < 10, lambda s: ((lambda w: w / jnp.linalg.norm(w))(A @ s[0]), s[1] + 1), (v, 0)
    )[0],
    lambda r: (r.rand(512, 512).astype(np.float32), r.rand(512).astype(np.float32)),
    (P(None, "a"), P("a")),
    P("a"),
)
# ---- graphs / particles
program(
    "segment_sum_edges",
    [("edge", 8)],
    lambda e, i: jax.ops.segment_sum(e, i, 1024),
    lambda r: (W(r, 8192, 32, scale=1), ids(r, 8192, hi=1024)),
    (P("edge"), P("edge")),
)


def gnn(x, s, d, w):
    return jax.nn.relu(x + jax.ops.segment_sum(jax.nn.relu(x[s] @ w), d, x.shape[0]))


program(
    "gnn_edges_sharded",
    [("edge", 8)],
    gnn,
    lambda r: (W(r, 1024, 64, scale=1), ids(r, 8192, hi=1024), ids(r, 8192, hi=1024), W(r, 64, 64)),
    (P(), P("edge"), P("edge"), P()),
)
program(
    "gnn_nodes_sharded",
    A8,
    gnn,
    lambda r: (W(r, 1024, 64, scale=1), ids(r, 8192, hi=1024), ids(r, 8192, hi=1024), W(r, 64, 64)),
    (P("a"), P("a"), P("a"), P()),
    P("a"),
)
program(
    "gnn_train",
    A8,
    lambda x, s, d, w, y: (lambda loss, g: (w - 0.1 * g, loss))(
        *jax.value_and_grad(lambda w: jnp.mean((gnn(x, s, d, w) - y) ** 2))(w)
    ),
    lambda r: (
        W(r, 1024, 64, scale=1),
        ids(r, 8192, hi=1024),
        ids(r, 8192, hi=1024),
        W(r, 64, 64),
        W(r, 1024, 64, scale=1),
    ),
    (P(), P("a"), P("a"), P(), P()),
    (P(), FREE),
)


def nbody(x, m):
    d = x[None] - x[:, None]
    r2 = (d**2).sum(-1) + 1e-2
    return (d * (m[None] / r2**1.5)[..., None]).sum(1)


program(
    "nbody",
    A8,
    nbody,
    lambda r: (W(r, 1024, 3, scale=1), r.rand(1024).astype(np.float32)),
    (P("a"), P("a")),
    P("a"),
    tol=1e-3,
)
program(
    "nbody_loop",
    A8,
    lambda x, v, m: lax.fori_loop(
        0, 5, lambda i, s: (s[0] + 0.01 * s[1], s[1] + 0.01 * nbody(s[0], m)), (x, v)
    ),
    lambda r: (W(r, 512, 3, scale=1), W(r, 512, 3, scale=1), r.rand(512).astype(np.float32)),
    (P("a"), P("a"), P("a")),
    (P("a"), P("a")),
    tol=1e-3,
)
program(
    "nbody_2d",
    AB,
    nbody,
    lambda r: (W(r, 1024, 3, scale=1), r.rand(1024).astype(np.float32)),
    (P(("a", "b")), P(("a", "b"))),
    P(("a", "b")),
    tol=1e-3,
)
program(
    "pic_deposit",
    A8,
    lambda x, q: (
        jnp.zeros((64, 64)).at[(x[:, 0] * 63).astype(jnp.int32), (x[:, 1] * 63).astype(jnp.int32)].add(q)
    ),
    lambda r: (r.rand(8192, 2).astype(np.float32), W(r, 8192, scale=1)),
    (P("a"), P("a")),
)
program(
    "pic_gather",
    A8,
    lambda g, x: g[(x[:, 0] * 63).astype(jnp.int32), (x[:, 1] * 63).astype(jnp.int32)],
    lambda r: (W(r, 64, 64, scale=1), r.rand(8192, 2).astype(np.float32)),
    (P("a"), P("a")),
)
program(
    "pairwise_kernel",
    AB,
    lambda x, y: jnp.exp(-((x[:, None] - y[None]) ** 2).sum(-1)) @ y,
    lambda r: (W(r, 512, 8, scale=1), W(r, 512, 8, scale=1)),
    (P("a"), P("b")),
)
# ---- linalg
program(
    "tri_solve_batch",
    A8,
    lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
    lambda r: (np.tril(W(r, 16, 64, 64, scale=0.1)) + np.eye(64, dtype=np.float32), W(r, 16, 64, 8, scale=1)),
    (P("a"), P("a")),
    tol=1e-3,
)
program(
    "tri_solve_rhs",
    A8,
    lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
    lambda r: (np.tril(W(r, 128, 128, scale=0.1)) + np.eye(128, dtype=np.float32), W(r, 128, 512, scale=1)),
    (P(), P(None, "a")),
    tol=1e-3,
)
program(
    "qr_batch", A8, lambda a: jnp.linalg.qr(a)[1], lambda r: (W(r, 16, 64, 32, scale=1),), (P("a"),), tol=1e-2
)
program("gram", A8, lambda x: x.T @ x, lambda r: (W(r, 8192, 128, scale=1),), (P("a"),))
program(
    "covariance",
    A8,
    lambda x: (lambda c: c.T @ c / x.shape[0])(x - x.mean(0)),
    lambda r: (W(r, 8192, 128, scale=1),),
    (P("a"),),
    tol=1e-3,
)
program(
    "outer_chain",
    AB,
    lambda A, x, y: (A @ x)[:, None] * (y @ A)[None],
    lambda r: (W(r, 512, 512, scale=1), W(r, 512, scale=1), W(r, 512, scale=1)),
    (P("a", "b"), P(), P()),
)
program(
    "matmul_k_sharded",
    A8,
    lambda a, b: a @ b,
    lambda r: (W(r, 512, 2048, scale=1), W(r, 2048, 512)),
    (P(None, "a"), P("a")),
    P("a"),
)
program(
    "matmul_3d",
    ABC,
    lambda a, b: a @ b,
    lambda r: (W(r, 512, 512, scale=1), W(r, 512, 512)),
    (P("a", "b"), P("b", "c")),
    P("a", "c"),
)
program(
    "batch_matmul_chain",
    AB,
    lambda a, b, c: (a @ b) @ c,
    lambda r: (W(r, 8, 128, 256, scale=1), W(r, 8, 256, 128), W(r, 8, 128, 256)),
    (P("a"), P("b"), P("a", None, "b")),
)
program(
    "low_rank",
    A8,
    lambda x, u, v: (x @ u) @ v,
    lambda r: (W(r, 512, 1024, scale=1), W(r, 1024, 16), W(r, 16, 1024)),
    (P(None, "a"), P("a"), P(None, "a")),
    P(None, "a"),
)
program(
    "lora",
    [("data", 2), ("model", 4)],
    lambda x, w, a, b: x @ w + (x @ a) @ b,
    lambda r: (W(r, 512, 512, scale=1), W(r, 512, 512), W(r, 512, 8), W(r, 8, 512)),
    (P("data", "model"), P("model"), P("model"), P()),
)
program(
    "einsum_swiglu",
    [("data", 2), ("model", 4)],
    lambda x, g, u, d: (jax.nn.silu(x @ g) * (x @ u)) @ d,
    lambda r: (W(r, 512, 256, scale=1), W(r, 256, 1024), W(r, 256, 1024), W(r, 1024, 256)),
    (P("data"), P(None, "model"), P(None, "model"), P("model")),
)
