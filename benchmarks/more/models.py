"""Language models, pipelines and attention."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.attention import gqa, seqattn, vocab_xent
from benchmarks.zoo.common import W, adam_specs, adam_state, adam_step, ids, rng, sgd_step
from benchmarks.zoo.lm import lm2d, lmfsdp
from benchmarks.zoo.moe import moe_program
from benchmarks.zoo.registry import A8, FREE, Built
from benchmarks.zoo.rnn import lstmtp
from benchmarks.zoo.transformer import (
    B_,
    S_,
    attention,
    decode_step,
    layer,
    layer_params,
    lm_loss,
    lm_params,
    lm_specs,
    stack_scan,
    stack_scan_remat,
    stack_unrolled,
)

from .registry import more

more("lm_fsdp_remat_scan", [("fsdp", 8)])(lmfsdp(4, True, stack_scan_remat, 3))
more("lm_fsdp_unrolled_hint", [("fsdp", 8)])(lmfsdp(2, False, stack_unrolled, 2, True))
more("lm_2d_remat_scan", [("data", 4), ("model", 2)])(lm2d(4, True, stack_scan_remat, 8))
more("gqa_kv2", [("data", 2), ("model", 4)])(gqa(2))
more("gqa_kv1", [("data", 2), ("model", 4)])(gqa(1))
more("seq_attention_causal", [("seq", 8)])(seqattn(True))
more("xent_onehot", [("data", 2), ("model", 4)])(vocab_xent(True))
more("moe_train", [("expert", 8)])(moe_program(True))
more("lstm_tp_split", [("model", 8)])(lstmtp(True))


# ---- lm
def lm_2d(scan, stack):
    """Parameters cut over both axes, the batch over one of them."""

    def build(m):
        r = rng()
        ps, sp = lm_params(r, 2, scan), lm_specs(2, scan, "data", "model")
        return Built(
            adam_step(lm_loss(stack)),
            (adam_state(r, ps), ids(r, B_, S_), ids(r, B_, S_)),
            (adam_specs(sp), P("data"), P("data")),
            (adam_specs(sp), FREE),
        )

    return build


more("lm_fsdp_tp_2d", [("data", 4), ("model", 2)])(lm_2d(True, stack_scan))
more("lm_fsdp_tp_2d_unrolled", [("data", 4), ("model", 2)])(lm_2d(False, stack_unrolled))


@more("lm_dp_adam_zero1", [("data", 8)])
def _(m):
    r = rng()
    ps = lm_params(r, 2, True)
    moments = jax.tree.map(
        lambda a: P(*["data" if i == int(np.argmax(a.shape)) else None for i in range(a.ndim)]), ps
    )
    sp = {**adam_specs(jax.tree.map(lambda a: P(), ps)), "m": moments, "v": moments}
    return Built(
        adam_step(lm_loss(stack_scan)),
        (adam_state(r, ps), ids(r, B_, S_), ids(r, B_, S_)),
        (sp, P("data"), P("data")),
        (sp, FREE),
    )


# ---- pipelines
@more("pipeline_roll_fwd", [("stage", 8)])
def _(m):
    r = rng()
    Bm, D = 64, 256

    def f(w, xs):  # w [8,D,D], xs [M,Bm,D]
        M = xs.shape[0]
        state = jnp.zeros((8, Bm, D))
        out = jnp.zeros_like(xs)

        def tick(t, c):
            state, out = c
            inp = jnp.where(t < M, lax.dynamic_index_in_dim(xs, jnp.minimum(t, M - 1), 0, False), 0)
            state = jnp.roll(state, 1, 0).at[0].set(inp)
            state = jnp.tanh(jnp.einsum("sbd,sdf->sbf", state, w))
            i = jnp.maximum(t - 7, 0)
            out = jnp.where(t >= 7, lax.dynamic_update_index_in_dim(out, state[7], i, 0), out)
            return state, out

        return lax.fori_loop(0, M + 7, tick, (state, out))[1]

    return Built(f, (W(r, 8, D, D, scale=1 / 16), W(r, 16, Bm, D, scale=1)), (P("stage"), P()))


@more("pipeline_scan_train", [("stage", 4), ("data", 2)])
def _(m):
    r = rng()
    Bm, D, M, Sg = 32, 128, 8, 4

    def fwd(w, xs):
        def tick(state, x):
            state = jnp.concatenate([x[None], state[:-1]], 0)
            state = jax.nn.relu(jnp.einsum("sbd,sdf->sbf", state, w))
            return state, state[-1]

        pad = jnp.concatenate([xs, jnp.zeros((Sg - 1, *xs.shape[1:]))], 0)
        _, ys = lax.scan(tick, jnp.zeros((Sg, *xs.shape[1:])), pad)
        return ys[Sg - 1 :]

    def loss(w, x, y):
        return jnp.mean((fwd(w, x) - y) ** 2)

    return Built(
        sgd_step(loss),
        (W(r, Sg, D, D), W(r, M, Bm, D, scale=1), W(r, M, Bm, D, scale=1)),
        (P("stage"), P(None, "data"), P(None, "data")),
        (P("stage"), FREE),
    )


# ---- attention
@more("mha_train_tp", [("data", 2), ("model", 4)])
def _(m):
    r = rng()
    D, H, K = 256, 8, 32
    ps = {"wqkv": W(r, D, 3, H, K), "wo": W(r, H, K, D)}
    sp = {"wqkv": P(None, None, "model"), "wo": P("model")}

    def loss(p, x, y):
        q, k, v = jnp.einsum("bsd,dchk->cbshk", x, p["wqkv"])
        return jnp.mean((jnp.einsum("bshk,hkd->bsd", attention(q, k, v), p["wo"]) - y) ** 2)

    return Built(
        sgd_step(loss),
        (ps, W(r, 8, S_, D, scale=1), W(r, 8, S_, D, scale=1)),
        (sp, P("data"), P("data")),
        (sp, FREE),
    )


@more("fused_qkv_train", [("data", 2), ("model", 4)])
def _(m):
    r = rng()
    D, H, K = 256, 8, 32
    ps = {"wqkv": W(r, D, 3 * D), "wo": W(r, D, D)}
    sp = {"wqkv": P(None, "model"), "wo": P("model", None)}

    def f(p, x, y):
        B, S, _ = x.shape
        q, k, v = (t.reshape(B, S, H, K) for t in jnp.split(x @ p["wqkv"], 3, axis=-1))
        return jnp.mean((attention(q, k, v).reshape(B, S, D) @ p["wo"] - y) ** 2)

    return Built(
        sgd_step(f),
        (ps, W(r, 16, S_, D, scale=1), W(r, 16, S_, D, scale=1)),
        (sp, P("data"), P("data")),
        (sp, FREE),
    )


@more("seq_attention_train", [("seq", 8)])
def _(m):
    r = rng()
    D, H = 256, 8
    ps = layer_params(r, D, H, 512)
    sp = jax.tree.map(lambda a: P(), ps)
    return Built(
        sgd_step(lambda p, x, y: jnp.mean((layer(p, x) - y) ** 2)),
        (ps, W(r, 4, 512, D, scale=1), W(r, 4, 512, D, scale=1)),
        (sp, P(None, "seq"), P(None, "seq")),
        (sp, FREE),
    )


@more("cross_attention", [("data", 2), ("seq", 4)])
def _(m):
    r = rng()
    q = W(r, 4, 512, 8, 32, scale=1)
    k, v = W(r, 4, 128, 8, 32, scale=1), W(r, 4, 128, 8, 32, scale=1)
    s = P("data", "seq")
    return Built(lambda q, k, v: attention(q, k, v, False), (q, k, v), (s, s, s), s)


@more("attention_heads6_uneven", [("model", 4)])
def _(m):
    r = rng()
    q, k, v = (W(r, 4, 128, 6, 32, scale=1) for _ in range(3))
    return Built(
        lambda q, k, v, w: jnp.einsum("bshk,hkd->bsd", attention(q, k, v), w),
        (q, k, v, W(r, 6, 32, 256)),
        (P(), P(), P(), P(None, None, "model")),
    )


@more("rope_attention_tp", [("data", 2), ("model", 4)])
def _(m):
    r = rng()
    D, H, K = 256, 8, 32
    ps = {"wq": W(r, D, H, K), "wk": W(r, D, H, K), "wv": W(r, D, H, K), "wo": W(r, H, K, D)}
    sp = {"wq": P(None, "model"), "wk": P(None, "model"), "wv": P(None, "model"), "wo": P("model")}

    def rope(x):
        S, K = x.shape[1], x.shape[3]
        f = 1e4 ** (-jnp.arange(0, K, 2) / K)
        a = jnp.arange(S)[:, None] * f
        c, s = jnp.cos(a)[None, :, None], jnp.sin(a)[None, :, None]
        x1, x2 = x[..., ::2], x[..., 1::2]
        return jnp.stack([x1 * c - x2 * s, x1 * s + x2 * c], -1).reshape(x.shape)

    def f(p, x):
        q, k, v = (jnp.einsum("bsd,dhk->bshk", x, p[n]) for n in ("wq", "wk", "wv"))
        return jnp.einsum("bshk,hkd->bsd", attention(rope(q), rope(k), v), p["wo"])

    return Built(f, (ps, W(r, 8, S_, D, scale=1)), (sp, P("data")))


@more("rope_seq_sharded", A8)
def _(m):
    r = rng()

    def f(x):
        K = x.shape[-1]
        S = x.shape[1]
        fr = 1e4 ** (-jnp.arange(0, K, 2) / K)
        a = jnp.arange(S)[:, None] * fr
        c, s = jnp.cos(a)[None, :, None], jnp.sin(a)[None, :, None]
        x1, x2 = jnp.split(x, 2, -1)
        return jnp.concatenate([x1 * c - x2 * s, x1 * s + x2 * c], -1)

    return Built(f, (W(r, 2, 1024, 8, 64, scale=1),), (P(None, "a"),), P(None, "a"))


@more("kv_decode_seq", [("seq", 8)])
def _(m):
    r = rng()
    B, S, H, K, D = 8, 512, 8, 32, 256
    ps = {"wq": W(r, D, H, K), "wk": W(r, D, H, K), "wv": W(r, D, H, K), "wo": W(r, H, K, D, scale=1 / 16)}
    sp = jax.tree.map(lambda a: P(), ps)
    c = P(None, "seq")
    return Built(
        decode_step,
        (ps, W(r, B, S, H, K, scale=1), W(r, B, S, H, K, scale=1), W(r, B, D, scale=1), np.int32(300)),
        (sp, c, c, P(), P()),
        (c, c, FREE),
    )


@more("decode_loop_heads", [("data", 2), ("model", 4)])
def _(m):
    r = rng()
    B, S, H, K, D = 4, 64, 8, 16, 128
    ps = {"wq": W(r, D, H, K), "wk": W(r, D, H, K), "wv": W(r, D, H, K), "wo": W(r, H, K, D, scale=1 / 16)}
    w = P(None, "model", None)
    sp = {"wq": w, "wk": w, "wv": w, "wo": P("model")}
    c = P("data", None, "model")

    def f(p, ck, cv, x):
        def body(i, state):
            ck, cv, added = decode_step(p, *state, i)
            return ck, cv, state[2] + added

        return lax.fori_loop(0, 16, body, (ck, cv, x))

    return Built(
        f,
        (ps, np.zeros((B, S, H, K), np.float32), np.zeros((B, S, H, K), np.float32), W(r, B, D, scale=1)),
        (sp, c, c, P("data")),
        (c, c, FREE),
    )
