"""fft: batch dims, and transformed dims that are sharded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

from .forced import spread_out
from .windowed import MESHES, gathered, run, sample, spec_of

few = settings(max_examples=20, deadline=None)
KINDS = {
    "fftn": jnp.fft.fftn,
    "ifftn": jnp.fft.ifftn,
    "rfftn": lambda x, axes: jnp.fft.rfftn(x.real, axes=axes),
    "irfftn": jnp.fft.irfftn,
}


@few
@given(st.data(), st.sampled_from(MESHES), st.sampled_from(sorted(KINDS)), st.booleans())
def test_any_dims(data, axes, kind, forced):
    shape = data.draw(st.tuples(*[st.integers(2, 11)] * 3))
    dims = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=3, unique=True))
    x = (sample(*shape) + 1j * sample(*shape)[::-1]).astype(np.complex64)
    spec, out = data.draw(spec_of(3, axes, (0, 1, 2))), data.draw(spec_of(3, axes, (0, 1, 2)))
    fun = lambda x: KINDS[kind](x, axes=dims)  # noqa: E731
    if forced:
        with spread_out("fft"):
            run(fun, [x], axes, [spec], out=out, tolerance=1e-3)
    else:
        run(fun, [x], axes, [spec], out=out, tolerance=1e-3)


@pytest.mark.parametrize("kind", ["fft2", "ifft2", "fft", "fft_rows"])
def test_is_transposed_not_gathered(kind):
    x = (sample(128, 128) + 1j).astype(np.complex64)
    fun = (lambda x: jnp.fft.fft(x, axis=0)) if kind == "fft_rows" else getattr(jnp.fft, kind)
    spec = P(None, "a") if kind == "fft" else P("a")
    step = spmd.spmd_jit(fun, mesh=spmd.create_mesh([("a", 8)]), in_layouts=(spec,))
    np.testing.assert_allclose(step(x), jax.jit(fun)(x), rtol=1e-3, atol=1e-3)
    lowered = step.lower(x)
    assert not any(c.kind == "all_gather" for c in lowered.collectives())
    assert lowered.comm_bytes() <= 7 / 8 * x.nbytes / 8


def test_two_axes():
    x = (sample(32, 64) + 1j).astype(np.complex64)
    spec = P("a", "b")
    lowered = run(jnp.fft.fft2, [x], (("a", 4), ("b", 2)), [spec], out=spec, tolerance=1e-3)
    assert not [c for c in gathered(lowered) if c.kind == "all_gather"]
    moved = [c.bytes_per_device for c in lowered.collectives() if c.kind == "all_to_all"]
    assert sum(moved) <= 3 * x.nbytes / 8


def placed(fun, x, mesh, spec):
    """The collectives where operand and result are laid out so, after a check of the result."""
    step = spmd.spmd_jit(fun, mesh=spmd.create_mesh(mesh), in_layouts=(spec,), out_layouts=spec)
    np.testing.assert_allclose(step(x), jax.jit(fun)(x), rtol=1e-3, atol=1e-3)
    return step.lower(x).collectives()


@pytest.mark.parametrize("kind", ["fft", "ifft"])
@pytest.mark.parametrize("shape", [(4096,), (3, 2048)])
@pytest.mark.parametrize(("on", "n"), [("a", 4), (("a", "b"), 8)])
def test_the_only_dim_stays_sharded(kind, shape, on, n):
    x = (sample(*shape) + 1j * sample(*shape)[::-1]).astype(np.complex64)
    spec = P(*(None,) * (len(shape) - 1), on)
    sent = placed(getattr(jnp.fft, kind), x, [("a", 4), ("b", 2)], spec)
    assert [c.kind for c in sent] == ["all_to_all"] * 3
    assert sum(c.bytes_per_device for c in sent) == 3 * (n - 1) / n * x.nbytes / n


def test_a_dim_that_does_not_split_so_is_gathered():
    x = (sample(1000) + 1j).astype(np.complex64)
    assert [c.kind for c in placed(jnp.fft.fft, x, [("a", 8)], P("a"))] == ["all_gather"]
