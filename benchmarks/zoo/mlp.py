"""MLPs: data parallel, Megatron, FSDP, ZeRO-1, layers sharded over stages."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .common import W, adam_state, adam_step, rng, sgd_step
from .registry import FREE, Built, case
from .traffic import AG, AR, RS, lb, nb


def mlp_params(r, dims):
    return [{"w": W(r, a, b), "b": np.zeros(b, np.float32)} for a, b in itertools.pairwise(dims)]


def mlp(ps, x):
    for i, p in enumerate(ps):
        x = x @ p["w"] + p["b"]
        if i + 1 < len(ps):
            x = jax.nn.relu(x)
    return x


def mse(f):
    return lambda ps, x, y: jnp.mean((f(ps, x) - y) ** 2)


@case("mlp_dp_fwd", [("data", 8)], "mlp")
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 1024, 256])
    sp = jax.tree.map(lambda a: P(), ps)
    return Built(
        mlp,
        (ps, W(r, 1024, 256, scale=1)),
        (sp, P("data")),
        good=0,
        why="batch sharded, weights replicated: nothing to send",
    )


@case("mlp_dp_train", [("data", 8)], "mlp", True)
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 1024, 256])
    sp = jax.tree.map(lambda a: P(), ps)
    return Built(
        sgd_step(mse(mlp)),
        (ps, W(r, 1024, 256, scale=1), W(r, 1024, 256, scale=1)),
        (sp, P("data"), P("data")),
        (sp, FREE),
        good=AR(8, nb(ps) + 4),
        why="one all-reduce of every gradient + loss",
    )


def megatron_specs(L):
    sp = []
    for _ in range(L):
        sp += [{"w": P(None, "model"), "b": P("model")}, {"w": P("model", None), "b": P()}]
    return sp


@case("mlp_megatron_fwd", [("model", 8)], "mlp")
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 1024, 256])
    B = 1024 * 256 * 4
    return Built(
        mlp,
        (ps, W(r, 1024, 256, scale=1)),
        (megatron_specs(1), P()),
        good=AR(8, B),
        best=RS(8, B),
        why=(
            "one all-reduce of the [1024,256] output over model (best: leave it "
            "reduce-scattered, output is free)"
        ),
    )


@case("mlp_megatron_train", [("data", 2), ("model", 4)], "mlp", True)
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 1024, 256, 1024, 256])
    sp = megatron_specs(2)
    act = 1024 // 2 * 256 * 4
    g = 3 * AR(4, act) + AR(2, lb(ps, sp, m)) + AR(2, 4)
    return Built(
        sgd_step(mse(mlp)),
        (ps, W(r, 1024, 256, scale=1), W(r, 1024, 256, scale=1)),
        (sp, P("data"), P("data")),
        (sp, FREE),
        good=g,
        why=(
            "2 fwd + 1 bwd activation all-reduce over model (dx of block 1 is not needed) + "
            "gradients of the local shards over data"
        ),
    )


@case("fsdp_mlp_train", [("fsdp", 8)], "fsdp", True)
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 1024, 256, 1024, 256])
    sp = [{"w": P("fsdp", None), "b": P()} for _ in ps]
    Wb = sum(p["w"].nbytes for p in ps)
    bb = sum(p["b"].nbytes for p in ps)
    g = AG(8, Wb) + RS(8, Wb) + AR(8, bb + 4)
    return Built(
        sgd_step(mse(mlp)),
        (ps, W(r, 2048, 256, scale=1), W(r, 2048, 256, scale=1)),
        (sp, P("fsdp"), P("fsdp")),
        (sp, FREE),
        good=g,
        why=(
            "all-gather each weight once + reduce-scatter each gradient = 2(n-1)/n W (ZeRO-3 "
            "that gathers again in backward: 3)"
        ),
    )


@case("zero1_adam_train", [("data", 8)], "fsdp", True)
def _(m):
    r = rng()
    ps = mlp_params(r, [256, 1024, 256])
    sp = jax.tree.map(lambda a: P(), ps)
    so = jax.tree.map(lambda a: P("data"), ps)
    st = {"p": sp, "m": so, "v": so, "t": P()}
    return Built(
        adam_step(mse(mlp)),
        (adam_state(r, ps), W(r, 1024, 256, scale=1), W(r, 1024, 256, scale=1)),
        (st, P("data"), P("data")),
        (st, FREE),
        good=RS(8, nb(ps)) + AG(8, nb(ps)) + AR(8, 4),
        why="ZeRO-1: reduce-scatter gradients, update the shard, all-gather parameters = 2(n-1)/n P",
    )


@case("stage_scan_fwd", [("stage", 8)], "fsdp")
def _(m):
    r = rng()
    Ws = W(r, 8, 256, 256, scale=1 / 16)

    def f(ws, x):
        return lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, ws)[0]

    return Built(
        f,
        (Ws, W(r, 2048, 256, scale=1)),
        (P("stage"), P("stage")),
        good=AG(8, Ws.nbytes),
        why="layers sharded on the scanned dim: every device must receive the other 7 layers once",
    )
