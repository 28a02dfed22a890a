"""reduce_window, cumulative reductions and select_and_scatter along sharded dims."""

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

from .windowed import MESHES, gathered, run, sample, spec_of

few = examples(10)
meshes = st.sampled_from(MESHES)
EIGHT = [("a", 8)]


@st.composite
def geometry(draw, most=19):
    """One dim: (size, window, stride, padding, base dilation, window dilation), with at least one result."""
    size = draw(st.integers(2, most))
    window = draw(st.integers(1, 5))
    stride, base, dilation = (draw(st.integers(1, 3)) for _ in range(3))
    low, high = (draw(st.integers(0, 5)) for _ in range(2))
    missing = (window - 1) * dilation + 1 - ((size - 1) * base + 1 + low + high)
    return size, window, stride, (low, high + max(0, missing)), base, dilation


REDUCERS = {"sum": (0.0, lax.add), "max": (-np.inf, lax.max), "product": (1.0, lax.mul)}


@few
@given(st.data(), meshes, geometry(), geometry(8), st.sampled_from(sorted(REDUCERS)))
def test_reduce_window(data, axes, first, second, reducer):
    sizes, windows, strides, padding, base, dilation = zip(first, second, strict=True)
    spec = data.draw(spec_of(2, axes, (0, 1)))
    init, combine = REDUCERS[reducer]

    def fun(x):
        return lax.reduce_window(
            x,
            np.float32(init),
            combine,
            windows,
            strides,
            padding,
            base_dilation=base,
            window_dilation=dilation,
        )

    run(fun, [sample(*sizes)], axes, [spec], out=spec)


@few
@given(st.data(), meshes, geometry())
def test_several_operands(data, axes, one):
    """The largest of a window and where it is: a reducer of pairs."""
    size, window, stride, padding, base, dilation = one
    spec = data.draw(spec_of(1, axes, (0,)))

    def larger(x, y):
        keep = x[0] >= y[0]
        return lax.select(keep, x[0], y[0]), lax.select(keep, x[1], y[1])

    def fun(x):
        where = lax.iota(np.int32, size)
        inits = (np.float32(-np.inf), np.int32(-1))
        return lax.reduce_window(
            (x, where), inits, larger, (window,), (stride,), [padding], (base,), (dilation,)
        )

    run(fun, [sample(size)], axes, [spec], out=spec)


CUMULATIVE = {
    "sum": jnp.cumsum,
    "product": jnp.cumprod,
    "max": lambda x, axis: lax.cummax(x, axis),
    "min_reverse": lambda x, axis: lax.cummin(x, axis, reverse=True),
    "sum_reverse": lambda x, axis: lax.cumsum(x, axis, reverse=True),
    "logsumexp": lambda x, axis: lax.cumlogsumexp(x, axis),
    "sum_of_ints": lambda x, axis: jnp.cumsum((x * 9).astype(np.int32), axis),
}


@pytest.mark.parametrize("name", CUMULATIVE)
@examples(5)
@given(st.data(), meshes)
def test_cumulative(name, data, axes):
    shape = data.draw(st.tuples(st.integers(2, 21), st.integers(2, 6)))
    spec = data.draw(spec_of(2, axes, (0, 1)))
    run(lambda x: CUMULATIVE[name](x, axis=0), [sample(*shape)], axes, [spec], out=spec)


@pytest.mark.parametrize("name", CUMULATIVE)
def test_cumulative_exchanges_totals(name):
    """A device sends one row for each other device at most, and not its block."""
    x = sample(1024, 32)
    step = spmd.spmd_jit(
        lambda x: CUMULATIVE[name](x, axis=0),
        mesh=spmd.create_mesh(EIGHT),
        in_layouts=(P("a"),),
        out_layouts=P("a"),
    )
    np.testing.assert_allclose(step(x), CUMULATIVE[name](x, axis=0), rtol=1e-3, atol=1e-3)
    assert step.lower(x).comm_bytes() <= 7 * 32 * 4


@examples(10)
@given(st.data(), meshes, geometry(), geometry(8))
def test_select_and_scatter(data, axes, first, second):
    """The gradient of max-pooling; jax pads its operand beforehand."""
    sizes, windows, strides, padding, _, _ = zip(first, second, strict=True)
    spec = data.draw(spec_of(2, axes, (0, 1)))

    def loss(x):
        y = lax.reduce_window(x, -np.inf, lax.max, windows, strides, padding)
        return jnp.sum(jnp.where(jnp.isfinite(y), y, 0) * jnp.cos(jnp.arange(y.size).reshape(y.shape)))

    run(jax.grad(loss), [sample(*sizes)], axes, [spec], out=spec)


SCATTER = """
func.func @main(%x: tensor<{n}x{m}xf32>, %s: tensor<{o}x{m}xf32>) -> tensor<{n}x{m}xf32> {{
  %init = stablehlo.constant dense<0.5> : tensor<f32>
  %y = "stablehlo.select_and_scatter"(%x, %s, %init) <{{
    window_dimensions = array<i64: {w}, 1>, window_strides = array<i64: {t}, 1>,
    padding = dense<[[{low}, {high}], [0, 0]]> : tensor<2x2xi64>}}> ({{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.compare {select}, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }}, {{
  ^bb0(%a: tensor<f32>, %b: tensor<f32>):
    %c = stablehlo.add %a, %b : tensor<f32>
    stablehlo.return %c : tensor<f32>
  }}) : (tensor<{n}x{m}xf32>, tensor<{o}x{m}xf32>, tensor<f32>) -> tensor<{n}x{m}xf32>
  return %y : tensor<{n}x{m}xf32>
}}
"""


@few
@given(
    st.integers(2, 19),
    st.integers(1, 5),
    st.integers(1, 4),
    st.integers(0, 2),
    st.integers(0, 4),
    st.sampled_from(["GE", "LT"]),
    meshes,
)
def test_select_and_scatter_with_padding(n, window, stride, low, high, select, axes):
    """Windows that stick out select among what they have."""
    low = min(low, window - 1)
    high = min(high, window - 1)
    sources = (n + low + high - window) // stride + 1
    if sources < 1:
        return
    shapes = {"n": n, "m": 3, "o": sources, "w": window, "t": stride, "low": low, "high": high}
    text = SCATTER.format(**shapes, select=select)
    x, s = sample(n, 3), sample(sources, 3)
    want = np.full((n, 3), 0.5, np.float32)
    for o in range(sources):
        for j in range(3):
            begin = o * stride - low
            rows = range(max(0, begin), min(n, begin + window))
            best = max(rows, key=lambda r: x[r, j]) if select == "GE" else min(rows, key=lambda r: x[r, j])
            want[best, j] += s[o, j]
    sizes = [k for _, k in axes]
    whole = tuple(name for name, _ in axes)
    mesh = spmd.create_mesh(list(axes), devices=jax.devices()[: int(np.prod(sizes))])
    if n % int(np.prod(sizes)) or sources % int(np.prod(sizes)):
        whole = axes[0][0] if not n % sizes[0] and not sources % sizes[0] else None
    lowered = spmd.from_stablehlo(text, mesh=mesh, in_layouts=(P(whole), P(whole)), out_layouts=P(whole))
    (got,) = lowered.compile()(x, s)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_pooling_sends_halos_only():
    """Max-pooling 3 by 2, and its gradient, with sharded rows."""
    x = sample(2, 64, 32, 8)
    row = 2 * 32 * 8 * 4

    def pool(x):
        return lax.reduce_window(x, -np.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME")

    cut = P(None, "a")
    mesh = spmd.create_mesh(EIGHT)
    step = spmd.spmd_jit(pool, mesh=mesh, in_layouts=(cut,), out_layouts=cut)
    np.testing.assert_allclose(step(x), jax.jit(pool)(x))
    assert step.lower(x).comm_bytes() <= row

    # the gradient fetches the source's row, and the rows under its window, from before, and one row from behind
    steepest = jax.grad(lambda x: jnp.sum(jnp.sin(pool(x))))
    step = spmd.spmd_jit(steepest, mesh=mesh, in_layouts=(cut,), out_layouts=cut)
    np.testing.assert_allclose(step(x), jax.jit(steepest)(x), rtol=1e-4, atol=1e-4)
    lowered = step.lower(x)
    assert not gathered(lowered)
    assert lowered.comm_bytes() <= 4.5 * row

    mean = lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 3, 3, 1), (1, 1, 1, 1), "SAME")  # noqa: E731
    gradient = jax.grad(lambda x: jnp.sum(jnp.sin(mean(x))))
    step = spmd.spmd_jit(gradient, mesh=mesh, in_layouts=(cut,), out_layouts=cut)
    np.testing.assert_allclose(step(x), jax.jit(gradient)(x), rtol=1e-4, atol=1e-4)
    lowered = step.lower(x)
    assert not gathered(lowered)
    assert lowered.comm_bytes() <= 4 * row
