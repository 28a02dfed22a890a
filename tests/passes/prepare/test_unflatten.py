"""What is laid out flat only in between keeps its dims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.tools.interpret import run
from tests.share import examples

MESH = spmd.create_mesh([("a", 4), ("b", 2)], abstract=True)
R = np.random.default_rng(0)
X = R.normal(size=(8, 16, 12)).astype(np.float32)
TABLE = R.normal(size=(40, 12)).astype(np.float32)
IDS = R.integers(0, 12, (8, 16)).astype(np.int32)
GRID = P("a", "b")


def lowered(fun, *args, layouts=GRID):
    return spmd.spmd_jit(fun, mesh=MESH, in_layouts=layouts).lower(*args)


def check(fun, *args, layouts=GRID):
    """The program as it is searched, against JAX; returns what it sends."""
    made = lowered(fun, *args, layouts=layouts)
    want = jax.tree.leaves(jax.jit(fun)(*args))
    for got, right in zip(run(made.stages["propagate"], args), want, strict=True):
        assert got.shape == right.shape and got.dtype == right.dtype
        np.testing.assert_allclose(got, right, rtol=1e-4, atol=1e-4)
    return made.comm_bytes()


def flat(x):
    return x.reshape(-1, x.shape[-1])


def weights(*shape):
    return jnp.arange(float(np.prod(shape))).reshape(shape) / 50


def xent(x, ids):
    logits = flat(x)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), ids.reshape(-1)[:, None], 1)
    return -picked.mean()


def attention(x):
    """Heads merged with the batch."""
    q = x.reshape(8, 16, 3, 4).transpose(0, 2, 1, 3).reshape(24, 16, 4)
    scores = jax.nn.softmax(q @ q.transpose(0, 2, 1), -1)
    return (scores @ q).reshape(8, 3, 16, 4).transpose(0, 2, 1, 3).reshape(x.shape)


LOCAL = {
    "rows": lambda x: jnp.tanh(flat(x) @ weights(12, 5)).reshape(8, 16, 5),
    "a bias of columns": lambda x: (flat(x) + jnp.arange(12.0) - 1.5).reshape(x.shape),
    "norms of rows": lambda x: (flat(x) / jnp.sqrt((flat(x) ** 2).sum(1, keepdims=True))).reshape(x.shape),
    "transposed": lambda x: (flat(x).T * 2).T.reshape(x.shape),
    "beside itself": lambda x: jnp.concatenate([flat(x), -flat(x)], 1).reshape(8, 16, 24),
    "cut and padded": lambda x: jnp.pad(flat(x)[:, 1:9:2], ((0, 0), (3, 1)))[:, :6].reshape(8, 16, 6),
    "turned": lambda x: flat(x)[:, ::-1].reshape(x.shape),
    "in loops": lambda x: lax.fori_loop(0, 2, lambda i, y: jnp.sin(flat(y) * i).reshape(y.shape), x),
    "twice": lambda x: jnp.cos(flat(jnp.sin(flat(x)).reshape(x.shape))).reshape(x.shape),
}
SUMS = {
    "all": lambda x: jnp.vdot(x, x + 1),
    "columns": lambda x: flat(x).max(0),
    "statistics": lambda x: ((flat(x) - flat(x).mean(0)) / flat(x).std(0)).reshape(x.shape),
    "the place of the largest": lambda x: jnp.argmax(jnp.round(x)),
    "weighed by place": lambda x: (x.reshape(-1) * jnp.arange(x.size)).sum(),
    "weighed by numbers": lambda x: x.reshape(-1) @ np.linspace(0, 1, x.size, dtype=np.float32),
    "products": lambda x: flat(x).T @ jnp.tanh(flat(x)),
}


@pytest.mark.parametrize("name", LOCAL)
def test_nothing_is_sent(name):
    assert check(LOCAL[name], X) == 0


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_sent(name):
    assert check(SUMS[name], X) < X.nbytes / 4


def test_lookups():
    layouts = (P(), P("a", "b"))
    embedded = lowered(lambda t, i: t[i.reshape(-1)].reshape(8, 16, 12), TABLE, IDS, layouts=layouts)
    assert embedded.comm_bytes() == 0
    check(lambda t, i: t[i.reshape(-1)].reshape(8, 16, 12), TABLE, IDS)
    assert check(xent, X, IDS) < X.nbytes / 8


def test_batches_of_heads():
    check(attention, X)
    layouts = P("a", None, None)
    assert lowered(attention, X, layouts=layouts).comm_bytes() == 0


def windows(x):
    """Attention inside of 4 x 4 windows, with a mask of its own for each, of an image of 16 x 8."""
    y = x.reshape(2, 4, 4, 2, 4, 12).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 16, 12)
    q, k = jnp.split(y @ weights(12, 24), 2, -1)
    scores = (q @ k.transpose(0, 2, 1)).reshape(2, 8, 16, 16) + weights(8, 16, 16)
    y = jax.nn.softmax(scores.reshape(-1, 16, 16), -1) @ y
    return y.reshape(2, 4, 2, 4, 4, 12).transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)


def test_windows():
    """The windows of all images are merged, split by image for the masks, and into rows of windows at the end."""
    image = R.normal(size=(2, 16, 8, 12)).astype(np.float32)
    for layout in (P(None, "a", "b"), P("b", "a")):
        check(windows, image, layouts=layout)
        assert lowered(windows, image, layouts=layout).comm_bytes() == 0


def test_products_are_made_once():
    """Also where the flat one leaves the program."""

    def fun(x):
        y = flat(x) @ weights(12, 12)
        return y, jnp.tanh(y).reshape(x.shape)

    check(fun, X)
    assert sum(op.name == "dot_general" for op in lowered(fun, X).stages["propagate"].walk()) == 1


def test_what_is_merged_otherwise_stays_flat():
    check(lambda x, y: x.reshape(-1) @ y.reshape(-1), X, X.reshape(16, 8, 12))
    check(lambda x, y: x.reshape(-1) @ y, X, X.reshape(-1), layouts=(GRID, P("b")))
    check(lambda x: flat(x).reshape(16, 8, 12) * 2, X)
    check(lambda x: x.reshape(8, -1).sum(0), X)


small = st.integers(1, 4)


@examples(40)
@given(st.data(), st.lists(small, min_size=3, max_size=4))
def test_chains(data, shape):
    """Random dims, of size 1 too, merged, worked on, and split again or summed."""
    begin = data.draw(st.integers(0, len(shape) - 2))
    end = data.draw(st.integers(begin + 2, len(shape)))
    merged = [*shape[:begin], int(np.prod(shape[begin:end])), *shape[end:]]
    steps = data.draw(st.lists(st.sampled_from(["sin", "row", "product", "numbers", "turn"]), max_size=4))
    last = data.draw(st.sampled_from(["split", "halves", "sum", "argmax", "square"]))

    def fun(x, last=last):
        y = x.reshape(merged)
        for step in steps:
            if step == "sin":
                y = jnp.sin(y)
            elif step == "row":
                y = y - y.max(-1, keepdims=True)
            elif step == "product":
                y = y @ weights(y.shape[-1], y.shape[-1]) / y.shape[-1] ** 2
            elif step == "numbers":
                y = y + lax.broadcasted_iota(jnp.int32, y.shape, begin)
            else:
                y = jnp.flip(y, 0)
        if last == "split":
            return y.reshape(shape)
        if last == "halves":
            return jnp.tanh(y.reshape(*shape[: begin + 1], -1)).reshape(shape)
        if last == "square":
            return jnp.tensordot(y, y, ((begin,), (begin,)))
        if last == "argmax":
            return y.argmax(begin)
        return y.sum(begin) if last == "sum" else y

    x = R.normal(size=shape).astype(np.float32)
    specs = data.draw(st.permutations(["a", "b", *[None] * (len(shape) - 2)]))
    made = lowered(fun, x, layouts=P(*specs))
    (got,) = run(made.stages["propagate"], [x])
    want = jax.jit(fun)(x)
    if last == "argmax":  # either of two that are equal but for rounding
        numbers = np.asarray(fun(x, ""))
        got, want = (np.take_along_axis(numbers, np.expand_dims(i, begin), begin) for i in (got, want))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-3)
