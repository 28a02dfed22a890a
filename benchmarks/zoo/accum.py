"""Gradient accumulation over microbatches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from .common import W, rng
from .mlp import mlp, mlp_params, mse
from .registry import FREE, Built, case
from .traffic import AG, AR, RS, nb


def accum(loss_fn, lr=1e-2):
    def step(ps, xs, ys):
        def body(c, b):
            value, g = jax.value_and_grad(loss_fn)(ps, *b)
            return (c[0] + value, jax.tree.map(jnp.add, c[1], g)), None

        (total, g), _ = lax.scan(body, (0.0, jax.tree.map(jnp.zeros_like, ps)), (xs, ys))
        K = xs.shape[0]
        return jax.tree.map(lambda p, q: p - lr / K * q, ps, g), total / K

    return step


@case("grad_accum_dp_train", [("data", 8)], "accum", True)
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 1024, 256])
    sp = jax.tree.map(lambda a: P(), ps)
    return Built(
        accum(mse(mlp)),
        (ps, W(r, 4, 512, 256, scale=1), W(r, 4, 512, 256, scale=1)),
        (sp, P(None, "data"), P(None, "data")),
        (sp, FREE),
        good=AR(8, nb(ps) + 4),
        why="accumulate locally over the 4 microbatches, one all-reduce after the loop",
    )


@case("grad_accum_fsdp_train", [("fsdp", 8)], "accum", True)
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 1024, 256])
    sp = [{"w": P("fsdp", None), "b": P()} for _ in ps]
    Wb = sum(p["w"].nbytes for p in ps)
    bb = sum(p["b"].nbytes for p in ps)
    return Built(
        accum(mse(mlp)),
        (ps, W(r, 4, 2048, 256, scale=1), W(r, 4, 2048, 256, scale=1)),
        (sp, P(None, "fsdp"), P(None, "fsdp")),
        (sp, FREE),
        good=AG(8, Wb) + RS(8, Wb) + AR(8, bb + 4),
        why=(
            "gather weights once, accumulate the full gradient locally, reduce-scatter once "
            "(ZeRO-3 per microbatch: 4x this + regather)"
        ),
    )
