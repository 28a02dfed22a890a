"""Reshapes and relayouts."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.registry import hint

from .registry import Program, bug, normal


# its block, twice
@bug(
    "jax-ml/jax#21562",
    "openxla/xla#15207",
    what='relayout ("y",-,"x") -> (-,("x","y"),-) with full rematerialization',
    sent=2 * 16**3 * 4 / 8,
    x=4,
    y=2,
)
def relayout_across_dims() -> Program:
    def f(a, b, c):
        d = hint(a + b, None, ("x", "y"), None)
        return c + d

    before, after = P("y", None, "x"), P(None, ("x", "y"), None)
    args = tuple(normal(16, 16, 16, seed=i) for i in range(3))
    return Program(f, args, (before, before, after), after)


# two rows, each straight to where it belongs
@bug(
    "openxla/xla#13306",
    what="batch of 8 split into 2 microbatches of 4 over 4 devices",
    sent=2 * 256 * 4,
    data=4,
)
def microbatches() -> Program:
    return Program(lambda x: x.reshape(2, 4, 256), (normal(8, 256),), (P("data"),), P(None, "data"))


# its 24 elements by an all-to-all
@bug(
    "pytorch/pytorch#179502",
    what="view of [12,8], sharded on its last dim, as [16,6]",
    sent=3 / 4 * 24 * 4,
    x=4,
)
def view_across_shards() -> Program:
    return Program(lambda x: x.reshape(16, 6), (normal(12, 8),), (P(None, "x"),), P("x"))


# three blocks of 4 columns
@bug(
    "pytorch/pytorch#144109",
    what="dim of 14 over 4 devices, computed with and left whole",
    sent=3 * 2 * 4 * 4,
    x=4,
)
def uneven_whole() -> Program:
    def f(x):
        return hint(x * 2, None, "x")

    return Program(f, (np.arange(28, dtype=np.float32).reshape(2, 14),), (P(),), P())


# the model to all devices, its gradient back, and the loss
@bug(
    "openxla/xla#10543",
    "jax-ml/jax#20149",
    what="constraint on the targets of a loss: the compiler dies",
    sent=2 * 7 / 8 * 64 * 32 * 4 + 2 * 4,
    dp=8,
)
def constraint_in_loss() -> Program:
    def loss(model, tokens, embedded):
        logits = jnp.einsum("bld,md->blm", embedded, model)
        targets = hint(jax.nn.one_hot(tokens, 64), "dp", None)
        return jnp.einsum("bld,bld->bl", targets, logits).mean()

    args = normal(64, 32), np.zeros((16, 16), np.int32), normal(16, 16, 32, seed=1)
    return Program(jax.value_and_grad(loss), args, (P(None, "dp"), P(), P()), (P(), P(None, "dp")))
