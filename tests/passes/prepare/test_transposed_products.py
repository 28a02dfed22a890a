"""Transposes of matrix products become products, where they only trade the operands' dims, and nowhere else."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

X = np.random.RandomState(0).randn(4, 8, 16).astype(np.float32)
G = np.random.RandomState(1).randn(4, 8, 6).astype(np.float32)


def product(batch, inner, **more):
    return lambda x, g: lax.dot_general(g, x, ((inner, inner), (batch, batch)), **more)


def turned(f, order):
    return lambda x, g: f(x, g).transpose(order)


def weight_gradient(x, g):
    return jax.grad(lambda w: jnp.vdot(x @ w, g))(jnp.ones((16, 6)))


def heads_gradient(x, g):
    w = jnp.ones((16, 2, 3))
    return jax.grad(lambda w: jnp.vdot(jnp.einsum("bsd,dhk->bshk", x, w), g.reshape(4, 8, 2, 3)))(w)


def both_used(x, g):
    y = product((), (0, 1))(x, g)
    return y.T @ y


def tied_gradient(x, g):
    return jax.grad(lambda w: jnp.vdot(x @ w.T, g))(jnp.ones((6, 16)))


GONE = {
    "tied_gradient": tied_gradient,
    "weight_gradient": weight_gradient,
    "heads_gradient": heads_gradient,
    "batched": turned(product((0,), (1,)), (0, 2, 1)),
    "precision": turned(product((), (0, 1), precision=("highest", "default")), (1, 0)),
    "in_a_loop": lambda x, g: lax.fori_loop(0, 3, lambda i, w: w + weight_gradient(x, g), jnp.zeros((16, 6))),
}
KEPT = {
    "both_used": both_used,
    "batch_last": turned(product((0,), (1,)), (1, 2, 0)),
    "dims_of_one_side": turned(product((), (0,)), (1, 0, 2, 3)),
    "algorithm": turned(product((), (0, 1), precision=lax.DotAlgorithmPreset.F32_F32_F32), (1, 0)),
}


def program(fun):
    step = spmd.spmd_jit(fun, mesh=spmd.create_mesh([("a", 8)]), in_layouts=(P(None, "a"), P(None, "a")))
    np.testing.assert_allclose(step(X, G), jax.jit(fun)(X, G), rtol=1e-4, atol=1e-4)
    return list(step.lower(X, G).stages["propagate"].walk())


def transposes(fun):
    return [op for op in program(fun) if op.name == "transpose"]


@pytest.mark.parametrize("name", GONE)
def test_gone(name):
    assert not transposes(GONE[name])


@pytest.mark.parametrize("name", KEPT)
def test_kept(name):
    assert transposes(KEPT[name])


def test_the_last_dim_stays_last():
    """As of what attention reads from its values: the product's other dims are moved, not these."""
    [transpose] = transposes(turned(product((0,), (1,)), (2, 0, 1)))
    assert transpose.attrs["permutation"] == (1, 0, 2)
    assert transpose.operands[0].type.shape == (4, 16, 6)


def test_precision_stays_with_its_operand():
    [dot] = [op for op in program(GONE["precision"]) if op.name == "dot_general"]
    assert dot.attrs["precision_config"] == ("DEFAULT", "HIGHEST")
