"""sort along sharded dims: the stable order of any comparator, also of uneven blocks."""

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

few = examples(8)
meshes = st.sampled_from(MESHES)


def whole(axes):
    return P(tuple(name for name, _ in axes))


def numbers(n: int, dtype: str, alike: bool) -> np.ndarray:
    x = sample(n) * (1 if alike else 50)
    return np.asarray(jnp.asarray(np.round(x) if alike else x, dtype))


@few
@given(st.data(), meshes, st.sampled_from(["float32", "bfloat16", "int8", "uint32", "bool"]), st.booleans())
def test_sort(data, axes, dtype, alike):
    n = data.draw(st.integers(2, 300))
    x = numbers(n, dtype, alike)
    descending = data.draw(st.booleans())
    with spread_out("sort"):
        lowered = run(lambda x: jnp.sort(x, descending=descending), [x], axes, [whole(axes)], out=whole(axes))
    assert not gathered(lowered)


@few
@given(st.data(), meshes)
def test_several_operands(data, axes):
    """Equal keys stay in order; two keys and a passenger of another type."""
    n = data.draw(st.integers(2, 200))
    keys = data.draw(st.integers(1, 2))
    x, y = np.round(sample(n)), np.round(sample(n)[::-1]).astype(np.int8)
    spec = whole(axes)
    fun = lambda x, y, z: lax.sort((x, y, z), num_keys=keys)  # noqa: E731
    with spread_out("sort"):
        run(fun, [x, y, np.arange(n)], axes, [spec] * 3, out=spec)


@few
@given(st.data(), meshes, st.sampled_from([0, 1, 2]))
def test_batched(data, axes, dim):
    shape = data.draw(st.tuples(*[st.integers(1, 23)] * 3))
    x = np.round(sample(*shape) * 3)
    spec = data.draw(spec_of(3, axes, (0, 1, 2)))
    out = data.draw(spec_of(3, axes, (0, 1, 2)))
    with spread_out("sort"):
        run(lambda x: jnp.argsort(x, axis=dim), [x], axes, [spec], out=out)


@pytest.mark.parametrize("n", [2048, 2043])
def test_special_values_keep_their_order(n):
    """NaNs are equal and last, zeros are equal: of each, the first stays first."""
    x = np.array([np.nan, 0.0, -0.0, np.inf, -np.inf, -np.nan, 1.0], np.float32)[np.arange(n) % 7]
    spec = P("a")
    fun = lambda x: lax.sort((x, jnp.signbit(x)), num_keys=1)  # noqa: E731
    lowered = run(fun, [x], (("a", 8),), [spec], out=spec)
    assert any(c.kind == "all_to_all" for c in lowered.collectives())


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("mesh", [[("a", 8)], [("a", 4), ("b", 2)]])
def test_blocks_travel_not_the_operand(dtype, mesh):
    n = 1 << 15
    x = numbers(n, dtype, False)
    spec = P(tuple(name for name, _ in mesh))
    step = spmd.spmd_jit(jnp.sort, mesh=spmd.create_mesh(mesh), in_layouts=(spec,), out_layouts=spec)
    np.testing.assert_array_equal(step(x), np.sort(x))
    lowered = step.lower(x)
    assert not gathered(lowered)
    assert max(c.bytes_per_device for c in lowered.collectives()) <= x.nbytes / 8
    carried = 4 if dtype == "int32" else 4 + 2
    assert lowered.comm_bytes() <= 2.75 * carried * n / 8


def test_median_and_unique():
    x = np.round(sample(4096) * 100)
    spec = P("a")
    fun = lambda x: (jnp.median(x), jnp.unique(x, size=300), jnp.quantile(x, 0.3))  # noqa: E731
    run(fun, [x], (("a", 8),), [spec])


def test_rows_are_sorted_where_they_fit_better():
    x = sample(64, 8192)
    step = spmd.spmd_jit(
        lambda x: jnp.sort(x, -1), mesh=spmd.create_mesh([("a", 8)]), in_layouts=(P(None, "a"),)
    )
    np.testing.assert_array_equal(step(x), np.sort(x, -1))
    assert step.lower(x).comm_bytes() <= jax.tree.leaves(x)[0].nbytes / 8


def test_both_axes_of_the_sorted_dim_move_to_the_rows():
    mesh = spmd.create_mesh({"a": 2, "b": 4})
    step = spmd.spmd_jit(lambda x: jnp.sort(x, -1), mesh=mesh, in_layouts=P(None, ("b", "a")))
    x = jax.ShapeDtypeStruct((48, 16384), jnp.float32)
    (sent,) = step.lower(x).collectives()
    assert (sent.kind, sent.bytes_per_device) == ("all_to_all", 7 / 8 * 48 * 16384 * 4 / 8)


TAKES = {
    "index": lambda k, x: x[jnp.argsort(k)],
    "take": lambda k, x: (jnp.take(x, jnp.argsort(k)), jnp.take_along_axis(k, jnp.argsort(k), 0)),
    "descending": lambda k, x: x[jnp.argsort(k, descending=True)],
    "several": lambda k, x: (lambda y, i: (x[i], k[i], i, y[i]))((x * 2).astype(jnp.int8), jnp.argsort(k)),
    "made later": lambda k, x: (lambda i: (x + i)[i])(jnp.argsort(k)),
    "inverse": lambda k, x: x[jnp.argsort(jnp.argsort(k))],
    "in a loop": lambda k, x: lax.fori_loop(0, 3, lambda i, x: jnp.sin(x)[jnp.argsort(k * x)], x),
    "another's": lambda k, x: x[jnp.argsort(k) // 2],
}


@pytest.mark.parametrize("kind", sorted(TAKES))
@pytest.mark.parametrize("n", [2048, 2043])
def test_taken_in_another_array_s_order(kind, n):
    """Also of keys that are equal."""
    k, x = np.round(sample(n) * 3), sample(n)[::-1].copy()
    k[::50] = np.nan
    spec = P("a")
    lowered = run(TAKES[kind], [k, x], (("a", 8),), [spec, spec], out=spec)
    if n % 8 == 0 and kind in ("index", "take", "several", "inverse"):
        assert not gathered(lowered)


@few
@given(st.data(), meshes, st.sampled_from([0, 1, 2]))
def test_taken_in_batches(data, axes, dim):
    shape = data.draw(st.tuples(*[st.integers(1, 23)] * 3))
    k, x = np.round(sample(*shape) * 3), sample(*shape)[::-1].copy()
    specs = [data.draw(spec_of(3, axes, (0, 1, 2))) for _ in range(3)]
    with spread_out("sort"):
        fun = lambda k, x: jnp.take_along_axis(x, jnp.argsort(k, axis=dim), dim)  # noqa: E731
        run(fun, [k, x], axes, specs[:2], out=specs[2])


def test_positions_are_sent_once():
    """A sort that stays stable sends positions, and argsort nothing besides."""
    mesh = spmd.create_mesh([("a", 8)])
    x = sample(4096)

    def sent(f):
        return spmd.spmd_jit(f, mesh=mesh, in_layouts=P("a"), out_layouts=P("a")).lower(x).comm_bytes()

    assert sent(jnp.argsort) <= sent(jnp.sort) < 5 * x.nbytes / 8
