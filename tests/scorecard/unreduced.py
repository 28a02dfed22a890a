"""Values whose type says that a sum over an axis is still due, in JAX's explicit mode."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from .registry import Program, bug, integers, normal


# reduce-scatter over y, then an all-reduce of the quarter over x
@bug(
    "openxla/xla#40034",
    what="a sum due over two axes, relaid to be sharded over one of them",
    sent=3 / 4 * 16 * 8 * 4 + 16 * 8 * 4 / 4,
    x=2,
    y=4,
)
def unreduced_to_mixed() -> Program:
    def f(a, b):
        both = jnp.einsum("ij,jk->ik", a, b, out_sharding=P(None, None, unreduced={"x", "y"}))
        return jax.sharding.reshard(both, P("y", None))

    args = normal(16, 32), normal(32, 8, seed=1)
    return Program(
        f, args, (P(None, ("x", "y")), P(("x", "y"), None)), explicit=True, reference=lambda a, b: a @ b
    )


# the type says that dp is summed before tp: an all-reduce, then a reduce-scatter
@bug(
    "openxla/xla#42481",
    what="gradient of a lookup in a table that is sharded outside",
    sent=16 * 8 * 4 + 3 / 4 * 16 * 8 * 4,
    dp=2,
    tp=4,
)
def gradient_of_reduced_table() -> Program:
    def rows(table, ids):
        whole = jax.sharding.reshard(table, P(None, None, reduced={"tp"}))
        return whole.at[ids].get(out_sharding=P("dp", "tp", None))

    def f(table, ids, cotangents):
        return jax.grad(lambda t: jnp.sum(rows(t, ids) * cotangents))(table)

    def reference(table, ids, cotangents):
        return jax.grad(lambda t: jnp.sum(t[ids] * cotangents))(table)

    args = normal(16, 8), integers(8, 4, 8), normal(4, 8, 8, seed=1)
    specs = P("tp", None), P("dp", "tp"), P("dp", "tp", None)
    return Program(f, args, specs, explicit=True, reference=reference)


@bug("jax-ml/jax#31931", what="a scalar sum that is still due", sent=4, x=2, y=2)
def unreduced_scalar() -> Program:
    def f(a, b):
        due = jnp.einsum("f,f->", a, b, out_sharding=P(unreduced={"x"}))
        return jax.sharding.reshard(due, P())

    args = normal(8), normal(8, seed=1)
    return Program(f, args, (P("x"), P("x")), explicit=True, reference=lambda a, b: (a * b).sum())
