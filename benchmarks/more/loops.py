"""Loops over slices of what is sharded along the dim that they take slices along: each iteration by itself, or with a state."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, sgd_step
from benchmarks.zoo.registry import A8, FREE

from .registry import program

E8, DE = [("expert", 8)], [("data", 2), ("expert", 4)]


def solved(a, b):
    """One system at a time: the solver takes no batches."""
    return lax.map(lambda ab: jax.scipy.sparse.linalg.cg(lambda v: ab[0] @ v, ab[1], maxiter=4)[0], (a, b))


def experts(x, up, down):
    def body(total, ws):
        return total + jax.nn.gelu(x @ ws[0]) @ ws[1], None

    return lax.scan(body, jnp.zeros_like(x), (up, down))[0]


def experts_train(x, up, down):
    grads = jax.grad(lambda up, down: (experts(x, up, down) ** 2).mean(), (0, 1))(up, down)
    return tuple(w - 0.1 * g for w, g in zip((up, down), grads, strict=True))


def accumulated(w, x, y):
    """What the program itself cuts into microbatches."""

    def body(total, batch):
        x, y = batch
        return total + jax.grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w), None

    cut = [v.reshape(16, -1, v.shape[-1]) for v in (x, y)]
    return w - 0.01 * lax.scan(body, jnp.zeros_like(w), tuple(cut))[0]


def row_by_row(x):
    def body(i, out):
        return out.at[i].set(jnp.cumsum(x[i]) / (i + 1))

    return lax.fori_loop(0, len(x), body, jnp.zeros_like(x))


def backwards(x):
    return lax.scan(lambda most, row: (jnp.maximum(most, row), jnp.sort(row)), x[0], x, reverse=True)


def state_space_duality(x, log_decay, b, c):
    """Mamba 2: products inside chunks, a state from one to the next."""

    def chunk(state, xabc):
        x, a, b, c = xabc
        total = jnp.cumsum(a, 1)
        within = jnp.exp(jnp.where(jnp.tri(a.shape[1]) > 0, total[:, :, None] - total[:, None], -jnp.inf))
        inside = jnp.einsum("hqk,hqn,hkn,hkp->hqp", within, c, b, x)
        across = jnp.einsum("hqn,hnp->hqp", c * jnp.exp(total)[..., None], state)
        left = jnp.exp(total[:, -1:] - total)[..., None] * b
        return jnp.exp(total[:, -1])[:, None, None] * state + jnp.einsum(
            "hkn,hkp->hnp", left, x
        ), inside + across

    return lax.scan(chunk, jnp.zeros((x.shape[1], b.shape[-1], x.shape[-1])), (x, log_decay, b, c))[1]


def linear_attention_train(w, x):
    """A layer of it, with causal masks inside the chunks."""

    def loss(w, x):
        q, k, v = (x @ m for m in w)
        mask = jnp.tri(q.shape[2])

        def chunk(state, qkv):
            q, k, v = qkv
            inside = jnp.einsum("bqd,bkd->bqk", q, k) * mask
            return state + jnp.einsum("bkd,bke->bde", k, v), inside @ v + q @ state

        out = lax.scan(chunk, jnp.zeros((x.shape[1], w[0].shape[1], w[2].shape[1])), (q, k, v))[1]
        return (out**2).mean()

    return sgd_step(loss)(w, x)


def _systems(r):
    a = W(r, 32, 64, 64)
    return a @ a.transpose(0, 2, 1) + 8 * jnp.eye(64), W(r, 32, 64)


def _experts(r):
    return W(r, 256, 128, scale=1), W(r, 16, 128, 256), W(r, 16, 256, 128)


program("map_systems", A8, solved, _systems, (P("a"), P("a")), P("a"), 1e-3)
program("experts_in_turn", E8, experts, _experts, (P(), P("expert"), P("expert")), P(), 1e-3)
program("experts_in_turn_dp", DE, experts, _experts, (P("data"), P("expert"), P("expert")), P("data"), 1e-3)
program(
    "experts_in_turn_train", E8, experts_train, _experts, (P(), P("expert"), P("expert")), P("expert"), 1e-3
)
program(
    "grad_accum_cut",
    [("data", 8)],
    accumulated,
    lambda r: (W(r, 128, 128), W(r, 2048, 128, scale=1), W(r, 2048, 128, scale=1)),
    (P(), P("data"), P("data")),
    P(),
    1e-3,
)
program("rows_in_turn", A8, row_by_row, lambda r: (W(r, 64, 512, scale=1),), (P("a"),), P("a"), 1e-3)
program("rows_backwards", A8, backwards, lambda r: (W(r, 64, 512, scale=1),), (P("a"),), (FREE, P("a")))
program(
    "mamba2_seq",
    A8,
    state_space_duality,
    lambda r: (
        W(r, 16, 4, 64, 32, scale=1),
        -r.rand(16, 4, 64).astype("float32"),
        *[W(r, 16, 4, 64, 16, scale=1) for _ in range(2)],
    ),
    (P("a"),) * 4,
    P("a"),
    1e-3,
)
program(
    "linear_attention_seq_train",
    A8,
    linear_attention_train,
    lambda r: ([W(r, 64, 32) for _ in range(3)], W(r, 16, 2, 64, 64, scale=1)),
    (P(), P("a")),
    P(),
    1e-3,
)
