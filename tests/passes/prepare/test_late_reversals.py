"""Reversed arrays that are reduced: what is reduced need not be reversed first."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
X = np.random.RandomState(0).randn(16, 12).astype("float32")


def lowered(f, spec, *args):
    return spmd.spmd_jit(f, mesh=MESH, in_layouts=spec).lower(*args)


def in_a_loop(x):
    return lax.fori_loop(0, 3, lambda i, s: s + jnp.tanh(x[::-1] * s.sum()).sum(1), jnp.ones(16))


# the bytes that a device sends with x[{a,-}]: of what is left, or of what is reversed where that can't be late
PROGRAMS = {
    "rows summed": (lambda x: x[::-1].sum(1), 16),
    "columns summed": (lambda x: x[::-1].sum(0), 36),
    "behind elementwise ops": (lambda x: jnp.tanh(x[::-1] * 2 + 1).max(1), 16),
    "both reversed": (lambda x: (x[::-1] * jnp.cos(x[::-1])).sum(1), 16),
    "both dims": (lambda x: x[::-1, ::-1].min(1), 16),
    "all": (lambda x: (x[::-1] ** 2).sum(), 6),
    "the largest's place": (lambda x: x[::-1].argmax(1), 16),
    "the largest's place along it": (lambda x: x[::-1].argmax(0), None),
    "weighed by position": (lambda x: (x[::-1] * jnp.arange(16.0)[:, None]).sum(1), None),
    "one of two reversed": (lambda x: (x[::-1] + x).sum(1), None),
    "read twice": (lambda x: (x[::-1].sum(1), x[::-1]), None),
    "in a loop": (in_a_loop, None),
}


@pytest.mark.parametrize("spec", [P("a"), P(None, "a"), P("b", "a"), P(("a", "b")), P()])
@pytest.mark.parametrize("name", PROGRAMS)
def test_the_same_numbers(name, spec):
    f, _ = PROGRAMS[name]
    got = spmd.spmd_jit(f, mesh=MESH, in_layouts=spec)(X)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5), got, jax.jit(f)(X))


@pytest.mark.parametrize("name", [n for n, (_, sent) in PROGRAMS.items() if sent is not None])
def test_what_is_left_is_reversed(name):
    f, sent = PROGRAMS[name]
    assert lowered(f, P("a"), X).comm_bytes() == sent


def test_what_else_is_read_reversed_is_reversed_once():
    both = lowered(PROGRAMS["read twice"][0], P("a"), X)
    assert [op.name for op in both.stages["optimize"].walk()].count("reverse") <= 2
    assert both.comm_bytes() <= X.nbytes / 4 + 16


def test_long_chains():
    """Longer than Python's stack is deep."""

    def chain(x):
        y = x[::-1]
        for _ in range(700):
            y = jnp.sin(y)
        return y.sum(1)

    low = lowered(chain, P("a"), X)
    assert low.comm_bytes() == 16
