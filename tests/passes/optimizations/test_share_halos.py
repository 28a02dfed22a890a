"""What several permutes send of one value is sent once."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

X = np.random.default_rng(0).normal(size=(32, 16, 3)).astype(np.float32)
ROW, COLUMN, CORNER = 8 * 3 * 4, 8 * 3 * 4, 3 * 4  # bytes on a device, of 8 x 8 x 3 numbers


def stencil(x):
    return sum(i * jnp.roll(x, (i, j), (0, 1)) - j * x for i, j in itertools.product((-1, 0, 1), repeat=2))


def padded(x):
    y = jnp.pad(x, ((2, 2), (0, 0), (0, 0)))
    return y[:-4] + y[1:-3] * y[3:-1] - y[4:]


def loop(x):
    return jax.lax.fori_loop(0, 2, lambda i, x: jnp.tanh(stencil(x)), x)


@pytest.mark.parametrize(
    ("fun", "sent"),
    [
        (lambda x: x + sum(jnp.roll(x, k, 0) * k for k in (1, 2, 4)), 4 * ROW),
        (lambda x: jnp.roll(x, 1, 0) - jnp.roll(x, -1, 0), 2 * ROW),
        (stencil, 2 * ROW + 2 * COLUMN + 4 * CORNER),
        (loop, 2 * (2 * ROW + 2 * COLUMN + 4 * CORNER)),
        (padded, 4 * ROW),
    ],
)
def test_bytes(fun, sent):
    if jax.device_count() < 8:
        pytest.skip("needs 8 virtual devices")
    mesh = spmd.create_mesh([("a", 4), ("b", 2)])
    lowered = spmd.spmd_jit(fun, mesh=mesh, in_layouts=P("a", "b"), out_layouts=P("a", "b")).lower(X)
    np.testing.assert_allclose(lowered.compile()(X), jax.jit(fun)(X), rtol=1e-5, atol=1e-5)
    assert {c.kind for c in lowered.collectives()} == {"collective_permute"}
    assert lowered.comm_bytes() == sent
