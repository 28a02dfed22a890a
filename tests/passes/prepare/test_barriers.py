"""optimization_barrier: each value in the layout that suits it, one op again at the end."""

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
X = np.random.RandomState(0).randn(8, 16).astype(np.float32)
W = np.random.RandomState(1).randn(16, 8).astype(np.float32)


def barriers(module):
    return [op for op in module.walk() if op.name == "optimization_barrier"]


def test_each_value_keeps_its_layout():
    def f(x, w, n):
        x, w, n = lax.optimization_barrier((x, w, n))
        return x @ w + n

    step = spmd.spmd_jit(f, mesh=MESH, in_layouts=(P("a"), P(None, "b"), P()), out_layouts=P("a", "b"))
    lowered = step.lower(X, W, 2.0)
    assert lowered.collectives() == []
    (barrier,) = barriers(lowered.stages["optimize"])
    assert [v.type.shape for v in barrier.operands] == [(2, 16), (16, 4), ()]
    assert "group" not in barrier.attrs
    np.testing.assert_allclose(step(X, W, 2.0), X @ W + 2, rtol=1e-4, atol=1e-5)


def test_terms_of_a_sum_pass():
    """What is summed behind the barrier is not summed before it, and what stands before is scattered once."""

    def f(x, w):
        y, z = lax.optimization_barrier((x @ w, jnp.sin(x)))
        return (y * 2).sum(0), z.sum()

    step = spmd.spmd_jit(f, mesh=MESH, in_layouts=(P(None, "a"), P("a")), out_layouts=(P(), P()))
    lowered = step.lower(X, W)
    assert {c.kind for c in lowered.collectives()} == {"all_reduce"}
    assert lowered.comm_bytes() <= 2 * 3 / 4 * 4 * (8 + 1)
    got = step(X, W)
    np.testing.assert_allclose(got[0], (X @ W * 2).sum(0), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(got[1], np.sin(X).sum(), rtol=1e-4, atol=1e-4)


def test_in_loops_and_apart():
    def f(x, w):
        def step(c, _):
            x, w = lax.optimization_barrier(c)
            h, w = lax.optimization_barrier((jnp.tanh(x @ w) @ w.T, w))
            return (h, w * 0.9), None

        return lax.scan(step, (x, w), length=3)[0]

    step = spmd.spmd_jit(f, mesh=MESH, in_layouts=(P("a"), P("b")), out_layouts=(P("a"), P("b")))
    found = barriers(step.lower(X, W).stages["optimize"])
    assert [len(op.operands) for op in found] == [2, 2]
    x, w = X, W
    for _ in range(3):
        x, w = np.tanh(x @ w) @ w.T, w * np.float32(0.9)
    for got, want in zip(step(X, W), (x, w), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
