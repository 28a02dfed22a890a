"""Every family of rules on every element type, rank and size: equal to one device, or refused by JAX itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from tests.share import examples

from .dtype_programs import DTYPES, FAMILIES, data

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
SMALL = {d for d in DTYPES if d not in ("float32", "int32", "bool", "complex64")}
SIZES = (0, 1, 2, 3, 4, 5, 8)


@st.composite
def layouts(draw, rank):
    """Each axis on some dim, or on none."""
    dims = [[] for _ in range(rank)]
    for axis in draw(st.permutations(["a", "b"])):
        d = draw(st.integers(-1, rank - 1))
        if d >= 0:
            dims[d].append(axis)
    return P(*(tuple(d) if d else None for d in dims))


@st.composite
def cases(draw):
    shape = tuple(draw(st.lists(st.sampled_from(SIZES), max_size=6)))
    while np.prod(shape) > 2000:
        shape = shape[1:]
    inside = draw(layouts(len(shape)))
    return draw(st.sampled_from(DTYPES)), shape, draw(layouts(len(shape))), inside, draw(st.integers(0, 99))


def check(family, dtype, shape, spec, inside, seed):
    """False where one device can't run the program either, such as for numbers of four bits."""
    x = data(dtype, shape, seed)
    where = jax.sharding.NamedSharding(MESH.to_jax(), inside)

    def program(x):
        return FAMILIES[family](jax.lax.with_sharding_constraint(x, where))

    try:
        want = [np.asarray(w) for w in jax.tree.leaves(jax.jit(FAMILIES[family])(x))]
    except Exception:
        return False
    got = jax.tree.leaves(spmd.spmd_jit(program, mesh=MESH, in_layouts=spec)(x))
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert (g.shape, g.dtype) == (w.shape, w.dtype), i
        g = np.asarray(g)
        if w.dtype.kind in "biu" or g.tobytes() == w.tobytes():
            np.testing.assert_array_equal(g, w, f"result {i}")
            continue
        wide = complex if jnp.issubdtype(w.dtype, jnp.complexfloating) else float
        near = 1e-4 if w.dtype.itemsize >= 4 else 4 * float(jnp.finfo(w.dtype).eps)
        np.testing.assert_allclose(
            g.astype(wide), w.astype(wide), rtol=near, atol=near, err_msg=f"result {i}"
        )
    return True


@pytest.mark.parametrize("family", FAMILIES)
@examples(2, derandomize=True, database=None)
@given(case=cases())
@example(case=("int4", (8, 3), P("a"), P("b", "a"), 0))
@example(case=("float8_e5m2", (5, 8), P("b"), P(("a", "b")), 0))
@example(case=("complex64", (4, 0, 2), P("a"), P(None, "a"), 0))
def test_equal_to_one_device(family, case):
    assert check(family, *case) or case[0] in SMALL


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["complex128", "int64"])
def test_64_bits(family, dtype):
    with jax.enable_x64(True):
        assert check(family, dtype, (5, 2, 4), P("a", "b"), P(None, "b", "a"), 0)
