"""Every op family at sizes that the mesh axes don't divide: dims of 0 and 1, several axes on a dim, empty shards."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from tests.share import examples

from .uneven_programs import POSITIVE, PROGRAMS
from .windowed import mesh_of

MESHES = [*((("a", n),) for n in (3, 5, 6, 7, 8)), (("a", 2), ("b", 3)), (("a", 2), ("b", 2), ("c", 2))]
SIZES = (0, 1, 2, 3, 5, 6, 7, 8, 11, 13)


@st.composite
def any_spec(draw, rank, axes):
    """Each axis on some dim, or on none."""
    on = [[] for _ in range(rank)]
    for name, _ in draw(st.permutations(axes)):
        place = draw(st.integers(-1, rank - 1))
        if place >= 0:
            on[place].append(name)
    return P(*(tuple(x) or None for x in on))


def same(got, want):
    assert got.dtype == want.dtype and got.shape == want.shape
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want)
    else:
        tolerance = 5e-2 if want.dtype.name == "bfloat16" else 3e-4
        got, want = got.astype(np.complex128), want.astype(np.complex128)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", PROGRAMS)
@examples(2)
@given(st.data())
def test_equal_to_one_device(name, data):
    axes = data.draw(st.sampled_from(MESHES))
    sizes = data.draw(st.tuples(*[st.sampled_from(SIZES[name in POSITIVE :])] * 3))
    fun, args = PROGRAMS[name](*sizes)
    want = [np.asarray(x) for x in jax.tree.leaves(jax.jit(fun)(*args))]
    ins = tuple(data.draw(any_spec(x.ndim, axes)) for x in args)
    outs = [data.draw(any_spec(x.ndim, axes)) for x in want]
    jax_mesh = mesh_of(axes)
    mesh = spmd.Mesh.from_jax(jax_mesh)

    def at_the_border(*values):
        return jax.tree.leaves(fun(*values))

    def inside(*values):
        def pin(values, specs):
            shardings = [NamedSharding(jax_mesh, s) for s in specs]
            return [jax.lax.with_sharding_constraint(v, s) for v, s in zip(values, shardings, strict=True)]

        return pin(at_the_border(*pin(values, ins)), outs)

    if data.draw(st.booleans()):
        step = spmd.spmd_jit(at_the_border, mesh=mesh, in_layouts=ins, out_layouts=outs)
    else:
        step = spmd.spmd_jit(inside, mesh=mesh, in_layouts=P(), out_layouts=P())
    for g, w in zip(step(*args), want, strict=True):
        same(np.asarray(g), w)


def test_arguments_without_elements():
    """XLA refuses a `shard_map` of nothing else, and JAX 0.10 can't read such a result in shards."""
    mesh = spmd.Mesh.from_jax(mesh_of((("a", 6),)))
    x, y = np.ones((0, 6), np.float32), np.ones((0, 12), np.float32)
    step = spmd.spmd_jit(lambda x, y: (x.sum(0), y * 2), mesh=mesh, in_layouts=P(None, "a"), out_layouts=P())
    total, twice = step(x, y)
    np.testing.assert_array_equal(total, np.zeros(6))
    assert twice.shape == (0, 12)
    step = spmd.spmd_jit(lambda x: x * 2, mesh=mesh, in_layouts=P(None, "a"), out_layouts=P(None, "a"))
    assert np.asarray(step(step(x))).shape == (0, 6)


def test_an_init_survives_an_exchange_of_single_rows():
    """XLA makes a sum of the rows that an all-to-all brings, and forgets where the reduction began (JAX 0.10.2)."""
    mesh = spmd.Mesh.from_jax(mesh_of((("a", 3),)))
    x = np.arange(6, dtype=np.float32).reshape(2, 3)

    def sums(x):
        x = spmd.relayout(spmd.relayout(x, P("a")), P(None, "a"))
        return spmd.relayout(jax.lax.reduce(x, np.float32(3), jax.lax.add, (0,)), P("a"))

    step = spmd.spmd_jit(sums, mesh=mesh, in_layouts=P(), out_layouts=P())
    np.testing.assert_array_equal(np.asarray(step(x)), x.sum(0) + 3)
