"""Gradients that are accumulated, and small networks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, rng, sgd_step
from benchmarks.zoo.mlp import mlp, mlp_params, mse
from benchmarks.zoo.registry import FREE, Built

from .registry import more


# ---- accum
@more("grad_accum_unrolled_dp", [("data", 8)])
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 512, 256])
    sp = jax.tree.map(lambda a: P(), ps)
    L = mse(mlp)

    def step(ps, xs, ys):
        g = None
        for k in range(3):
            q = jax.grad(L)(ps, xs[k], ys[k])
            g = q if g is None else jax.tree.map(jnp.add, g, q)
        return jax.tree.map(lambda p, q: p - 0.01 * q, ps, g)

    return Built(
        step,
        (ps, W(r, 3, 256, 256, scale=1), W(r, 3, 256, 256, scale=1)),
        (sp, P(None, "data"), P(None, "data")),
        sp,
    )


@more("grad_accum_zero1_adam", [("data", 8)])
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 512, 256])
    rep = jax.tree.map(lambda a: P(), ps)
    sh = [{"w": P("data"), "b": P("data")} for _ in ps]
    mm = jax.tree.map(np.zeros_like, ps)

    def step(ps, mo, xs, ys):
        L = mse(mlp)

        def body(g, b):
            return jax.tree.map(jnp.add, g, jax.grad(L)(ps, *b)), None

        g, _ = lax.scan(body, jax.tree.map(jnp.zeros_like, ps), (xs, ys))
        mo = jax.tree.map(lambda m, g: 0.9 * m + g, mo, g)
        return jax.tree.map(lambda p, m: p - 0.01 * m, ps, mo), mo

    return Built(
        step,
        (ps, mm, W(r, 4, 256, 256, scale=1), W(r, 4, 256, 256, scale=1)),
        (rep, sh, P(None, "data"), P(None, "data")),
        (rep, sh),
    )


@more("clip_grad_norm_fsdp", [("fsdp", 8)])
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 512, 256])
    sp = [{"w": P("fsdp"), "b": P()} for _ in ps]

    def step(ps, x, y):
        loss, g = jax.value_and_grad(mse(mlp))(ps, x, y)
        n = jnp.sqrt(sum(jnp.sum(t * t) for t in jax.tree.leaves(g)))
        s = jnp.minimum(1, 1 / n)
        return jax.tree.map(lambda p, q: p - 0.01 * s * q, ps, g), loss, n

    return Built(
        step,
        (ps, W(r, 512, 256, scale=1), W(r, 512, 256, scale=1)),
        (sp, P("fsdp"), P("fsdp")),
        (sp, FREE, FREE),
    )


# ---- mlps
@more("mlp_2d_weights_train", [("data", 4), ("model", 2)])
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 1024, 256])
    sp = [{"w": P("data", "model"), "b": P("model")}, {"w": P("model", "data"), "b": P()}]
    return Built(
        sgd_step(mse(mlp)),
        (ps, W(r, 512, 256, scale=1), W(r, 512, 256, scale=1)),
        (sp, P("data"), P("data")),
        (sp, FREE),
    )


@more("mlp_3axis_train", [("data", 2), ("fsdp", 2), ("model", 2)])
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 1024, 256])
    sp = [{"w": P("fsdp", "model"), "b": P("model")}, {"w": P("model", "fsdp"), "b": P()}]
    return Built(
        sgd_step(mse(mlp)),
        (ps, W(r, 512, 256, scale=1), W(r, 512, 256, scale=1)),
        (sp, P(("data", "fsdp")), P(("data", "fsdp"))),
        (sp, FREE),
    )


@more("mlp_deep_megatron", [("data", 2), ("model", 4)])
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 512, 256, 512, 256])
    sp = [{"w": P(None, "model"), "b": P("model")}, {"w": P("model"), "b": P()}] * 2
    return Built(
        sgd_step(mse(mlp)),
        (ps, W(r, 512, 256, scale=1), W(r, 512, 256, scale=1)),
        (sp, P("data"), P("data")),
        (sp, FREE),
    )


@more("mixer_fwd", [("data", 2), ("model", 4)])
def _(m):
    r = rng()

    def f(p, x):
        h = x.transpose(0, 2, 1)
        h = jax.nn.gelu(h @ p["a"]) @ p["b"]
        x = x + h.transpose(0, 2, 1)
        return x + jax.nn.gelu(x @ p["c"]) @ p["d"]

    return Built(
        f,
        (
            {"a": W(r, 64, 256), "b": W(r, 256, 64), "c": W(r, 128, 512), "d": W(r, 512, 128)},
            W(r, 16, 64, 128, scale=1),
        ),
        ({"a": P(None, "model"), "b": P("model"), "c": P(None, "model"), "d": P("model")}, P("data")),
    )


@more("vae_like", [("data", 8)])
def _(m):
    r = rng()
    ps = {"e": W(r, 256, 64), "d": W(r, 32, 256)}
    sp = {"e": P(), "d": P()}

    def loss(p, x, k):
        mu, ls = jnp.split(x @ p["e"], 2, -1)
        z = mu + jnp.exp(ls) * jax.random.normal(jax.random.wrap_key_data(k), mu.shape)
        return jnp.mean((z @ p["d"] - x) ** 2) + jnp.mean(mu**2 + jnp.exp(ls))

    return Built(
        sgd_step(loss),
        (ps, W(r, 512, 256, scale=0.3), np.array([1, 2], np.uint32)),
        (sp, P("data"), P()),
        (sp, FREE),
    )


@more("contrastive_train", [("data", 8)])
def _(m):
    r = rng()
    ps = {"a": W(r, 128, 64), "b": W(r, 128, 64)}
    sp = {"a": P(), "b": P()}

    def loss(p, x, y):
        u = x @ p["a"]
        v = y @ p["b"]
        u = u / jnp.linalg.norm(u, axis=-1, keepdims=True)
        v = v / jnp.linalg.norm(v, axis=-1, keepdims=True)
        s = 10 * u @ v.T
        return -jnp.mean(jnp.diag(jax.nn.log_softmax(s, 1))) - jnp.mean(jnp.diag(jax.nn.log_softmax(s, 0)))

    return Built(
        sgd_step(loss),
        (ps, W(r, 512, 128, scale=1), W(r, 512, 128, scale=1)),
        (sp, P("data"), P("data")),
        (sp, FREE),
        tol=1e-3,
    )
