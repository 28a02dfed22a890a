"""dynamic_slice and dynamic_update_slice along sharded dims."""

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

few = examples(14)
meshes = st.sampled_from(MESHES)
INDEX_TYPES = ["int32", "uint32", "int8", "uint8", "int16"]


def start_of(data, n: int) -> np.ndarray:
    """A start index of some type, also far out of range and negative."""
    dtype = np.dtype(data.draw(st.sampled_from(INDEX_TYPES)))
    info = np.iinfo(dtype)
    near = st.integers(max(info.min, -n - 2), min(info.max, 2 * n))
    return np.array(data.draw(near | st.sampled_from([info.min, info.max])), dtype)


@few
@given(st.data(), meshes, st.sampled_from(["float32", "int32", "bool", "complex64", "bfloat16"]))
def test_slice(data, axes, dtype):
    n, m = data.draw(st.integers(2, 29)), data.draw(st.integers(2, 9))
    sizes = data.draw(st.integers(1, n)), data.draw(st.integers(1, m))
    spec = data.draw(spec_of(2, axes, (0, 1)))
    out = data.draw(spec_of(2, axes, (0, 1)) | st.just(P()))
    start = start_of(data, n)
    starts = [start, start_of(data, m).astype(start.dtype)]
    x = np.asarray(jnp.asarray(sample(n, m) * 3, dtype))
    fun = lambda x, i, j: lax.dynamic_slice(x, (i, j), sizes)  # noqa: E731
    with spread_out("dynamic_slice"):
        run(fun, [x, *starts], axes, [spec, P(), P()], out=out)


@few
@given(st.data(), meshes, st.sampled_from(["float32", "int8", "bool", "float8_e4m3fn"]))
def test_update(data, axes, dtype):
    n, m = data.draw(st.integers(2, 29)), data.draw(st.integers(2, 9))
    sizes = data.draw(st.integers(1, n)), data.draw(st.integers(1, m))
    spec = data.draw(spec_of(2, axes, (0, 1)))
    of_update = data.draw(spec_of(2, axes, (0, 1)) | st.just(P()))
    start = start_of(data, n)
    starts = [start, start_of(data, m).astype(start.dtype)]
    x, u = (np.asarray(jnp.asarray(sample(*s) * 3, dtype)) for s in ((n, m), sizes))
    fun = lambda x, u, i, j: lax.dynamic_update_slice(x, u, (i, j))  # noqa: E731
    with spread_out("dynamic_update_slice"):
        run(fun, [x, u, *starts], axes, [spec, of_update, P(), P()], out=spec)


LEAN = {
    "slice": lambda x, u, i: (lax.dynamic_slice_in_dim(x, i, 3), u),
    "row": lambda x, u, i: (x[i], u),
    "update": lambda x, u, i: lax.dynamic_update_slice_in_dim(x, u, i, 0),
    "row_update": lambda x, u, i: x.at[i].set(u[0]),
    "loop": lambda x, u, i: lax.fori_loop(0, 5, lambda k, x: x.at[i + k].set(u[0] * k), x),
}


@pytest.mark.parametrize("name", LEAN)
@pytest.mark.parametrize("start", [-3, 0, 254, 511, 1023, 9999])
def test_moves_the_window_only(name, start):
    """The operand stays where it is: a few rows travel at most, and an update sends nothing."""
    x, u = sample(1024, 32), sample(3, 32) + 1
    spec = P(("a", "b"))
    mesh = spmd.create_mesh([("a", 4), ("b", 2)])
    step = spmd.spmd_jit(LEAN[name], mesh=mesh, in_layouts=(spec, P(), P()))
    args = x, u, np.int32(start)
    jax.tree.map(np.testing.assert_array_equal, step(*args), jax.jit(LEAN[name])(*args))
    lowered = step.lower(*args)
    assert not gathered(lowered)
    assert lowered.comm_bytes() <= (0 if "update" in name or name == "loop" else 2 * 3 * 32 * 4)


def test_gradient_of_a_slice():
    x = sample(64, 8)
    fun = jax.grad(lambda x, i: jnp.sum(jnp.sin(lax.dynamic_slice_in_dim(x, i, 5))))
    lowered = run(fun, [x, np.array(30)], (("a", 8),), [P("a"), P()], out=P("a"))
    assert all(c.bytes_per_device <= 5 * 8 * 4 for c in gathered(lowered))  # the window at most, never x


@few
@given(st.data(), st.sampled_from([*MESHES, (("a", 5),), (("a", 7),)]), st.integers(1, 40), st.booleans())
def test_roll_by_a_traced_shift(data, axes, size, rows):
    x = sample(size, 3) if rows else sample(size)
    spec = P(tuple(a for a, _ in axes))
    shift = start_of(data, size)
    with spread_out("dynamic_roll"):
        run(lambda x, i: jnp.roll(x, i, 0) * 2, [x, shift], axes, [spec, P()], out=spec)


def test_roll_by_a_traced_shift_sends_a_few_blocks():
    x = sample(4096)
    step = spmd.spmd_jit(
        jnp.roll,
        mesh=spmd.create_mesh([("a", 8)]),
        in_layouts=(P("a"), P()),
        out_layouts=P("a"),
    )
    for shift in (0, 1, -1, 500, 512, 5000):
        np.testing.assert_array_equal(step(x, np.int32(shift)), np.roll(x, shift))
    sent = step.lower(x, np.int32(0)).collectives()
    assert {c.kind for c in sent} == {"collective_permute"}
    assert sum(c.bytes_per_device for c in sent) == 4 * x.nbytes / 8


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "complex64"])
def test_infinities_pass(value, dtype):
    x = np.full((16, 2), value, dtype)
    step = spmd.spmd_jit(
        lambda x, i: x[i], mesh=spmd.create_mesh([("a", 8)]), in_layouts=(P("a"), P()), out_layouts=P()
    )
    np.testing.assert_array_equal(step(x, np.int32(5)), x[5])
