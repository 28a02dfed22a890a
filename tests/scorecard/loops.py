"""Loops: how often they run depends on sharded data; what they stack is 64 bits wide."""

import jax
import jax.numpy as jnp
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


# the gradient once, after the loop; the microbatches are taken where they are
@bug(
    "openxla/xla#6750",
    "pytorch/xla#5760",
    what="gradients of microbatches, summed in a scan",
    sent=2 * 7 / 8 * 64 * 64 * 4,
    data=8,
)
def gradient_accumulation() -> Program:
    def f(w, batches):
        def body(total, x):
            return total + jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(w), None

        return lax.scan(body, jnp.zeros_like(w), batches)[0]

    return Program(f, (normal(64, 64), normal(4, 256, 64, seed=1)), (P(), P(None, "data")), P(), tol=1e-4)
