"""slice, pad, reverse and concatenate along sharded dims."""

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

from .windowed import MESHES, Axes, gathered, run, sample, spec_of

few = examples(10)
meshes = st.sampled_from(MESHES)


def whole_on(axes: Axes) -> P:
    return P(tuple(name for name, _ in axes))


@few
@given(st.data(), meshes)
def test_slice(data, axes):
    n = data.draw(st.integers(3, 29))
    start = data.draw(st.integers(0, n - 1))
    limit = data.draw(st.integers(start + 1, n))
    stride = data.draw(st.integers(1, 3))
    spec = data.draw(spec_of(2, axes, (0, 1)))
    run(lambda x: lax.slice(x, (start, 1), (limit, 6), (stride, 1)), [sample(n, 7)], axes, [spec], out=spec)


@few
@given(st.data(), meshes)
def test_pad(data, axes):
    n = data.draw(st.integers(3, 20))
    inside = data.draw(st.integers(0, 2))
    low = data.draw(st.integers(-4, 9))
    high = data.draw(st.integers(-4, 9))
    if n + (n - 1) * inside + low + high < 2:
        return
    spec = data.draw(spec_of(2, axes, (0, 1)))
    run(
        lambda x, v: lax.pad(x, v, ((low, high, inside), (1, 0, 0))),
        [sample(n, 7), np.float32(3)],
        axes,
        [spec, P()],
        out=spec,
    )


@few
@given(st.data(), meshes)
def test_reverse(data, axes):
    shape = data.draw(st.tuples(st.integers(2, 19), st.integers(2, 9)))
    spec = data.draw(spec_of(2, axes, (0, 1)))
    run(lambda x: lax.rev(x, (0, 1)), [sample(*shape)], axes, [spec], out=spec)


@few
@given(st.data(), meshes)
def test_concatenate(data, axes):
    sizes = data.draw(st.lists(st.integers(1, 19), min_size=2, max_size=4))
    out = data.draw(spec_of(2, axes, (0, 1)))
    specs = [data.draw(spec_of(2, axes, (0, 1))) for _ in sizes]
    args = [sample(n, 7) + i for i, n in enumerate(sizes)]
    run(lambda *xs: jnp.concatenate(xs, 0), args, axes, specs, out=out)


@few
@given(st.data(), meshes)
def test_roll(data, axes):
    n = data.draw(st.integers(2, 23))
    by = data.draw(st.integers(-9, 9))
    run(lambda x: jnp.roll(x, by, 0), [sample(n, 4)], axes, [whole_on(axes)], out=whole_on(axes))


EIGHT = [("a", 8)]
ROWS = 4096
LEAN = {
    # name: (function, how many operands of ROWS numbers, how many numbers a device may send)
    "shift": (lambda x: x[1:] + x[:-1], 1, 1),
    "stencil": (lambda x: x[2:] - 2 * x[1:-1] + x[:-2], 1, 3),
    "stencil_padded": (lambda x: jnp.pad(x, (1, 0))[:-1] - jnp.pad(x, (0, 1))[1:], 1, 2),
    "strided": (lambda x: x[1::2] - x[::2], 1, 0),
    "half": (lambda x: x[: ROWS // 2] * 2, 1, 512),
    "reverse": (lambda x: x[::-1] - 2 * x, 1, 512),
    "pad": (lambda x: jnp.pad(x, (2, 6), constant_values=1) * 2, 1, 8),
    "interior": (lambda x: lax.pad(x, 0.0, [(0, 1, 1)]) * 2, 1, 0),
    "concatenate": (lambda x, y: jnp.concatenate([x, y]) * 2, 2, 1024),
    "roll": (lambda x: jnp.roll(x, 3) - x, 1, 3),
    "wrap": (lambda x: jnp.pad(x, (4, 4), mode="wrap") * 2, 1, 18),
    "token_shift": (lambda x: jnp.concatenate([jnp.zeros(1), x[:-1]]) - x, 1, 1),
}


@pytest.mark.parametrize("name", LEAN)
def test_sends_only_what_is_needed(name):
    fun, operands, most = LEAN[name]
    args = [sample(ROWS) + i for i in range(operands)]
    whole = lambda *xs: jnp.sum(jnp.cos(fun(*xs)))  # noqa: E731
    step = spmd.spmd_jit(whole, mesh=spmd.create_mesh(EIGHT), in_layouts=(P("a"),) * len(args))
    np.testing.assert_allclose(step(*args), jax.jit(whole)(*args), rtol=1e-4)
    lowered = step.lower(*args)
    assert not gathered(lowered)
    assert lowered.comm_bytes() - 7 <= most * 4  # 7 bytes: the sum's all-reduce


def test_layer_of_a_sharded_stack():
    """One row of a stack that is sharded by rows: the row travels, not the stack."""
    stack, x = sample(8, 16, 16), sample(8, 16)
    step = spmd.spmd_jit(
        lambda s, x: x @ s[3], mesh=spmd.create_mesh(EIGHT), in_layouts=(P("a"), P("a")), out_layouts=P("a")
    )
    np.testing.assert_allclose(step(stack, x), x @ stack[3], rtol=1e-4, atol=1e-4)
    assert step.lower(stack, x).comm_bytes() <= 2 * 7 / 8 * 16 * 16 * 4


@pytest.mark.parametrize("dtype", ["bool", "int8", "bfloat16", "complex64"])
def test_types(dtype):
    x = jnp.asarray(sample(13, 6) * 3, dtype)
    fun = lambda x: jnp.concatenate([x[9:2:-2], jnp.pad(x[3:4], ((2, 5), (0, 0)))])  # noqa: E731
    run(fun, [np.asarray(x)], (("a", 4),), [P("a")], out=P("a"))


def test_infinities_pass():
    x = np.array([[0.0], [-0.0], [np.inf], [np.nan], [1.0], [2.0], [3.0], [4.0]], np.float32)
    step = spmd.spmd_jit(lambda x: x[2:4], mesh=spmd.create_mesh(EIGHT), in_layouts=(P("a"),))
    got = np.asarray(step(x))
    assert np.isinf(got[0]) and np.isnan(got[1])


def test_concatenation_of_crops():
    """Negative pads of different arrays, joined: a partitioner may try to make one pad of them."""

    def fun(x, y):
        left = lax.pad(x, np.float32(0), ((-2, 0, 0), (0, 0, 0)))
        return jnp.concatenate([left, lax.pad(y, np.float32(0), ((0, -3, 0), (0, 0, 0)))])

    run(fun, [sample(13, 4), sample(9, 4) + 1], (("a", 4),), [P("a"), P("a")], out=P("a"))
