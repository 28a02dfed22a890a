"""Updates of windows whose place is known."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from tests.share import examples

from .windowed import MESHES, run, sample, spec_of

few = examples(20)
HOW = ["set", "add", "multiply", "min", "max"]


@few
@given(
    st.data(), st.sampled_from(MESHES), st.sampled_from(HOW), st.sampled_from(["float32", "int32", "bool"])
)
def test_windows(data, axes, how, dtype):
    if dtype == "bool" and how in ("add", "multiply"):
        dtype = "int8"  # JAX has these for numbers only
    n, m = data.draw(st.integers(2, 23)), data.draw(st.integers(2, 9))
    k, j = data.draw(st.integers((n + 1) // 2, n)), data.draw(st.integers(1, m))
    start, column = data.draw(st.integers(0, n - k)), data.draw(st.integers(0, m - j))
    x, u = (np.asarray(jnp.asarray(sample(*s) * 3, dtype)) for s in ((n, m), (k, j)))
    spec = data.draw(spec_of(2, axes, (0, 1)))
    fun = lambda x, u: getattr(x.at[start : start + k, column : column + j], how)(u)  # noqa: E731
    run(fun, [x, u], axes, [spec, data.draw(spec_of(2, axes, (0, 1)))], out=spec)


@pytest.mark.parametrize("start", [-5, 0, 2, 9])
def test_start_out_of_bounds(start):
    """dynamic_update_slice clamps it; a scatter drops the update."""
    x, u = sample(9, 4), sample(7, 4)
    spec = P("a")
    run(lambda x, u: lax.dynamic_update_slice(x, u, (start, 0)), [x, u], (("a", 4),), [spec, spec], out=spec)
    numbers = lax.ScatterDimensionNumbers((0, 1), (), (0,))
    mode = lax.GatherScatterMode.FILL_OR_DROP
    fun = lambda x, u: lax.scatter(x, np.array([start]), u, numbers, mode=mode)  # noqa: E731
    run(fun, [x, u], (("a", 4),), [spec, spec], out=spec)


def test_negative_zero_stays():
    x = np.full((8, 2), -0.0, np.float32)
    step = spmd.spmd_jit(
        lambda x: x.at[1:7].add(-0.0), mesh=spmd.create_mesh([("a", 8)]), in_layouts=(P("a"),)
    )
    assert np.signbit(np.asarray(step(x))).all()


@pytest.mark.parametrize("loop", [False, True])
def test_interior_of_a_stencil_sends_halos(loop):
    def once(x):
        inner = x[1:-1, 1:-1]
        around = x[2:, 1:-1] + x[:-2, 1:-1] + x[1:-1, 2:] + x[1:-1, :-2]
        return x.at[1:-1, 1:-1].set(inner + 0.1 * (around - 4 * inner))

    fun = (lambda x: lax.fori_loop(0, 3, lambda i, x: once(x), x)) if loop else once
    x = sample(512, 64)
    spec = P("a")
    step = spmd.spmd_jit(fun, mesh=spmd.create_mesh([("a", 8)]), in_layouts=(spec,), out_layouts=spec)
    np.testing.assert_allclose(step(x), jax.jit(fun)(x), rtol=1e-4, atol=1e-5)
    lowered = step.lower(x)
    assert {c.kind for c in lowered.collectives()} == {"collective_permute"}
    assert lowered.comm_bytes() <= (3 if loop else 1) * 4 * 64 * 4
