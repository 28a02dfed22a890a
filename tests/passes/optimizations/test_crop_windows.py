"""Convolutions with negative padding, which XLA gets wrong on CPUs with JAX 0.10, also where nothing is sharded."""

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

NUMBERS = ("NHC", "HIO", "NHC")


def sample(*shape):
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("base", [1, 2])
@pytest.mark.parametrize("padding", [(-1, 1), (2, -3), (-1, -2), (-9, 12), (13, -8), (0, 1)], ids=str)
def test_negative_padding(padding, base):
    x, w = sample(2, 6, 3), sample(3, 3, 2)

    def conv(x, w):
        return lax.conv_general_dilated(x, w, (1,), [padding], (base,), (1,), NUMBERS)

    padded = lax.pad(x, np.float32(0), ((0, 0, 0), (*padding, base - 1), (0, 0, 0)))
    want = lax.conv_general_dilated(padded, w, (1,), [(0, 0)], (1,), (1,), NUMBERS)
    mesh = spmd.create_mesh({"a": 2}, devices=jax.devices()[:2])
    for spec in (P(), P("a"), P(None, "a")):
        step = spmd.spmd_jit(conv, mesh=mesh, in_layouts=(spec, P()), out_layouts=P())
        np.testing.assert_allclose(step(x, w), want, rtol=1e-5, atol=1e-5)
        ops = step.lower(x, w).stages["optimize"].main.body.walk()
        assert all(
            n >= 0 for op in ops if op.name == "convolution" for side in op.attrs["padding"] for n in side
        )
