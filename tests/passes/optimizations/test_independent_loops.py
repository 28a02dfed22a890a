"""Loops over a sharded batch send nothing where elements that are done stay as they are, and stay together elsewhere."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

START = np.linspace(0.1, 1, 32, dtype=np.float32)
LIMIT = np.linspace(2, 90, 32, dtype=np.float32)[::-1].copy()


def doubled(x, limit):
    return lax.while_loop(lambda x: x < limit, lambda x: 2 * x, x)


def doubled_in_rounds(x, limit):
    def round(state):
        x, count = state
        return doubled(x, limit / (4 - count)), count + 1

    return lax.while_loop(lambda s: (s[0] < limit) & (s[1] < 4), round, (x, 0))


def walk(x, limit):
    def step(state):
        x, key = state
        key, now = jax.random.split(key)
        return x + jnp.abs(jax.random.normal(now)), key

    return lax.while_loop(lambda s: s[0] < limit / 9, step, (x, jax.random.key(3)))[0]


def rows(x, limit):
    grid = jnp.stack([x, 2 * x], 1)
    return jax.vmap(lambda row, limit: lax.while_loop(lambda r: (r < limit).any(), lambda r: 2 * r, row))(
        grid, limit
    )


def counted(x, limit):
    def step(state):
        x, n = state
        return jnp.where(x < limit, 2 * x, x), n + 1

    return lax.while_loop(lambda s: (s[0] < limit).any(), step, (x, 0))


def with_mean(x, limit):
    def step(x):
        return jnp.where(x < limit, 2 * x + x.mean(), x)

    return lax.while_loop(lambda x: (x < limit).any(), step, x)


def only_part_counts(x, limit):
    part = limit > 40

    def step(x):
        return jnp.where(x < limit, 2 * x, x)

    return lax.while_loop(lambda x: jnp.where(part, x < limit, False).any(), step, x)


def changes_otherwise(x, limit):
    return lax.while_loop(lambda x: (x < limit).any(), lambda x: jnp.where(x < limit / 2, 3 * x, x + 9), x)


ALONE = [jax.vmap(doubled), jax.vmap(doubled_in_rounds), jax.vmap(walk), rows]
TOGETHER = [counted, with_mean, only_part_counts, changes_otherwise]


def lowered(fun):
    step = spmd.spmd_jit(fun, mesh=spmd.create_mesh([("a", 4), ("b", 2)]), in_layouts=(P(("a", "b")),) * 2)
    for got, want in zip(
        jax.tree.leaves(step(START, LIMIT)), jax.tree.leaves(jax.jit(fun)(START, LIMIT)), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-5)
    return step.lower(START, LIMIT)


@pytest.mark.parametrize("fun", ALONE)
def test_alone(fun):
    assert not lowered(fun).collectives()


@pytest.mark.parametrize("fun", TOGETHER)
def test_together(fun):
    assert lowered(fun).collectives()
