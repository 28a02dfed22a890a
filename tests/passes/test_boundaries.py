"""Boundaries that are padded with what lies near them: neighbours exchange as many rows as a stencil reaches, and no more."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

X = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
ROW, COLUMN = 8 * 4, 16 * 4  # bytes on a device, of 16 x 8 numbers


def padded(x, width, mode):
    p, w = jnp.pad(x, width, mode=mode), width
    return p[: -2 * w, w:-w] - p[2 * w :, w:-w] + 2 * p[w:-w, : -2 * w] * p[w:-w, 2 * w :] + p[w:-w, w:-w]


def lifted(x):
    even, odd = x[::2], x[1::2]
    odd = odd - (even + jnp.roll(even, -1, 0)) / 2
    return jnp.concatenate([even + (odd + jnp.roll(odd, 1, 0)) / 4, odd], 1)


def lowered(fun):
    if jax.device_count() < 8:
        pytest.skip("needs 8 virtual devices")
    mesh = spmd.create_mesh([("a", 4), ("b", 2)])
    found = spmd.spmd_jit(fun, mesh=mesh, in_layouts=P("a", "b"), out_layouts=P("a", "b")).lower(X)
    np.testing.assert_allclose(found.compile()(X), jax.jit(fun)(X), rtol=1e-5, atol=1e-5)
    return found


@pytest.mark.parametrize("mode", ["edge", "reflect", "symmetric", "wrap"])
@pytest.mark.parametrize("width", [1, 2])
def test_padded(mode, width):
    found = lowered(lambda x: padded(x, width, mode))
    assert {c.kind for c in found.collectives()} == {"collective_permute"}
    assert found.comm_bytes() == 2 * width * (ROW + COLUMN)


def test_wide():
    """Almost as wide as the blocks, and not written out position by position."""
    for width, mode in ((7, "edge"), (5, "reflect"), (7, "symmetric"), (6, "wrap")):
        lowered(lambda x, width=width, mode=mode: padded(x, width, mode))


def test_every_second_position_rolls():
    found = lowered(lambda x: lifted(x[:, :8])[:, :16])
    rows = [c for c in found.collectives() if c.kind == "collective_permute" and c.axes == ("a",)]
    assert sum(c.bytes_per_device for c in rows) <= 2 * ROW
