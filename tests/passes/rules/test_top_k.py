"""top_k along sharded dims."""

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

from .forced import spread_out
from .windowed import MESHES, gathered, run, sample, spec_of

few = examples(12)


@few
@given(
    st.data(),
    st.sampled_from(MESHES),
    st.sampled_from(["float32", "bfloat16", "int8", "uint32", "bool"]),
    st.booleans(),
)
def test_top_k(data, axes, dtype, alike):
    """Also with many equal entries, with k beyond a device's block, and with padding."""
    m, n = data.draw(st.integers(0, 5)), data.draw(st.integers(2, 40))
    k = data.draw(st.integers(1, n))
    spec = data.draw(spec_of(2, axes, (0, 1, 1)))
    x = np.asarray(jnp.asarray(np.round(sample(m, n)) if alike else sample(m, n) * 9, dtype))
    with spread_out("chlo.top_k"):
        run(lambda x: lax.top_k(x, k), [x], axes, [spec])


@pytest.mark.parametrize("k", [1, 3, 7, 8])
def test_order_of_special_values(k):
    nan = np.float32(np.nan)
    x = np.array([-nan, 1, nan, -np.inf, 0.0, -0.0, np.inf, -nan], np.float32)
    with spread_out("chlo.top_k"):
        run(lambda x: lax.top_k(x, k), [x], (("a", 3),), [P("a")])
        run(lambda x: lax.top_k(x, k), [np.full(13, -nan)], (("a", 3),), [P("a")])


@pytest.mark.parametrize("spec", [P(None, ("a", "b")), P("a", "b"), P("b", "a")])
def test_candidates_travel_only(spec):
    x = sample(64, 8192)
    step = spmd.spmd_jit(
        lambda x: lax.top_k(x, 8), mesh=spmd.create_mesh([("a", 4), ("b", 2)]), in_layouts=(spec,)
    )
    jax.tree.map(np.testing.assert_array_equal, step(x), lax.top_k(x, 8))
    lowered = step.lower(x)
    assert not gathered(lowered)
    assert lowered.comm_bytes() <= 7 * 64 * 8 * 8


@few
@given(st.data(), st.sampled_from(MESHES), st.integers(0, 1), st.booleans())
def test_approximate(data, axes, dim, aggregate):
    """On CPU it is exact."""
    shape = data.draw(st.tuples(st.integers(2, 30), st.integers(2, 30)))
    k = data.draw(st.integers(1, shape[dim]))
    spec = data.draw(spec_of(2, axes, (0, 1)))
    fun = lambda x: lax.approx_max_k(x, k, reduction_dimension=dim, aggregate_to_topk=aggregate)  # noqa: E731
    run(fun, [sample(*shape)], axes, [spec])


def test_approximate_candidates_travel_only():
    x = sample(4, 8192)
    step = spmd.spmd_jit(
        lambda x: lax.approx_min_k(x, 8), mesh=spmd.create_mesh([("a", 8)]), in_layouts=(P(None, "a"),)
    )
    jax.tree.map(np.testing.assert_array_equal, step(x), jax.jit(lambda x: lax.approx_min_k(x, 8))(x))
    assert step.lower(x).comm_bytes() <= 7 * 4 * 8 * 8
