"""A transformer, its layouts, and its loss; the programs are in `lm`."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .common import W, ln, xent


def layer_params(r, D, H, F, L=None):
    K = D // H
    pre = () if L is None else (L,)

    def w(*s, fan):
        return (r.randn(*pre, *s) / math.sqrt(fan)).astype(np.float32)

    return {
        "ln1s": np.ones((*pre, D), np.float32),
        "ln1b": np.zeros((*pre, D), np.float32),
        "ln2s": np.ones((*pre, D), np.float32),
        "ln2b": np.zeros((*pre, D), np.float32),
        "wq": w(D, H, K, fan=D),
        "wk": w(D, H, K, fan=D),
        "wv": w(D, H, K, fan=D),
        "wo": w(H, K, D, fan=D),
        "w1": w(D, F, fan=D),
        "b1": np.zeros((*pre, F), np.float32),
        "w2": w(F, D, fan=F),
        "b2": np.zeros((*pre, D), np.float32),
    }


def layer_specs(data=None, model=None, scan=False):
    pre = (None,) if scan else ()

    def q(*s):
        return P(*pre, *s)

    return {
        "ln1s": q(None),
        "ln1b": q(None),
        "ln2s": q(None),
        "ln2b": q(None),
        "wq": q(data, model, None),
        "wk": q(data, model, None),
        "wv": q(data, model, None),
        "wo": q(model, None, data),
        "w1": q(data, model),
        "b1": q(model),
        "w2": q(model, data),
        "b2": q(None),
    }


def attention(q, k, v, causal=True):
    s = jnp.einsum("bshk,bthk->bhst", q, k) / math.sqrt(q.shape[-1])
    if causal:
        S, T = s.shape[-2:]
        mask = jnp.arange(S)[:, None] >= jnp.arange(T)[None, :]
        s = jnp.where(mask, s, -1e9)
    return jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(s, -1), v)


def decode_step(p, ck, cv, x, pos):
    """Attention of one token per sequence at a position: the caches of keys and values with it, and what it adds to it."""
    q, k, v = (jnp.einsum("bd,dhk->bhk", x, p[n]) for n in ("wq", "wk", "wv"))
    ck = lax.dynamic_update_slice(ck, k[:, None], (0, pos, 0, 0))
    cv = lax.dynamic_update_slice(cv, v[:, None], (0, pos, 0, 0))
    s = jnp.einsum("bhk,bshk->bhs", q, ck) / math.sqrt(ck.shape[-1])
    s = jnp.where(jnp.arange(ck.shape[1]) <= pos, s, -1e9)
    o = jnp.einsum("bhs,bshk->bhk", jax.nn.softmax(s, -1), cv)
    return ck, cv, jnp.einsum("bhk,hkd->bd", o, p["wo"])


def layer(p, x):
    h = ln(x, p["ln1s"], p["ln1b"])
    q = jnp.einsum("bsd,dhk->bshk", h, p["wq"])
    k = jnp.einsum("bsd,dhk->bshk", h, p["wk"])
    v = jnp.einsum("bsd,dhk->bshk", h, p["wv"])
    x = x + jnp.einsum("bshk,hkd->bsd", attention(q, k, v), p["wo"])
    h = ln(x, p["ln2s"], p["ln2b"])
    return x + jax.nn.gelu(h @ p["w1"] + p["b1"]) @ p["w2"] + p["b2"]


D_, H_, F_, S_, B_, V_ = 256, 8, 1024, 128, 16, 1024


def stack_unrolled(ls, x):
    for p in ls:
        x = layer(p, x)
    return x


def stack_scan(ls, x):
    return lax.scan(lambda h, p: (layer(p, h), None), x, ls)[0]


def stack_scan_remat(ls, x):
    return lax.scan(jax.checkpoint(lambda h, p: (layer(p, h), None)), x, ls)[0]


def lm_params(r, L, scan):
    ls = layer_params(r, D_, H_, F_, L) if scan else [layer_params(r, D_, H_, F_) for _ in range(L)]
    return {
        "emb": W(r, V_, D_, scale=0.02),
        "pos": W(r, S_, D_, scale=0.02),
        "layers": ls,
        "lnfs": np.ones(D_, np.float32),
        "lnfb": np.zeros(D_, np.float32),
        "head": W(r, D_, V_),
    }


def lm_specs(L, scan, data=None, model=None):
    ls = layer_specs(data, model, scan)
    return {
        "emb": P(model, data),
        "pos": P(),
        "layers": ls if scan else [ls] * L,
        "lnfs": P(),
        "lnfb": P(),
        "head": P(data, model),
    }


def lm_loss(stack):
    def f(p, ids, labels):
        x = p["emb"][ids] + p["pos"]
        x = stack(p["layers"], x)
        x = ln(x, p["lnfs"], p["lnfb"])
        return xent(x @ p["head"], labels)

    return f
