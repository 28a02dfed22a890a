"""Diffusion, convolutions with normalisation, what is done to a batch of images, adversaries."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, ids, sgd_step
from benchmarks.zoo.mlp import mlp, mlp_params, mse

from .registry import program

D8, M8, F8, S8 = [("data", 8)], [("model", 8)], [("fsdp", 8)], [("seq", 8)]
DM, D2M4 = [("data", 4), ("model", 2)], [("data", 2), ("model", 4)]


def dit_block(p, x, c):
    """A block of a diffusion transformer: shift, scale and gate from the condition."""
    m = jax.nn.silu(c) @ p["mod"]
    s1, b1, g1, s2, b2, g2 = jnp.split(m[:, None], 6, -1)

    def n(x):
        return (x - x.mean(-1, keepdims=True)) * lax.rsqrt(x.var(-1, keepdims=True) + 1e-6)

    h = n(x) * (1 + s1) + b1
    q, k, v = jnp.moveaxis((h @ p["qkv"]).reshape(*h.shape[:2], 3, 8, -1), 2, 0)
    w = jax.nn.softmax(jnp.einsum("bqhd,bkhd->bhqk", q, k) / 4)
    x = x + g1 * (jnp.einsum("bhqk,bkhd->bqhd", w, v).reshape(x.shape) @ p["o"])
    return x + g2 * (jax.nn.gelu((n(x) * (1 + s2) + b2) @ p["up"]) @ p["down"])


def _dit_args(r):
    d = 128
    p = {
        "mod": W(r, d, 6 * d),
        "qkv": W(r, d, 3 * d),
        "o": W(r, d, d),
        "up": W(r, d, 4 * d),
        "down": W(r, 4 * d, d),
    }
    return p, W(r, 8, 64, d, scale=1), W(r, 8, d, scale=1)


_dit_tp = {"mod": P(), "qkv": P(None, "model"), "o": P("model"), "up": P(None, "model"), "down": P("model")}
program("dit_tp", D2M4, dit_block, _dit_args, (_dit_tp, P("data"), P("data")), P("data"))
program(
    "dit_mod_tp",
    D2M4,
    dit_block,
    _dit_args,
    (_dit_tp | {"mod": P(None, "model")}, P("data"), P("data")),
    P("data"),
)
program(
    "dit_fsdp_train",
    F8,
    sgd_step(lambda p, x, c, y: ((dit_block(p, x, c) - y) ** 2).mean()),
    lambda r: (*_dit_args(r), W(r, 8, 64, 128)),
    (P("fsdp"), *[P("fsdp")] * 3),
    (P("fsdp"), None),
)
program("dit_seq", S8, dit_block, _dit_args, (P(), P(None, "seq"), P()), P(None, "seq"))


def guided(ps, x, c):
    """Classifier-free guidance: both conditions in one batch, a few steps of DDIM."""

    def step(x, t):
        both = jnp.concatenate([x, x])
        e = mlp(ps, jnp.concatenate([both, jnp.concatenate([c, 0 * c])], -1))
        e1, e2 = jnp.split(e, 2)
        return x - t * (e2 + 3 * (e1 - e2)), None

    return lax.scan(step, x, jnp.linspace(0.1, 0.01, 4))[0]


def _guided_args(r):
    return mlp_params(r, [192, 512, 128]), W(r, 256, 128, scale=1), W(r, 256, 64)


program(
    "guided_dp",
    D8,
    guided,
    _guided_args,
    (P(), P("data"), P("data")),
    P("data"),
)
program(
    "guided_tp",
    M8,
    guided,
    _guided_args,
    ([{"w": P(None, "model"), "b": P("model")}, {"w": P("model"), "b": P()}], P(), P()),
    P(),
)


def mixup(ps, x, y, lam):
    """Rows are mixed with those of the batch turned round."""
    x, y = (lam * v + (1 - lam) * v[::-1] for v in (x, y))
    return sgd_step(mse(mlp))(ps, x, y)


program(
    "mixup_dp",
    D8,
    mixup,
    lambda r: (mlp_params(r, [128, 256, 32]), W(r, 512, 128), W(r, 512, 32), np.float32(0.7)),
    (P(), P("data"), P("data"), P()),
    (P(), None),
)


def random_crop(x, at):
    return jax.vmap(lambda x, at: lax.dynamic_slice(x, (at[0], at[1], 0), (24, 24, 3)))(x, at)


program(
    "random_crop_dp",
    D8,
    random_crop,
    lambda r: (W(r, 64, 32, 32, 3), ids(r, 64, 2, hi=8)),
    (P("data"), P("data")),
)


def resnet_block(ps, x):
    def conv(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    def bn(x):
        return (x - x.mean((0, 1, 2))) * lax.rsqrt(x.var((0, 1, 2)) + 1e-5)

    h = jax.nn.relu(bn(conv(x, ps[0])))
    h = jax.nn.relu(bn(conv(h, ps[1])))
    h = bn(conv(h, ps[2]))
    s = jax.nn.sigmoid(jax.nn.relu(h.mean((1, 2)) @ ps[3]) @ ps[4])
    return jax.nn.relu(x + h * s[:, None, None])


def _resnet_args(r):
    return [
        W(r, 1, 1, 64, 32, scale=0.1),
        W(r, 3, 3, 32, 32, scale=0.1),
        W(r, 1, 1, 32, 64, scale=0.1),
        W(r, 64, 16),
        W(r, 16, 64),
    ], W(r, 16, 16, 16, 64, scale=1)


resnet_train = sgd_step(lambda ps, x, y: ((resnet_block(ps, x) - y) ** 2).mean())
program(
    "resnet_dp_train",
    D8,
    resnet_train,
    lambda r: (*_resnet_args(r), W(r, 16, 16, 16, 64)),
    (P(), P("data"), P("data")),
    (P(), None),
    tol=1e-3,
)
program(
    "resnet_space_train",
    DM,
    resnet_train,
    lambda r: (*_resnet_args(r), W(r, 16, 16, 16, 64)),
    (P(), P("data", "model"), P("data", "model")),
    (P(), None),
    tol=1e-3,
)
program(
    "resnet_channels",
    M8,
    resnet_block,
    _resnet_args,
    (
        [
            P(None, None, None, "model"),
            P(None, None, "model"),
            P(None, None, None, "model"),
            P("model"),
            P(None, "model"),
        ],
        P(None, None, None, "model"),
    ),
)


def gan_step(g, d, z, x):
    """One step of each of two networks that play against each other."""

    def d_loss(d):
        real, fake = mlp(d, x), mlp(d, lax.stop_gradient(mlp(g, z)))
        return (jax.nn.softplus(-real) + jax.nn.softplus(fake)).mean()

    def g_loss(g):
        return jax.nn.softplus(-mlp(d, mlp(g, z))).mean()

    def down(p, q):
        return p - 1e-2 * q

    return jax.tree.map(down, g, jax.grad(g_loss)(g)), jax.tree.map(down, d, jax.grad(d_loss)(d))


def _gan_args(r):
    return mlp_params(r, [64, 256, 128]), mlp_params(r, [128, 256, 1]), W(r, 512, 64), W(r, 512, 128)


program("gan_dp", D8, gan_step, _gan_args, (P(), P(), P("data"), P("data")), (P(), P()))
_fsdp = [{"w": P("fsdp"), "b": P()}, {"w": P("fsdp"), "b": P()}]
program("gan_fsdp", F8, gan_step, _gan_args, (_fsdp, _fsdp, P("fsdp"), P("fsdp")), (_fsdp, _fsdp))
