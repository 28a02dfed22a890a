"""gather and scatter with sharded operands, lookups and updates."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .registry import Program, bug, integers, normal


@bug(
    "tenstorrent/tt-xla#5469",
    what="take_along_axis and its scatter, batch sharded: row numbers",
    sent=0,
    x=8,
)
def rows_of_sharded_batch() -> Program:
    def f(x, i, u):
        rows = jnp.arange(x.shape[0])[:, None]
        return jnp.take_along_axis(x, i, 1), x.at[rows, i].set(u)

    i = np.stack([np.random.RandomState(r).permutation(16)[:4] for r in range(32)]).astype(np.int32)
    args = normal(32, 16), i, normal(32, 4, seed=1)
    return Program(f, args, (P("x"), P("x"), P("x")), (P("x"), P("x")))


# all 16 updates to all devices
@bug(
    "pytorch/pytorch#172350",
    what="update at traced rows, array and updates sharded",
    sent=7 / 8 * 16 * 4,
    x=8,
)
def update_at_traced_rows() -> Program:
    def f(x, rows, columns, u):
        return x.at[rows, columns].set(u)

    rows = np.random.RandomState(0).permutation(64)[:16].astype(np.int32)
    args = normal(64, 32), rows, integers(32, 16), normal(16, seed=1)
    return Program(f, args, (P("x"), P(), P(), P("x")), P("x"))


# the cotangents' features to their devices and all lookups to all; the table back to its rows
@bug(
    "openxla/xla#49143",
    what="gradient of an embedding, summed in a scan",
    sent=3 / 4 * (2 * 8 * 8 * 64 * 4 / 4 + 2 * 8 * 8 * 4 + 96 * 64 * 4 / 4),
    d=4,
)
def embedding_gradient_in_scan() -> Program:
    def f(table, ids, cotangents):
        def body(total, batch):
            rows, ct = batch
            return total + jax.vjp(lambda t: t[rows], table)[1](ct)[0], None

        return lax.scan(body, jnp.zeros_like(table), (ids, cotangents))[0]

    args = normal(96, 64), integers(96, 2, 8, 8), normal(2, 8, 8, 64, seed=1)
    return Program(f, args, (P("d"), P(None, "d"), P(None, "d")), P("d"))
