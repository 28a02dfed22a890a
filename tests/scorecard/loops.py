"""Loops: how often they run depends on sharded data; what they stack is 64 bits wide."""

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .registry import Program, bug, normal


@bug(
    "jax-ml/jax#26586", "jax-ml/jax#20968", what="while loop of each element of a sharded batch", sent=0, x=8
)
def loops_of_different_length() -> Program:
    def solve(start, limit):
        return lax.while_loop(lambda s: s[1] < limit, lambda s: (s[0] + 0.1, s[1] * 1.5 + 0.1), (0.0, start))

    args = np.linspace(0.1, 1, 32, dtype=np.float32), np.linspace(2, 90, 32, dtype=np.float32)
    return Program(jax.vmap(solve), args, (P("x"), P("x")), (P("x"), P("x")))


# all of the array to all devices, once
@bug(
    "openxla/xla#24186",
    "jax-ml/jax#19691",
    what="lax.map over a sharded array of 64-bit numbers",
    sent=7 / 8 * 16 * 8,
    x=8,
)
def map_of_64_bits() -> Program:
    def f(x):
        return x - lax.map(lambda row: row * 2, x)

    return Program(f, (normal(16).astype(np.float64),), (P("x"),), P("x"), x64=True)
