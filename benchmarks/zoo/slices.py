"""Sorting, scanning, slicing, stencils and concatenation along a sharded dim."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .common import W, rng
from .registry import A8, AB, FREE, Built, case
from .traffic import A2A, AG, AR, RS
from .transformer import decode_step


@case("sort_sharded_dim", A8, "sort")
def _(m):
    r = rng()
    x = W(r, 64, 8192, scale=1)
    return Built(
        lambda x: jnp.sort(x, -1),
        (x,),
        (P(None, "a"),),
        good=A2A(8, x.nbytes / 8),
        why="all-to-all to shard the 64 rows, local sort, output free",
    )


@case("topk_sharded_dim", A8, "sort")
def _(m):
    r = rng()
    return Built(
        lambda x: lax.top_k(x, 8),
        (W(r, 64, 8192, scale=1),),
        (P(None, "a"),),
        good=AG(8, 8 * 64 * 8 * 8),
        why="local top-8, all-gather 8x8 candidates (value, index), top-8 again",
    )


@case("cumsum_sharded_dim", A8, "sort")
def _(m):
    r = rng()
    return Built(
        lambda x: jnp.cumsum(x, 0),
        (W(r, 8192, 64, scale=1),),
        (P("a"),),
        P("a"),
        good=AG(8, 8 * 64 * 4),
        why="local cumsum + all-gather of 8 block sums",
    )


# ============================================================================= slices
@case("kv_decode_heads", [("data", 2), ("model", 4)], "slice")
def _(m):
    r = rng()
    B, S, H, K, D = 8, 512, 8, 32, 256
    ps = {"wq": W(r, D, H, K), "wk": W(r, D, H, K), "wv": W(r, D, H, K), "wo": W(r, H, K, D, scale=1 / 16)}
    w = P(None, "model", None)
    sp = {"wq": w, "wk": w, "wv": w, "wo": P("model", None, None)}
    c = P("data", None, "model", None)
    return Built(
        decode_step,
        (ps, W(r, B, S, H, K, scale=1), W(r, B, S, H, K, scale=1), W(r, B, D, scale=1), np.int32(300)),
        (sp, c, c, P("data"), P()),
        (c, c, FREE),
        good=AR(4, 4 * D * 4),
        why="all-reduce of one [B/2,D] token over model",
    )


@case("dynamic_slice_sharded", A8, "slice")
def _(m):
    r = rng()
    return Built(
        lambda x, i: jnp.sin(lax.dynamic_slice_in_dim(x, i, 512, 0)),
        (W(r, 4096, 256, scale=1), np.int32(777)),
        (P("a"), P()),
        good=RS(8, 512 * 256 * 4),
        why=(
            "mask local rows + reduce-scatter of the 512-row slice (output free; replicated "
            "would be an all-reduce)"
        ),
    )


@case("finite_difference", A8, "slice")
def _(m):
    r = rng()
    return Built(
        lambda x: jnp.sum((x[1:] - x[:-1]) ** 2),
        (W(r, 4096, 128, scale=1),),
        (P("a"),),
        good=128 * 4 + AR(8, 4),
        why="one halo row + scalar all-reduce",
    )


@case("roll_by_1", A8, "slice")
def _(m):
    r = rng()
    return Built(
        lambda x: jnp.roll(x, 1, 0) - x,
        (W(r, 4096, 128, scale=1),),
        (P("a"),),
        P("a"),
        good=128 * 4,
        why="one halo row",
    )


@case("shift_tokens_pad", A8, "slice")
def _(m):
    r = rng()
    return Built(
        lambda x: jnp.pad(x, ((1, 0), (0, 0)))[:-1] * 0.5 + x * 0.5,
        (W(r, 4096, 128, scale=1),),
        (P("a"),),
        P("a"),
        good=128 * 4,
        why="token shift: one halo row",
    )


@case("heat_loop_roll", AB, "loop")
def _(m):
    r = rng()

    def f(u):
        return lax.fori_loop(
            0,
            10,
            lambda i, u: (
                u
                + 0.1
                * (jnp.roll(u, 1, 0) + jnp.roll(u, -1, 0) + jnp.roll(u, 1, 1) + jnp.roll(u, -1, 1) - 4 * u)
            ),
            u,
        )

    return Built(
        f,
        (W(r, 512, 512, scale=1),),
        (P("a", "b"),),
        P("a", "b"),
        good=10 * (2 * 256 + 2 * 128) * 4,
        why="periodic 5-point stencil on 128x256 tiles, 10 steps: 2 rows + 2 columns each",
    )


@case("concat_sharded_dim", A8, "slice")
def _(m):
    r = rng()
    return Built(
        lambda x, y: jnp.concatenate([x, y * 2], 0),
        (W(r, 4096, 128, scale=1), W(r, 4096, 128, scale=1)),
        (P("a"), P("a")),
        P("a"),
        good=1024 * 128 * 4,
        why=(
            "every output block of 1024 rows comes from one operand; the busiest device keeps "
            "none or half of its own"
        ),
    )


@case("uneven_slice_mlp", [("model", 8)], "uneven")
def _(m):
    r = rng()

    def f(w1, w2, x):
        return jax.nn.relu(x @ w1[:, :1001]) @ w2[:1001]

    out = 512 * 256 * 4
    return Built(
        f,
        (W(r, 256, 1024), W(r, 1024, 256), W(r, 512, 256, scale=1)),
        (P(None, "model"), P("model", None), P()),
        good=AR(8, out),
        best=RS(8, out),
        why="hidden 1024 cut to 1001 inside: mask the last shard, one all-reduce of the output",
    )
