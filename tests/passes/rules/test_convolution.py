"""Convolutions with sharded spatial dims, and their gradients."""

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

few = examples(12)
meshes = st.sampled_from(MESHES)


@st.composite
def geometry(draw, most=19):
    """One spatial dim: (size, kernel, stride, padding, lhs dilation, rhs dilation), with at least one result."""
    size = draw(st.integers(2, most))
    kernel = draw(st.integers(1, 5))
    stride, base, dilation = (draw(st.integers(1, 3)) for _ in range(3))
    low, high = (draw(st.integers(-2, 5)) for _ in range(2))
    dilated = (size - 1) * base + 1
    missing = (kernel - 1) * dilation + 1 - (dilated + low + high)
    return size, kernel, stride, (low, high + max(0, missing)), base, dilation


def convolve(x, w, strides, padding, base, dilation, numbers):
    """A convolution whose padding is an op of its own: XLA of JAX 0.10 gets negative padding of a convolution wrong on CPU."""
    plain = ((0, 0, 0),)
    around = tuple((low, high, step - 1) for (low, high), step in zip(padding, base, strict=True))
    x = lax.pad(x, np.float32(0), plain + around + plain)
    return lax.conv_general_dilated(x, w, strides, [(0, 0)] * len(around), None, dilation, numbers)


@few
@given(st.data(), meshes, geometry(), geometry(8))
def test_spatial(data, axes, first, second):
    sizes, kernels, strides, padding, base, dilation = zip(first, second, strict=True)
    spec = data.draw(spec_of(4, axes, (1, 2)))
    numbers = ("NHWC", "HWIO", "NHWC")

    def fun(x, w):
        return lax.conv_general_dilated(x, w, strides, padding, base, dilation, numbers)

    def reference(x, w):
        return convolve(x, w, strides, padding, base, dilation, numbers)

    args = [sample(2, *sizes, 3), sample(*kernels, 3, 2)]
    run(fun, args, axes, [spec, P()], out=spec, reference=reference)


@examples(8)
@given(st.data(), meshes, geometry())
def test_gradients(data, axes, one):
    size, kernel, stride, padding, base, dilation = one
    spec = data.draw(spec_of(3, axes, (1,)))

    def loss(conv, *args):
        y = conv(*args, (stride,), (padding,), (base,), (dilation,), ("NHC", "HIO", "NHC"))
        return jnp.sum(y * jnp.cos(y))

    def gradient(conv):
        return lambda x, w: jax.grad(lambda x, w: loss(conv, x, w), (0, 1))(x, w)

    args = [sample(2, size, 3), sample(kernel, 3, 2)]
    reference = gradient(convolve)
    run(gradient(lax.conv_general_dilated), args, axes, [spec, P()], reference=reference)


@few
@given(st.data(), meshes, st.integers(2, 23), st.integers(1, 3), st.integers(1, 3), st.booleans())
def test_large_kernel(data, axes, taps, stride, dilation, reverse):
    """Image and kernel are sharded alike, as in the gradient of a kernel."""
    size = (taps - 1) * dilation + 1 + data.draw(st.integers(0, 4))
    low = data.draw(st.integers(-1, 2))
    out = data.draw(st.integers(1, 2))
    high = (out - 1) * stride + (taps - 1) * dilation + 1 - size - low
    settled = ((stride,), [(low, high)], (1,), (dilation,), ("NHC", "HIO", "NHC"))

    def using(conv):
        return lambda x, w: conv(x, jnp.flip(w, 0) if reverse else w, *settled)

    cut = P(None, tuple(name for name, _ in axes))
    args = [sample(2, size, 3), sample(taps, 3, 2)]
    run(using(lax.conv_general_dilated), args, axes, [cut, P(*cut[1:])], reference=using(convolve))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("groups", [{"feature_group_count": 2}, {"batch_group_count": 2}], ids=str)
def test_groups(mesh, groups):
    numbers = ("NHC", "HIO", "NHC")
    inner = 4 // groups.get("feature_group_count", 1)
    cut = P(None, tuple(name for name, _ in mesh))

    def fun(x, w):
        return lax.conv_general_dilated(x, w, (1,), "SAME", dimension_numbers=numbers, **groups)

    def both(x, w):
        return fun(x, w), jax.grad(lambda x, w: jnp.sum(jnp.sin(fun(x, w))), (0, 1))(x, w)

    run(both, [sample(4, 11, 4), sample(3, inner, 4)], mesh, [cut, P()])


def test_halos_only():
    """A 3x3 convolution fetches one row from each neighbour; its gradients too, and then reduce the kernel's."""
    x, w = sample(2, 64, 64, 8), sample(3, 3, 8, 8)
    row = 2 * 64 * 8 * 4

    def conv(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    cut = P(None, "a")
    mesh = spmd.create_mesh([("a", 8)])
    step = spmd.spmd_jit(conv, mesh=mesh, in_layouts=(cut, P()), out_layouts=cut)
    np.testing.assert_allclose(step(x, w), jax.jit(conv)(x, w), rtol=1e-3, atol=1e-3)
    assert step.lower(x, w).comm_bytes() <= 2 * row

    def loss(x, w):
        return jnp.sum(conv(jnp.sin(x), w) ** 2)

    both = jax.grad(loss, (0, 1))
    step = spmd.spmd_jit(both, mesh=mesh, in_layouts=(cut, P()), out_layouts=(cut, P()))
    for got, want in zip(step(x, w), jax.jit(both)(x, w), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-2)
    lowered = step.lower(x, w)
    assert not gathered(lowered)
    # forward, the input's gradient (of y), and the kernel's, which needs the same rows of x; then its all-reduce
    assert lowered.comm_bytes() <= 4 * row + 2 * 7 / 8 * w.nbytes


def test_strided_without_overlap_sends_nothing():
    x, w = sample(2, 64, 8), sample(2, 8, 8)
    step = spmd.spmd_jit(
        lambda x, w: lax.conv_general_dilated(x, w, (2,), "VALID", dimension_numbers=("NHC", "HIO", "NHC")),
        mesh=spmd.create_mesh([("a", 8)]),
        in_layouts=(P(None, "a"), P()),
        out_layouts=P(None, "a"),
    )
    assert step.lower(x, w).collectives() == []


REVERSED = """
func.func @main(%x: tensor<2x{n}x3xf32>, %w: tensor<{k}x3x2xf32>) -> tensor<2x{o}x2xf32> {{
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, f]x[0, i, o]->[b, 0, f],
    window = {{stride = [1], pad = [[{low}, {high}]], lhs_dilate = [1], rhs_dilate = [{d}], reverse = [true]}}
    {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : (tensor<2x{n}x3xf32>, tensor<{k}x3x2xf32>) -> tensor<2x{o}x2xf32>
  return %y : tensor<2x{o}x2xf32>
}}
"""


@pytest.mark.parametrize("n,k,low,high,dilation", [(16, 4, 1, 2, 1), (16, 12, 0, 0, 1), (24, 12, 0, 1, 2)])
def test_reversed_window(n, k, low, high, dilation):
    """JAX never asks for it, other frontends do."""
    o = n + low + high - (k - 1) * dilation
    text = REVERSED.format(n=n, k=k, low=low, high=high, d=dilation, o=o)
    x, w = sample(2, n, 3), sample(k, 3, 2)
    mesh = spmd.create_mesh([("a", 4)], devices=jax.devices()[:4])
    whole_kernel, cut_kernel = (P(None, "a"), P()), (P(None, "a"), P("a"))
    want = convolve(x, w[::-1], (1,), [(low, high)], (1,), (dilation,), ("NHC", "HIO", "NHC"))
    for layouts in (whole_kernel, cut_kernel):
        lowered = spmd.from_stablehlo(text, mesh=mesh, in_layouts=layouts)
        (got,) = lowered.compile()(x, w)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
