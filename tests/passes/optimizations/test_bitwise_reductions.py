"""and, or, xor over a sharded dim: XLA's CPU and GPU have no such collective for integers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
REDUCE = {"and": (lax.bitwise_and, -1), "or": (lax.bitwise_or, 0), "xor": (lax.bitwise_xor, 0)}


@pytest.mark.parametrize("kind", REDUCE)
@pytest.mark.parametrize("dtype", ["int32", "uint8", "bool"])
@pytest.mark.parametrize("shape, out", [((8, 16), P()), ((8, 16), P("a")), ((6, 5), P()), ((8,), P())])
def test_equal(kind, dtype, shape, out):
    combine, init = REDUCE[kind]
    x = np.random.RandomState(0).randint(-128, 127, shape).astype(dtype)
    first = np.array(init).astype(x.dtype)

    def f(x):
        return lax.reduce(x, first, combine, (0,))

    step = spmd.spmd_jit(f, mesh=MESH, in_layouts=P(("a", "b") if shape[0] == 8 else "b"), out_layouts=out)
    want = getattr(np, f"bitwise_{kind}").reduce(x.astype(np.int8), 0).astype(x.dtype)
    np.testing.assert_array_equal(step(x), want)


def test_what_it_sends():
    """As much as an all-reduce would; the numbers of two small ones go together."""
    x = np.arange(8 * 64, dtype=np.int32).reshape(8, 64)
    mesh = spmd.create_mesh([("a", 8)])

    def f(x):
        return lax.reduce_or(x, (0,))

    step = spmd.spmd_jit(f, mesh=mesh, in_layouts=P("a"), out_layouts=P())
    found = step.lower(x).collectives()
    assert [c.kind for c in found] == ["all_to_all", "all_gather"]
    assert sum(c.bytes_per_device for c in found) == 2 * 7 / 8 * 64 * 4
    step = spmd.spmd_jit(lambda x: (f(x[:, 0]), lax.reduce_or(x, (0, 1))), mesh=mesh, in_layouts=P("a"))
    assert [c.kind for c in step.lower(x).collectives()] == ["all_gather"]
    np.testing.assert_array_equal(step(x), (np.bitwise_or.reduce(x[:, 0]), np.bitwise_or.reduce(x, (0, 1))))


def test_in_a_loop():
    def f(x):
        def step(c, row):
            c = lax.reduce_xor(jnp.bitwise_xor(x, c), (0,)) + row
            return c, c

        return lax.scan(step, x[0], x)

    x = np.random.RandomState(1).randint(0, 99, (8, 6)).astype(np.uint16)
    got = spmd.spmd_jit(f, mesh=MESH, in_layouts=P("a"))(x)
    for g, w in zip(got, jax.jit(f)(x), strict=True):
        np.testing.assert_array_equal(g, w)
