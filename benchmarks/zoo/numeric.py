"""Norms, FFTs, random numbers, loops, matrix chains, linear algebra."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .common import W, ln, rng
from .registry import A8, AB, Built, case
from .traffic import A2A, AG, AR


@case("layernorm_feature_sharded_fwd", [("data", 2), ("model", 4)], "norm")
def _(m):
    r = rng()
    return Built(
        ln,
        (W(r, 16, 128, 1024, scale=1), np.ones(1024, np.float32), np.zeros(1024, np.float32)),
        (P("data", None, "model"), P("model"), P("model")),
        good=2 * AR(4, 8 * 128 * 4),
        why="mean and variance of each token over model",
    )


def _fft(name, spec, f, good, why, shape=(64, 1024)):
    @case(name, A8, "fft")
    def _(m):
        r = rng()
        return Built(
            f,
            ((W(r, *shape, scale=1) + 1j * W(r, *shape, scale=1)).astype(np.complex64),),
            (spec,),
            good=good,
            why=why,
        )


_fft("fft_batch_sharded", P("a"), lambda x: jnp.fft.fft(x), 0, "batch sharded")
_fft(
    "fft_dim_sharded",
    P(None, "a"),
    lambda x: jnp.fft.fft(x),
    A2A(8, 64 * 1024 * 8 / 8),
    "all-to-all to shard the batch instead, output free",
)
_fft(
    "fft2_row_sharded",
    P("a"),
    lambda x: jnp.fft.fft2(x),
    A2A(8, 256 * 256 * 8 / 8),
    "local fft of rows, one all-to-all, local fft of columns",
    (256, 256),
)


@case("random_normal", AB, "random")
def _(m):
    return Built(
        lambda k: jax.random.normal(jax.random.wrap_key_data(k), (1024, 1024)),
        (np.array([1, 2], np.uint32),),
        (P(),),
        P("a", "b"),
        good=0,
        why="counter based bits: each device draws its tile",
    )


@case("dropout_dp", [("data", 8)], "random")
def _(m):
    r = rng()

    def f(k, w, x):
        h = jax.nn.relu(x @ w)
        return h * jax.random.bernoulli(jax.random.wrap_key_data(k), 0.9, h.shape) / 0.9

    return Built(
        f,
        (np.array([1, 2], np.uint32), W(r, 256, 512), W(r, 1024, 256, scale=1)),
        (P(), P(), P("data")),
        good=0,
        why="mask drawn locally",
    )


# ============================================================================= loops, chains, linear algebra
@case("power_iteration", A8, "loop")
def _(m):
    r = rng()

    def f(A, v):
        def body(i, v):
            w = A @ v
            return w / jnp.linalg.norm(w)

        return lax.fori_loop(0, 10, body, v)

    return Built(
        f,
        (r.rand(1024, 1024).astype(np.float32), r.rand(1024).astype(np.float32)),
        (P("a", None), P("a")),
        P("a"),
        good=10 * (AG(8, 4096) + AR(8, 4)),
        why="per iteration: all-gather v, scalar all-reduce",
    )


@case("matrix_chain_awkward", AB, "chain")
def _(m):
    r = rng()
    g = AG(4, 256 * 256 * 4) + AR(2, 256 * 256 * 4) + AG(4, 256 * 512 * 4)
    return Built(
        lambda A, B, C: A @ B @ C,
        (W(r, 1024, 512, scale=1), W(r, 512, 256), W(r, 256, 1024)),
        (P("a", "b"), P("b", "a"), P("a", "b")),
        good=g,
        why="gather B over a, sum A@B over b, gather C over a; output left P(a,b)",
    )


@case("matmul_2d_2d", AB, "chain")
def _(m):
    r = rng()
    return Built(
        lambda A, B: A @ B,
        (W(r, 1024, 1024, scale=1), W(r, 1024, 1024)),
        (P("a", "b"), P("a", "b")),
        P("a", "b"),
        good=AG(2, 256 * 1024 * 4) + AG(4, 1024 * 512 * 4),
        why="SUMMA: gather A's row panel over b and B's column panel over a",
    )


@case("cholesky_batch", A8, "linalg")
def _(m):
    r = rng()
    a = W(r, 16, 128, 128, scale=0.1)
    return Built(
        jnp.linalg.cholesky,
        (a @ a.transpose(0, 2, 1) + np.eye(128, dtype=np.float32),),
        (P("a"),),
        P("a"),
        good=0,
        why="batch sharded",
        tol=1e-3,
    )
