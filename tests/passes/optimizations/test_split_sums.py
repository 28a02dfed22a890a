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


def gradient(rows, m, n, dtype=np.float32, mesh=MESH, rest=1 << 22):
    """The product, in a program that takes `rest` numbers besides."""
    x, g, y = (jax.ShapeDtypeStruct(s, dtype) for s in ((8 * rows, m), (8 * rows, n), (rest,)))
    layouts = (P("a"), P("a"), P())
    return spmd.spmd_jit(lambda x, g, y: (x.T @ g, y), mesh=mesh, in_layouts=layouts).lower(x, g, y)


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float16])
def test_rows_are_summed_over_in_two_dims(dtype):
    program = gradient(64, 16, 64, dtype, rest=1 << 15)
    assert summed(program) == [2]
    rng = np.random.default_rng(0)
    x, g = (rng.normal(size=(512, k)).astype(dtype) for k in (16, 64))
    y = np.zeros(1 << 15, dtype)
    wanted = x.astype(np.float64).T @ g.astype(np.float64)
    atol = 1e-3 if dtype == np.float32 else 1.0
    np.testing.assert_allclose(np.asarray(program.compile()(x, g, y)[0], np.float64), wanted, atol=atol)


def test_in_loops_too():
    def accumulated(xs, gs):
        return jax.lax.scan(lambda w, xg: (w + xg[0].T @ xg[1], None), jnp.zeros((64, 64)), (xs, gs))[0]

    xs = jax.ShapeDtypeStruct((24, 512, 64), np.float32)
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
    assert summed(gradient(1024, 512, 384, rest=1 << 23)) == [2]


def test_not_where_the_transpose_is_much_of_the_memory():
    assert summed(gradient(64, 64, 64, rest=1)) == [1]


def test_only_for_cpus():
    assert summed(gradient(64, 64, 64, mesh=spmd.create_mesh({"a": 8}, abstract=True))) == [1]
