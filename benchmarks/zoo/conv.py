"""Convolutional networks with sharded images."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .common import W, rng, sgd_step
from .registry import FREE, Built, case
from .traffic import AR, nb


def conv(x, w, s=1):
    return lax.conv_general_dilated(x, w, (s, s), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def bn(x, s, b):
    mu = x.mean((0, 1, 2))
    var = ((x - mu) ** 2).mean((0, 1, 2))
    return (x - mu) * lax.rsqrt(var + 1e-5) * s + b


def maxpool(x):
    return lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


def avgpool3(x):
    return lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME") / 9


def convnet(p, x):
    x = jax.nn.relu(bn(conv(x, p["c1"]), p["s1"], p["b1"]))
    x = maxpool(x)
    x = jax.nn.relu(bn(conv(x, p["c2"], 2), p["s2"], p["b2"]))
    x = avgpool3(x)
    x = jax.nn.relu(conv(x, p["c3"]))
    return x.mean((1, 2)) @ p["d"]


def conv_params(r):
    return {
        "c1": W(r, 3, 3, 3, 16, scale=0.2),
        "s1": np.ones(16, np.float32),
        "b1": np.zeros(16, np.float32),
        "c2": W(r, 3, 3, 16, 32, scale=0.1),
        "s2": np.ones(32, np.float32),
        "b2": np.zeros(32, np.float32),
        "c3": W(r, 3, 3, 32, 32, scale=0.06),
        "d": W(r, 32, 10),
    }


def _convnet(train):
    def b(m):
        r = rng()
        ps = conv_params(r)
        sp = jax.tree.map(lambda a: P(), ps)
        x = W(r, 8, 32, 32, 3, scale=1)
        Bl = 4
        fwd = (
            2 * 32 * 3 * Bl * 4
            + AR(8, 2 * 16 * 4)
            + 16 * 16 * Bl * 4
            + AR(8, 2 * 32 * 4)
            + 2 * 8 * 32 * Bl * 4 * 2
            + AR(4, Bl * 32 * 4)
        )
        if not train:
            return Built(
                convnet,
                (ps, x),
                (sp, P("data", "space")),
                good=fwd,
                tol=1e-3,
                why=(
                    "halo rows of each 3x3 (2 rows; stride 2: 1 row; 2x2 max-pool: none) + batch-norm "
                    "moments + global mean"
                ),
            )
        bwd = (
            2 * (2 * 8 * 32 * Bl * 4)
            + 8 * 32 * Bl * 4
            + AR(8, 2 * 32 * 4)
            + AR(8, 2 * 16 * 4)
            + AR(8, nb(ps) - ps["d"].nbytes)
            + AR(2, ps["d"].nbytes + 4)
        )
        return Built(
            sgd_step(lambda p, x, y: jnp.mean((convnet(p, x) - y) ** 2)),
            (ps, x, W(r, 8, 10, scale=1)),
            (sp, P("data", "space"), P("data")),
            (sp, FREE),
            good=fwd + bwd,
            tol=2e-3,
            why=(
                "forward halos + backward halos (c3, avg-pool, c2) + batch-norm moments both ways "
                "+ gradient all-reduce"
            ),
        )

    return b


case("conv_spatial_fwd", [("data", 2), ("space", 4)], "conv")(_convnet(False))
case("conv_spatial_train", [("data", 2), ("space", 4)], "conv", True)(_convnet(True))


@case("patchify_fwd", [("data", 2), ("space", 4)], "conv")
def _(m):
    r = rng()

    def f(w, x):
        B = x.shape[0]
        p = x.reshape(B, 8, 4, 8, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(B, 64, 48)
        return p @ w

    return Built(
        f,
        (W(r, 48, 256), W(r, 16, 32, 32, 3, scale=1)),
        (P(), P("data", "space")),
        good=0,
        why="each device holds whole 4x4 patches: the sharding passes through both reshapes",
    )
