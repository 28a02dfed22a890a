"""fft: batch dims, and transformed dims that are sharded."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.passes.rules import fft_in_place, fft_plan
from tests.share import examples

from .forced import spread_out
from .windowed import MESHES, gathered, run, sample, spec_of

few = examples(14)
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


@pytest.mark.parametrize(
    ("shape", "spec", "out"),
    [((2, 2, 3), P("a", None, "b"), P("b", None, "a")), ((4, 3, 3), P("a", "b"), P("b", "a"))],
)
def test_a_dim_that_came_in_pieces_is_split_unevenly(shape, spec, out):
    """XLA takes the pieces that came for those that leave, and refused them for how they lie in memory."""
    x = (sample(*shape) + 1j).astype(np.complex64)
    fun = lambda x: jnp.fft.fft(x, axis=0)  # noqa: E731
    run(fun, [x], (("a", 2), ("b", 2)), [spec], out=out, tolerance=1e-3)


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
    devices = jax.devices()[: np.prod([size for _, size in mesh])]
    step = spmd.spmd_jit(fun, mesh=spmd.create_mesh(mesh, devices), in_layouts=(spec,), out_layouts=spec)
    np.testing.assert_allclose(step(x), jax.jit(fun)(x), rtol=1e-3, atol=1e-3)
    return step.lower(x).collectives()


@pytest.mark.parametrize("kind", ["fft", "ifft"])
@pytest.mark.parametrize(("on", "n"), [("a", 4), (("a", "b"), 8)])
@pytest.mark.parametrize("shape", [(4096,), (2, 2048)])
def test_the_only_dim_stays_sharded(kind, shape, on, n):
    x = (sample(*shape) + 1j * sample(*shape)[::-1]).astype(np.complex64)
    spec = P(*(None,) * (len(shape) - 1), on)
    sent = placed(getattr(jnp.fft, kind), x, [("a", 4), ("b", 2)][: len(on)], spec)
    if len(shape) > 1 and n == 4:  # meanwhile each of the two rows lies on one half of the axis
        assert [c.kind for c in sent] == ["all_to_all", "all_gather", "all_to_all"]
        assert sum(c.bytes_per_device for c in sent) == 2 * x.nbytes / n
        return
    assert [c.kind for c in sent] == ["all_to_all"] * 3
    assert sum(c.bytes_per_device for c in sent) == 3 * (n - 1) / n * x.nbytes / n


def test_other_dims_are_split_meanwhile():
    """Even where there are less than devices: three rows count as four."""
    x = (sample(3, 2048) + 1j).astype(np.complex64)
    sent = placed(jnp.fft.fft, x, [("a", 4)], P(None, "a"))
    assert [c.kind for c in sent] == ["all_to_all"] * 2
    assert sum(c.bytes_per_device for c in sent) == 2 * 3 / 4 * (4 / 3 * x.nbytes) / 4


def test_a_prime_is_gathered():
    x = (sample(1009) + 1j).astype(np.complex64)
    cut = spmd.Layout(["a"], spmd.create_mesh([("a", 8)]))
    step = spmd.spmd_jit(lambda x: spmd.relayout(jnp.fft.fft(spmd.relayout(x, cut)), cut), mesh=cut.mesh)
    with spread_out("fft"):
        assert "all_gather" in [c.kind for c in step.lower(x).collectives()]


@pytest.mark.parametrize(("size", "n"), [(1000, 8), (4000, 6), (3**8, 4), (2**12 + 4, 8)])
def test_no_other_size_is_gathered(size, n):
    """Sent is little more than three times the block."""
    x = (sample(size) + 1j).astype(np.complex64)
    mesh = spmd.create_mesh([("a", n)], devices=jax.devices()[:n])
    cut = spmd.Layout(["a"], mesh)

    def there_and_back(x):
        x = spmd.relayout(jnp.fft.fft(spmd.relayout(x, cut)), cut)
        return spmd.relayout(jnp.fft.ifft(x), cut)

    step = spmd.spmd_jit(there_and_back, mesh=mesh)
    np.testing.assert_allclose(step(x), x, atol=1e-5)
    kinds = {
        c.kind for c in step.lower(x).collectives()[:-1]
    }  # the last one gathers the result, which lies whole
    if size % n == 0:
        assert "all_gather" not in kinds


@pytest.mark.parametrize("size", [2**16, 60000])
def test_real_numbers_send_as_much(size):
    """A filter: what is between the two transforms is never whole."""
    x, k = sample(size), sample(size)
    fun = lambda x, k: jnp.fft.irfft(jnp.fft.rfft(x) * jnp.fft.rfft(k), n=size)  # noqa: E731
    step = spmd.spmd_jit(
        fun, mesh=spmd.create_mesh([("a", 8)]), in_layouts=(P("a"), P("a")), out_layouts=P("a")
    )
    lowered = step.lower(x, k)
    assert "all_gather" not in {c.kind for c in lowered.collectives()}
    assert lowered.comm_bytes() < 3 * 3.3 * x.nbytes / 8
    want = np.fft.irfft(np.fft.rfft(x) * np.fft.rfft(k), n=size)
    error = np.abs(step(x, k) - want).max() / np.abs(want).max()
    assert error < 2e-6


@few
@given(st.data(), st.sampled_from(["FFT", "IFFT", "RFFT", "IRFFT"]), st.sampled_from([2, 3, 4, 7, 8]))
def test_steps_of_any_size(data, kind, n):
    """The four steps, for each way to make the dim a matrix."""
    size = data.draw(st.sampled_from([4, 6, 9, 12, 15, 30, 35, 36, 49, 64, 66, 77]))
    row = data.draw(st.sampled_from(fft_plan._divisors(size)))
    batch = data.draw(st.sampled_from([(), (2,), (3, 2)]))
    length = size // 2 + 1 if kind == "IRFFT" else size
    x = sample(*batch, length)
    if kind != "RFFT":
        x = (x + 1j * sample(*batch, length)[..., ::-1]).astype(np.complex64)
    fun = lambda x: jax.lax.fft(x, kind, (size,))  # noqa: E731
    mesh = spmd.create_mesh([("a", n)], devices=jax.devices()[:n])
    cut = spmd.Layout([*(None for _ in batch), "a"], mesh)

    def steps(lines):
        return fft_plan._with_moves(lines, fft_plan._steps(lines, row))

    with spread_out("fft"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(fft_in_place, "best_way", steps)
        step = spmd.spmd_jit(lambda x: spmd.relayout(fun(spmd.relayout(x, cut)), cut), mesh=mesh)
        np.testing.assert_allclose(step(x), jax.jit(fun)(x), rtol=1e-4, atol=1e-4)
        assert "all_to_all" in {c.kind for c in step.lower(x).collectives()}


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_as_exact_as_on_one_device(dtype):
    size = 2**18
    with jax.enable_x64(True):
        x = (sample(size) + 1j * sample(size)[::-1]).astype(dtype)
        step = spmd.spmd_jit(
            jnp.fft.fft, mesh=spmd.create_mesh([("a", 8)]), in_layouts=P("a"), out_layouts=P("a")
        )
        want = np.fft.fft(x.astype(np.complex128))
        ours, theirs = (np.abs(np.asarray(f(x)) - want).max() for f in (step, jax.jit(jnp.fft.fft)))
        assert step(x).dtype == dtype
    assert ours < 2 * theirs


@pytest.mark.parametrize(("turned", "copies"), [(False, 0), (True, 1)])
@pytest.mark.parametrize("kind", ["fft", "rfft", "ifft"])
def test_arguments_and_results_are_transformed_as_they_lie(kind, turned, copies):
    """What makes sure that XLA's kernel gets rows as it wants them is a copy; what comes from a transposition has one."""

    def fun(x):
        return getattr(jnp.fft, kind)(x.T if turned else x)

    x = sample(16, 32) if kind == "rfft" else sample(16, 32).astype(np.complex64)
    given = P(None, "a") if turned else P("a")

    def lowered(**devices):
        return spmd.spmd_jit(fun, mesh=spmd.create_mesh({"a": 8}, **devices), in_layouts=given).lower(x)

    gpu = jax.sharding.AbstractDevice("NVIDIA H100", 1, "gpu")
    assert "optimization_barrier" not in lowered(abstract=True, abstract_device=gpu).as_text()
    assert lowered().as_text().count("optimization_barrier(") == copies
    np.testing.assert_allclose(lowered().compile()(x), fun(x), atol=1e-4)
