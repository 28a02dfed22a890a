"""Attention variants, and lookups in sharded vocabularies."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from .common import W, ids, rng, sgd_step, xent
from .registry import FREE, Built, case
from .traffic import A2A, AG, AR, RS, lb
from .transformer import (
    S_,
    attention,
)


def gqa(Hkv):
    def b(m):
        r = rng()
        D, Hq, K = 256, 8, 32
        ps = {"wq": W(r, D, Hq * K), "wk": W(r, D, Hkv * K), "wv": W(r, D, Hkv * K), "wo": W(r, Hq * K, D)}
        sp = {"wq": P(None, "model"), "wk": P(None, "model"), "wv": P(None, "model"), "wo": P("model", None)}

        def f(p, x):
            B, S, _ = x.shape
            q = (x @ p["wq"]).reshape(B, S, Hkv, Hq // Hkv, K)
            k = (x @ p["wk"]).reshape(B, S, Hkv, K)
            v = (x @ p["wv"]).reshape(B, S, Hkv, K)
            s = jnp.einsum("bsgnk,btgk->bgnst", q, k) / math.sqrt(K)
            s = jnp.where(jnp.arange(S)[:, None] >= jnp.arange(S), s, -1e9)
            o = jnp.einsum("bgnst,btgk->bsgnk", jax.nn.softmax(s, -1), v).reshape(B, S, Hq * K)
            return o @ p["wo"]

        Bl = 8 // 2
        out = Bl * S_ * D * 4
        g = AR(4, out)
        why = "one all-reduce of the output over model; kv heads divide the axis"
        if Hkv < 4:
            g += AG(4 // Hkv, 2 * Bl * S_ * K * 4)
            why = "all-gather of one kv head among the 2 devices sharing it + output all-reduce"
        return Built(
            f, (ps, W(r, 8, S_, D, scale=1)), (sp, P("data")), good=g, best=g - AR(4, out) / 2, why=why
        )

    return b


case("gqa_kv4_model4_fwd", [("data", 2), ("model", 4)], "attention")(gqa(4))


@case("fused_qkv_split_fwd", [("data", 2), ("model", 4)], "attention")
def _(m):
    r = rng()
    D, H, K = 256, 8, 32
    ps = {"wqkv": W(r, D, 3 * D), "wo": W(r, D, D)}
    sp = {"wqkv": P(None, "model"), "wo": P("model", None)}

    def f(p, x):
        B, S, _ = x.shape
        q, k, v = (t.reshape(B, S, H, K) for t in jnp.split(x @ p["wqkv"], 3, axis=-1))
        return attention(q, k, v).reshape(B, S, D) @ p["wo"]

    out = 16 // 2 * S_ * D * 4
    return Built(
        f,
        (ps, W(r, 16, S_, D, scale=1)),
        (sp, P("data")),
        good=ps["wqkv"].nbytes / 4 + AR(4, out),
        best=ps["wqkv"].nbytes / 4 + RS(4, out),
        why=(
            "q,k,v split does not line up with the 4 shards: permute the weight shard (<= its "
            "size) once, then Megatron"
        ),
    )


def seqattn(causal):
    def b(m):
        r = rng()
        q, k, v = (W(r, 4, 512, 8, 32, scale=1) for _ in range(3))
        f = partial(attention, causal=causal)
        s = P(None, "seq")
        return Built(
            lambda q, k, v: f(q, k, v),
            (q, k, v),
            (s, s, s),
            s,
            good=AG(8, 2 * k.nbytes),
            best=4 * A2A(8, k.nbytes / 8),
            why=(
                "all-gather K and V (ring attention: the same bytes); best: Ulysses all-to-all of "
                "q,k,v,o over heads"
            ),
        )

    return b


case("seq_attention_fwd", [("seq", 8)], "attention")(seqattn(False))


# ============================================================================= vocabulary
@case("embed_vocab_sharded_fwd", [("data", 2), ("model", 4)], "vocab")
def _(m):
    r = rng()
    T = W(r, 4096, 256, scale=1)
    out = 8 * 128 * 256 * 4
    return Built(
        lambda t, i: t[i],
        (T, ids(r, 16, 128, hi=4096)),
        (P("model", None), P("data")),
        good=AR(4, out),
        best=RS(4, out),
        why="masked local lookup + all-reduce over model",
    )


@case("embed_xent_train", [("data", 2), ("model", 4)], "vocab", True)
def _(m):
    r = rng()
    V, D = 4096, 128
    ps = {"emb": W(r, V, D, scale=1), "head": W(r, D, V)}
    sp = {"emb": P("model", None), "head": P(None, "model")}
    act, tok = 8 * 128 * D * 4, 8 * 128 * 4
    return Built(
        sgd_step(lambda p, i, y: xent(jnp.tanh(p["emb"][i]) @ p["head"], y)),
        (ps, ids(r, 16, 128, hi=V), ids(r, 16, 128, hi=V)),
        (sp, P("data"), P("data")),
        (sp, FREE),
        good=2 * AR(4, act) + 3 * AR(4, tok) + AR(2, lb(ps, sp, m)) + AR(2, 4),
        why=(
            "lookup all-reduce + dx all-reduce + 3 token-sized all-reduces of the loss + "
            "local gradient shards over data"
        ),
    )


def vocab_xent(onehot):
    def b(m):
        r = rng()
        V = 4096

        def loss(lg, y):
            if onehot:
                return jnp.mean(jax.nn.logsumexp(lg, -1) - jnp.sum(lg * jax.nn.one_hot(y, V), -1))
            return xent(lg, y)

        return Built(
            jax.value_and_grad(loss),
            (W(r, 16, 64, V, scale=1), ids(r, 16, 64, hi=V)),
            (P("data", None, "model"), P("data")),
            good=3 * AR(4, 8 * 64 * 4) + AR(2, 4),
            why="max, sum-exp and label logit of each token over model, scalar loss over data",
        )

    return b


case("xent_vocab_sharded_gather", [("data", 2), ("model", 4)], "vocab")(vocab_xent(False))
