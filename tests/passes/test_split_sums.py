"""Products that sum over rows, as XLA for CPUs runs them fast."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh({"a": 8})


def summed(program):
    """Over how many dims its products sum."""
    return [
        len(op.attrs["contract"][0]) for op in program.stages["optimize"].walk() if op.name == "dot_general"
    ]


def gradient(rows, m, n, dtype=np.float32, mesh=MESH):
    x, g = (jax.ShapeDtypeStruct((8 * rows, k), dtype) for k in (m, n))
    return spmd.spmd_jit(lambda x, g: x.T @ g, mesh=mesh, in_layouts=(P("a"), P("a"))).lower(x, g)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
def test_rows_are_summed_over_in_two_dims(dtype):
    program = gradient(64, 16, 64, dtype)
    assert summed(program) == [2]
    rng = np.random.default_rng(0)
    x, g = (rng.normal(size=(512, k)).astype(dtype) for k in (16, 64))
    wanted = x.astype(np.float64).T @ g.astype(np.float64)
    atol = 1e-3 if dtype == np.float32 else 1.0
    np.testing.assert_allclose(np.asarray(program.compile()(x, g), np.float64), wanted, atol=atol)


def test_in_loops_too():
    def accumulated(xs, gs):
        return jax.lax.scan(lambda w, xg: (w + xg[0].T @ xg[1], None), jnp.zeros((64, 64)), (xs, gs))[0]

    xs = jax.ShapeDtypeStruct((3, 512, 64), np.float32)
    rows = P(None, "a")
    assert summed(spmd.spmd_jit(accumulated, mesh=MESH, in_layouts=(rows, rows)).lower(xs, xs)) == [2]


@pytest.mark.parametrize(
    ("rows", "m", "n", "dtype"),
    [(63, 64, 64, "f4"), (32, 64, 64, "f4"), (64, 64, 32, "f4"), (64, 64, 64, "i4"), (1024, 512, 256, "f4")],
    ids=["odd", "few_rows", "few_columns", "integers", "more_than_a_cache"],
)
def test_others_stay(rows, m, n, dtype):
    assert summed(gradient(rows, m, n, np.dtype(dtype))) == [1]


def test_where_much_is_computed_it_may_be_more_than_a_cache():
    assert summed(gradient(1024, 512, 384)) == [2]


def test_only_for_cpus():
    assert summed(gradient(64, 64, 64, mesh=spmd.create_mesh({"a": 8}, abstract=True))) == [1]
