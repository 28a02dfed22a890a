"""Random parameters, optimizers and layers that several programs share."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P


def rng(seed=0):
    return np.random.RandomState(seed)


def W(r, *shape, scale=None):
    s = scale if scale is not None else 1 / math.sqrt(shape[0])
    return (r.randn(*shape) * s).astype(np.float32)


def sgd_step(loss_fn, lr=1e-2):
    def step(params, *batch):
        loss, g = jax.value_and_grad(loss_fn)(params, *batch)
        return jax.tree.map(lambda p, q: p - lr * q, params, g), loss

    return step


def adam_state(r, params):
    m = jax.tree.map(lambda p: (r.randn(*p.shape) * 1e-3).astype(np.float32), params)
    v = jax.tree.map(lambda p: (1e-2 + r.rand(*p.shape) * 1e-2).astype(np.float32), params)
    return {"p": params, "m": m, "v": v, "t": np.int32(10)}


def adam_specs(ps):
    return {"p": ps, "m": ps, "v": ps, "t": P()}


def adam_step(loss_fn, lr=1e-3, b1=0.9, b2=0.99, eps=1e-8):
    def step(st, *batch):
        loss, g = jax.value_and_grad(loss_fn)(st["p"], *batch)
        t = st["t"] + 1
        m = jax.tree.map(lambda a, b: b1 * a + (1 - b1) * b, st["m"], g)
        v = jax.tree.map(lambda a, b: b2 * a + (1 - b2) * b * b, st["v"], g)
        c1 = 1 - b1 ** t.astype(jnp.float32)
        c2 = 1 - b2 ** t.astype(jnp.float32)
        p = jax.tree.map(lambda q, a, b: q - lr * (a / c1) / (jnp.sqrt(b / c2) + eps), st["p"], m, v)
        return {"p": p, "m": m, "v": v, "t": t}, loss

    return step


def ln(x, s, b):
    mu = x.mean(-1, keepdims=True)
    var = ((x - mu) ** 2).mean(-1, keepdims=True)
    return (x - mu) * lax.rsqrt(var + 1e-5) * s + b


def xent(logits, labels):
    lse = jax.nn.logsumexp(logits, axis=-1)
    return jnp.mean(lse - jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0])


def ids(r, *s, hi=1024):
    return r.randint(0, hi, s).astype(np.int32)
