"""Reductions, scans and orders along a sharded dim."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .registry import HARNESS, Program, bug, integers, normal


# the pairs of value and index of 7 devices, for each of 4 rows
@bug("tenstorrent/tt-mlir#8623", what="argmax along a sharded dim", sent=7 * 4 * 8, model=8)
def argmax_of_sharded() -> Program:
    args = normal(4, 64), normal(64, 512, seed=1)
    return Program(lambda x, w: jnp.argmax(x @ w, -1), args, (P(), P(None, "model")), P(), tol=0.0)


# a maximum and a sum for each of 16 rows, then the second product's 16 x 64 partial sums
@bug(
    "tenstorrent/tt-xla#6075",
    what="softmax over a sharded dim, then a product contracting it",
    sent=2 * 7 / 8 * (2 * 16 * 4 + 16 * 64 * 4),
    model=8,
)
def softmax_of_sharded() -> Program:
    def f(x, embedding):
        return jax.nn.softmax(40 * (x @ embedding.T), axis=-1) @ embedding

    return Program(f, (normal(16, 64), normal(512, 64, seed=1)), (P(), P("model")), P())


# the best pairs of value and index of 7 devices, for 1 and for 4
@bug("jax-ml/jax#19271", what="top_k along a sharded dim", sent=7 * 2 * (1 + 4) * 8, data=8)
def top_k_of_sharded() -> Program:
    def f(x):
        return lax.top_k(x, k=1), lax.top_k(x, k=4)

    return Program(f, (normal(2, 8 * 1024),), (P(None, "data"),))


# the result leaves whole: an all-gather of it, and the totals of the shards
@bug(
    "jax-ml/jax#21403",
    what="cumsum along a sharded dim",
    sent=7 / 8 * 8 * 1024 * 4 + 8,
    dp=4,
    sp=2,
)
def cumsum_of_sharded() -> Program:
    return Program(
        lambda x: jnp.cumsum(x, axis=-1),
        (integers(2, 8, 1024),),
        (P("dp", "sp"),),
        P(),
    )


@bug("openxla/xla#5963", what="reduction of a replicated array: whole on every device", sent=8, x=8)
def reduction_of_replicated() -> Program:
    return Program(lambda x: jnp.max(jnp.abs(x)), (normal(512, 512),), (P(),), P())


@bug(HARNESS, what="reduction with a non-zero initial value over a sharded dim", sent=6 * 2, x=2)
def reduce_from_three() -> Program:
    def f(x):
        return lax.reduce(x, np.float16(3), lax.add, (0,))

    args = (integers(9, 4, 6).astype(np.float16),)
    return Program(f, args, (P("x"),), P())


# windows of both blocks of the first dim: each goes to the other device; the other dims' windows don't cross blocks
@bug(
    HARNESS,
    what="select_and_scatter_add with sharded spatial dims and strides",
    sent=16 * 48 * 4,
    x=2,
    y=2,
)
def select_and_scatter_add() -> Program:
    def f(x, source):
        def pooled(x):
            return lax.reduce_window(x, -jnp.inf, lax.max, (2, 2, 2), (1, 2, 3), "VALID")

        return jax.vjp(pooled, x)[1](source)[0]

    args = normal(2, 32, 48), normal(1, 16, 16, seed=1)
    return Program(f, args, (P("x", "y"), P(None, "y")), P("x", "y"))


# All keys to all devices. Of shapes that don't depend on the data, exchanges of whole blocks are the other way to sort: six
# between pairs of 8 devices, of keys and indices.
@bug("jax-ml/jax#35650", what="argsort of a sharded array", sent=7 / 8 * 8192 * 4, x=8)
def argsort_of_sharded() -> Program:
    return Program(jnp.argsort, (normal(8192),), (P("x"),), P("x"))


@bug("pytorch/pytorch#163193", what="a scalar added to the sum of a sharded array", sent=2 * 4, x=8)
def sum_plus_scalar() -> Program:
    return Program(lambda x: jnp.sum(x) + 10, (np.arange(64, dtype=np.float32),), (P("x"),), P())


@bug("pytorch/pytorch#149768", what="gradients clipped by their norm", sent=2 * 4 * 7 / 8, x=8)
def clipped_gradients() -> Program:
    def f(a, b):
        norm = jnp.sqrt(jnp.sum(a * a) + jnp.sum(b * b))
        scale = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
        return a * scale, b * scale

    args = normal(64, 16), normal(32, seed=1)
    return Program(f, args, (P("x"), P("x")), (P("x"), P("x")))


@bug(
    "pytorch/pytorch#159856",
    what="norm of a product whose partial sums are not reduced yet",
    sent=2 * 7 / 8 * 16 * 4 + 8,
    x=8,
)
def norm_of_partial() -> Program:
    def f(a, b):
        return jnp.linalg.norm(a @ b)

    return Program(f, (normal(16, 64), normal(64, seed=1)), (P(None, "x"), P("x")), P())


# a boolean of each element to all devices, where the result is wanted
@bug("jax-ml/jax#29654", what="nonzero of a sharded array: cumulative sums, bincount", sent=7 / 8 * 1024, s=8)
def nonzero_of_sharded() -> Program:
    def f(x):
        return jnp.nonzero(x > 0, size=512, fill_value=-1)[0]

    return Program(f, (normal(1024),), (P("s"),), P())
