"""LSTMs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .common import W, rng, sgd_step
from .registry import FREE, Built, case
from .traffic import AG, AR, nb


def lstm(p, xs, h, c, unroll=1):
    def cell(hc, x):
        h, c = hc
        g = x @ p["wx"] + h @ p["wh"] + p["b"]
        i, f, o, u = jnp.split(g, 4, -1)
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    return lax.scan(cell, (h, c), xs, unroll=unroll)[0][0]


def lstm4(p, xs, h, c):
    def cell(hc, x):
        h, c = hc
        g = jnp.einsum("bd,dgh->bgh", x, p["wx"]) + jnp.einsum("bd,dgh->bgh", h, p["wh"]) + p["b"]
        i, f, o, u = (g[:, k] for k in range(4))
        c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(u)
        return (jax.nn.sigmoid(o) * jnp.tanh(c), c), None

    return lax.scan(cell, (h, c), xs)[0][0]


@case("lstm_dp_train", [("data", 8)], "rnn", True)
def _(m):
    r = rng()
    T, B, D, H = 32, 64, 128, 256
    ps = {"wx": W(r, D, 4 * H), "wh": W(r, H, 4 * H), "b": np.zeros(4 * H, np.float32)}
    sp = jax.tree.map(lambda a: P(), ps)

    def loss(p, xs, y):
        z = jnp.zeros((B, H))
        return jnp.mean((lstm(p, xs, z, z) - y) ** 2)

    return Built(
        sgd_step(loss),
        (ps, W(r, T, B, D, scale=1), W(r, B, H, scale=1)),
        (sp, P(None, "data"), P("data")),
        (sp, FREE),
        good=AR(8, nb(ps) + 4),
        why="accumulate the weight gradient locally over the 32 steps, one all-reduce after the loop",
    )


def lstmtp(split):
    def b(m):
        r = rng()
        T, B, D, H = 32, 64, 128, 256
        if split:
            ps = {"wx": W(r, D, 4 * H), "wh": W(r, H, 4 * H), "b": np.zeros(4 * H, np.float32)}
            sp = {"wx": P(None, "model"), "wh": P(None, "model"), "b": P("model")}
        else:
            ps = {"wx": W(r, D, 4, H), "wh": W(r, H, 4, H), "b": np.zeros((4, H), np.float32)}
            sp = {"wx": P(None, None, "model"), "wh": P(None, None, "model"), "b": P(None, "model")}
        z = np.zeros((B, H), np.float32)
        g = T * AG(8, B * H * 4)
        if split:
            g += nb(ps) / 8
        return Built(
            lstm if split else lstm4,
            (ps, W(r, T, B, D, scale=1), z, z),
            (sp, P(), P(None, "model"), P(None, "model")),
            good=g,
            why="all-gather h [64,256] each of 32 steps"
            + (
                " + one permutation of the weight shards before the loop so that the gates line up"
                if split
                else ""
            ),
        )

    return b


case("lstm_tp_fwd", [("model", 8)], "rnn")(lstmtp(False))
