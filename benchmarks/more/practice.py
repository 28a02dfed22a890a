"""Steps of training and serving as they are written in practice: optimizers, losses, decoding."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, ids, sgd_step
from benchmarks.zoo.mlp import mlp, mlp_params, mse

from .registry import program

D8, M8 = [("data", 8)], [("model", 8)]
DM = [("data", 4), ("model", 2)]
D2M4 = [("data", 2), ("model", 4)]
F8 = [("fsdp", 8)]


# ---- optimizers
def adafactor(p, row, col, g):
    row = 0.9 * row + 0.1 * (g * g).mean(1)
    col = 0.9 * col + 0.1 * (g * g).mean(0)
    u = g * lax.rsqrt(row[:, None] * col[None, :] / row.mean() + 1e-9)
    u = u / jnp.maximum(1.0, jnp.sqrt((u * u).mean()))
    return p - 1e-2 * u, row, col


program(
    "adafactor_fsdp",
    F8,
    adafactor,
    lambda r: (W(r, 512, 512), np.ones(512, np.float32), np.ones(512, np.float32), W(r, 512, 512)),
    (P("fsdp"), P("fsdp"), P(), P("fsdp")),
    (P("fsdp"), P("fsdp"), P()),
)


def lamb(ps, g):
    def one(p, g):
        u = g / (jnp.abs(g) + 1e-3) + 0.01 * p
        return p - 1e-2 * jnp.sqrt((p * p).sum()) / (jnp.sqrt((u * u).sum()) + 1e-6) * u

    return jax.tree.map(one, ps, g)


program(
    "lamb_fsdp",
    F8,
    lamb,
    lambda r: ([W(r, 256, 512), W(r, 512, 128)], [W(r, 256, 512), W(r, 512, 128)]),
    (P("fsdp"), P("fsdp")),
    P("fsdp"),
)


def muon(p, g):
    x = g / (jnp.sqrt((g * g).sum()) + 1e-6)
    for _ in range(3):
        a = x @ x.T
        x = 3.4445 * x + (-4.775 * a + 2.0315 * (a @ a)) @ x
    return p - 0.02 * x


for _spec, _mesh, _name in (
    (P("fsdp"), F8, "fsdp"),
    (P("data", "model"), DM, "2d"),
    (P(None, "model"), M8, "tp"),
):
    program(
        f"muon_{_name}",
        _mesh,
        muon,
        lambda r: (W(r, 256, 512), W(r, 256, 512)),
        (_spec, _spec),
        _spec,
        tol=1e-3,
    )


def ema_sgd(ps, ema, x, y):
    ps, loss = sgd_step(mse(mlp))(ps, x, y)
    return ps, jax.tree.map(lambda e, p: 0.99 * e + 0.01 * p, ema, ps), loss


def _mlp_args(r, rows=256):
    ps = mlp_params(r, [256, 512, 256])
    return ps, W(r, rows, 256, scale=1), W(r, rows, 256, scale=1)


program(
    "ema_zero",
    D8,
    ema_sgd,
    lambda r: (lambda ps, x, y: (ps, ps, x, y))(*_mlp_args(r, 512)),
    (P(), P("data"), P("data"), P("data")),
    (P(), P("data"), P()),
)


def sam(ps, x, y):
    L = mse(mlp)
    g = jax.grad(L)(ps, x, y)
    norm = jnp.sqrt(sum((q * q).sum() for q in jax.tree.leaves(g)))
    near = jax.tree.map(lambda p, q: p + 0.05 * q / (norm + 1e-9), ps, g)
    return jax.tree.map(lambda p, q: p - 0.01 * q, ps, jax.grad(L)(near, x, y))


program("sam_dp", D8, sam, lambda r: _mlp_args(r, 1024), (P(), P("data"), P("data")), P())


def mixed_precision(ps, x, y):
    def loss(ps):
        half = jax.tree.map(lambda p: p.astype(jnp.bfloat16), ps)
        return 128.0 * mse(mlp)(half, x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)).astype(jnp.float32)

    g = jax.tree.map(lambda q: q / 128.0, jax.grad(loss)(ps))
    fine = jnp.all(jnp.array([jnp.isfinite(q).all() for q in jax.tree.leaves(g)]))
    return jax.tree.map(lambda p, q: jnp.where(fine, p - 0.01 * q, p), ps, g)


program(
    "loss_scaled_fsdp",
    F8,
    mixed_precision,
    lambda r: _mlp_args(r, 512),
    (P("fsdp"), P("fsdp"), P("fsdp")),
    P("fsdp"),
    tol=3e-2,
)
program(
    "loss_scaled_dp",
    D8,
    mixed_precision,
    lambda r: _mlp_args(r, 1024),
    (P(), P("data"), P("data")),
    P(),
    tol=3e-2,
)


# ---- losses
def distilled(w, x, teacher):
    def loss(w):
        student = jax.nn.log_softmax(x @ w, -1)
        return (
            -(jax.nn.softmax(teacher, -1) * student).sum(-1).mean()
            + 1e-4 * (jax.nn.logsumexp(x @ w, -1) ** 2).mean()
        )

    return w - 0.1 * jax.grad(loss)(w)


program(
    "distil_vocab",
    D2M4,
    distilled,
    lambda r: (W(r, 128, 1024), W(r, 256, 128, scale=1), W(r, 256, 1024, scale=1)),
    (P(None, "model"), P("data"), P("data", "model")),
    P(None, "model"),
)


def preference(w, chosen, rejected, ref):
    def score(w, t):
        logp = jax.nn.log_softmax(jax.nn.one_hot(t, 512) @ w, -1)
        return jnp.take_along_axis(logp[:, :-1], t[:, 1:, None], -1)[..., 0].sum(-1)

    def loss(w):
        gap = score(w, chosen) - score(w, rejected) - (score(ref, chosen) - score(ref, rejected))
        return -jax.nn.log_sigmoid(0.1 * gap).mean()

    return w - 0.1 * jax.grad(loss)(w)


program(
    "dpo_vocab",
    DM,
    preference,
    lambda r: (W(r, 512, 512), ids(r, 16, 64, hi=512), ids(r, 16, 64, hi=512), W(r, 512, 512)),
    (P(None, "model"), P("data"), P("data"), P(None, "model")),
    P(None, "model"),
)


def focal(w, x, labels):
    def loss(w):
        logp = jax.nn.log_softmax(x @ w, -1)
        own = jnp.take_along_axis(logp, labels[:, None], -1)[:, 0]
        return -((1 - jnp.exp(own)) ** 2 * own).mean()

    return jax.value_and_grad(loss)(w)


program(
    "focal_vocab",
    M8,
    focal,
    lambda r: (W(r, 128, 2048), W(r, 512, 128, scale=1), ids(r, 512, hi=2048)),
    (P(None, "model"), P(), P()),
    (P(), P(None, "model")),
)


def triplet(w, a, p, n):
    def loss(w):
        e = [x @ w / jnp.sqrt(((x @ w) ** 2).sum(-1, keepdims=True)) for x in (a, p, n)]
        return jax.nn.relu(0.2 + ((e[0] - e[1]) ** 2).sum(-1) - ((e[0] - e[2]) ** 2).sum(-1)).mean()

    return w - 0.1 * jax.grad(loss)(w)


program(
    "triplet_dp",
    D8,
    triplet,
    lambda r: (W(r, 256, 64), *(W(r, 512, 256, scale=1) for _ in range(3))),
    (P(), P("data"), P("data"), P("data")),
    P(),
)


def codebook(x, c):
    near = jnp.argmin((x * x).sum(1)[:, None] - 2 * x @ c.T + (c * c).sum(1)[None], 1)
    hit = jax.nn.one_hot(near, c.shape[0])
    return c[near], 0.9 * c + 0.1 * (hit.T @ x) / (hit.sum(0)[:, None] + 1e-5)


program(
    "vq_codes_sharded",
    M8,
    codebook,
    lambda r: (W(r, 256, 64, scale=1), W(r, 512, 64, scale=1)),
    (P(), P("model")),
    (P(), P("model")),
)
program(
    "vq_rows_sharded",
    D8,
    codebook,
    lambda r: (W(r, 4096, 64, scale=1), W(r, 128, 64, scale=1)),
    (P("data"), P()),
    (P("data"), P()),
)


# ---- decoding
def top_p(logits, key):
    order = jnp.argsort(-logits, axis=-1)
    probs = jax.nn.softmax(jnp.take_along_axis(logits, order, -1), -1)
    kept = jnp.where(jnp.cumsum(probs, -1) - probs < 0.9, probs, 0.0)
    pick = jnp.argmax(
        jnp.log(kept + 1e-9) + jax.random.gumbel(jax.random.wrap_key_data(key), logits.shape), -1
    )
    return jnp.take_along_axis(order, pick[:, None], -1)[:, 0]


program(
    "top_p_vocab",
    M8,
    top_p,
    lambda r: (W(r, 8, 4096, scale=3), np.array([0, 1], np.uint32)),
    (P(None, "model"), P()),
)
program(
    "top_p_batch",
    D8,
    top_p,
    lambda r: (W(r, 64, 512, scale=3), np.array([0, 1], np.uint32)),
    (P("data"), P()),
    P("data"),
)


def beam(scores, logits, cache):
    B, K, V = logits.shape
    flat = (scores[..., None] + jax.nn.log_softmax(logits, -1)).reshape(B, K * V)
    best, i = lax.top_k(flat, K)
    beams = i // V
    return best, i % V, jnp.take_along_axis(cache, beams[..., None, None], 1)


program(
    "beam_search",
    D8,
    beam,
    lambda r: (W(r, 16, 4, scale=1), W(r, 16, 4, 256, scale=1), W(r, 16, 4, 64, 32, scale=1)),
    (P("data"), P("data"), P("data")),
    (P("data"), P("data"), P("data")),
)
program(
    "beam_search_tp",
    D2M4,
    beam,
    lambda r: (W(r, 16, 4, scale=1), W(r, 16, 4, 256, scale=1), W(r, 16, 4, 64, 32, scale=1)),
    (P("data"), P("data", None, "model"), P("data", None, None, "model")),
    (P("data"), P("data"), P("data", None, None, "model")),
)


def paged(cache, table, q):
    k = cache[table]  # sequences, pages, rows, heads, dims
    k = k.reshape(k.shape[0], -1, *k.shape[3:])
    s = jax.nn.softmax(jnp.einsum("bhk,bshk->bhs", q, k), -1)
    return jnp.einsum("bhs,bshk->bhk", s, k)


program(
    "paged_attention_heads",
    M8,
    paged,
    lambda r: (W(r, 64, 16, 8, 32, scale=1), ids(r, 8, 4, hi=64), W(r, 8, 8, 32, scale=0.3)),
    (P(None, None, "model"), P(), P(None, "model")),
    P(None, "model"),
)


def prefill(p, cache, x, at):
    k = jnp.einsum("bsd,dhk->bshk", x, p["k"])
    cache = lax.dynamic_update_slice(cache, k, (0, at, 0, 0))
    s = jnp.einsum("bshk,bthk->bhst", jnp.einsum("bsd,dhk->bshk", x, p["q"]), cache)
    s = jnp.where(jnp.arange(cache.shape[1]) <= at + jnp.arange(x.shape[1])[:, None], s, -1e9)
    return cache, jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(s, -1), cache)


program(
    "prefill_chunk",
    D2M4,
    prefill,
    lambda r: (
        {"k": W(r, 128, 8, 32), "q": W(r, 128, 8, 32)},
        W(r, 4, 256, 8, 32, scale=1),
        W(r, 4, 64, 128, scale=1),
        np.int32(64),
    ),
    (P(None, "model"), P("data", None, "model"), P("data"), P()),
    (P("data", None, "model"), P("data", None, "model")),
)
