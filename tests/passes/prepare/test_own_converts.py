"""Values that are converted from narrower types, and read in several layouts, are sent in the narrow type."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
RNG = np.random.RandomState(0)


def square(x):
    y = x.astype(jnp.float32)
    return y @ y


def square_of_two(x, y):
    return x.astype(jnp.float32) @ y.astype(jnp.float32)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, jnp.bfloat16])
def test_one_is_sent_as_two_are(dtype):
    x = RNG.randint(0, 2, (64, 64)).astype(dtype)
    one = spmd.spmd_jit(square, mesh=MESH, in_layouts=P("a", "b"))
    two = spmd.spmd_jit(square_of_two, mesh=MESH, in_layouts=P("a", "b"))
    assert one.lower(x).comm_bytes() <= two.lower(x, x).comm_bytes()
    np.testing.assert_allclose(one(x), jax.jit(square)(x), rtol=1e-5)


def test_conversions_that_lie_alike_are_one_again():
    def f(x):
        y = x.astype(jnp.float32)
        return jnp.sin(y), jnp.cos(y), jnp.tan(y)

    lowered = spmd.spmd_jit(f, mesh=MESH, in_layouts=P("a")).lower(jnp.ones((8, 8), jnp.bfloat16))
    assert [op.name for op in lowered.stages["optimize"].walk()].count("convert") == 1
