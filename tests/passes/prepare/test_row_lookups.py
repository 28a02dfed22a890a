"""Lookups of rows by their own number: equal to one device's, and nothing is sent where rows are sharded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

ROWS, COLUMNS = 16, 8


def xent_gradient(x, i):
    return jax.grad(lambda x: -jax.nn.log_softmax(x)[jnp.arange(ROWS), i].sum())(x)


def in_one_batch_more(x, i):
    both = jnp.stack([x, 2 * x], 1)
    return both[jnp.arange(ROWS)[:, None], jnp.arange(2)[None], i[:, None]]


def numbers_that_wrap(x, i):
    rows = jnp.arange(320).astype(jnp.int8).astype(jnp.int32)
    return jnp.tile(x, (20, 1))[rows, jnp.tile(i, 20)]


SENDS_NOTHING = {
    "get": lambda x, i: x[jnp.arange(ROWS), i],
    "get_clip": lambda x, i: x.at[jnp.arange(ROWS), i].get(mode="clip"),
    "get_fill": lambda x, i: x.at[jnp.arange(ROWS), i + 3].get(mode="fill", fill_value=7),
    "set": lambda x, i: x.at[jnp.arange(ROWS), i].set(9),
    "add_out_of_range": lambda x, i: x.at[jnp.arange(ROWS), i + 3].add(9, mode="drop"),
    "several_of_a_row": lambda x, i: x.at[jnp.arange(ROWS)[:, None], jnp.stack([i, i], 1)].add(1),
    "rows_second": lambda x, i: x.T[i, jnp.arange(ROWS)],
    "unsigned": lambda x, i: x[jnp.arange(ROWS, dtype=jnp.uint8), i],
    "in_one_batch_more": in_one_batch_more,
    "xent_gradient": xent_gradient,
}
OTHERS = {
    "half_of_the_rows": lambda x, i: x[jnp.arange(ROWS // 2), i[: ROWS // 2]],
    "rows_backwards": lambda x, i: x[ROWS - 1 - jnp.arange(ROWS), i],
    "diagonal": lambda x, i: x[:COLUMNS][jnp.arange(COLUMNS), jnp.arange(COLUMNS)],
    "numbers_that_wrap": numbers_that_wrap,
}


def compiled(fun):
    x = np.random.RandomState(0).randn(ROWS, COLUMNS).astype(np.float32)
    i = np.random.RandomState(1).randint(-COLUMNS, COLUMNS, ROWS).astype(np.int32)
    step = spmd.spmd_jit(fun, mesh=spmd.create_mesh([("a", 8)]), in_layouts=(P("a"), P("a")))
    np.testing.assert_allclose(step(x, i), jax.jit(fun)(x, i), rtol=1e-6)
    return step.lower(x, i)


@pytest.mark.parametrize("name", SENDS_NOTHING)
def test_sends_nothing(name):
    assert not compiled(SENDS_NOTHING[name]).collectives()


@pytest.mark.parametrize("name", OTHERS)
def test_others(name):
    compiled(OTHERS[name])
