"""Layout changes and reshapes with nothing else to do."""

from __future__ import annotations

import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from .common import W, rng
from .registry import A8, AB, Built, case
from .traffic import A2A, reshard_bound


def _reshard(name, mesh, sin, sout, shape=(1024, 1024), fn=None, good=None, perm=None, why=""):
    @case(name, mesh, "reshard")
    def _(m):
        r = rng()
        g = good if good is not None else reshard_bound(shape, mesh, sin, sout, perm=perm)
        return Built(
            fn or (lambda x: x * 2),
            (W(r, *shape, scale=1),),
            (sin,),
            sout,
            good=g,
            why=why or "bytes of the output tile that the busiest device does not hold",
        )


_reshard("reshard_ab_to_ba", AB, P("a", "b"), P("b", "a"))
_reshard("reshard_row_to_col", A8, P("a", None), P(None, "a"))
_reshard("reshard_row_ab_to_2d", AB, P(("a", "b"), None), P("a", "b"))
_reshard("reshard_2d_to_row_ab", AB, P("a", "b"), P(("a", "b"), None))
_reshard("reshard_row_ab_to_ba", AB, P(("a", "b"), None), P(("b", "a"), None))
_reshard("reshard_a_to_b", AB, P("a", None), P("b", None))
_reshard("reshard_a_b_swap_dims", AB, P("a", None), P(None, "b"))
_reshard("transpose_row", A8, P("a", None), P("a", None), fn=lambda x: x.T * 2, perm=(1, 0))


@case("reshape_merge_bs_mm", AB, "reshard")
def _(m):
    r = rng()
    x = W(r, 16, 128, 256, scale=1)
    return Built(
        lambda x, w: jnp.tanh(x.reshape(-1, 256) @ w),
        (x, W(r, 256, 256)),
        (P("a", "b"), P()),
        good=A2A(2, x.nbytes / 8),
        why="[B,S,D] sharded (a,b,-): merging B,S cannot keep b on S; one all-to-all over b moves it to B",
    )


@case("reshape_split_rows", AB, "reshard")
def _(m):
    r = rng()
    return Built(
        lambda x: jnp.sin(x.reshape(2, 512, 256)).sum(-1),
        (W(r, 1024, 256, scale=1),),
        (P(("a", "b"), None),),
        good=0,
        why=(
            "rows on 8 devices split into [2,512]: half of axis a on dim 0, the rest on dim 1 - no data moves"
        ),
    )


@case("reshape_heads_merge", AB, "reshard")
def _(m):
    r = rng()
    x = W(r, 8, 128, 8, 32, scale=1)
    return Built(
        lambda x: jnp.sin(x.reshape(8, 128, 256)) * 2,
        (x,),
        (P("b", None, "a", None),),
        good=0,
        why="heads (major) sharded: merge keeps the shards",
    )
