"""Lookups at places that are known: equal to one device's, in no lookup any more, and nothing is sent for what is at hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

N = 16


def of(fun, x, **options):
    """What one device gives, and the program, sharded over eight."""
    step = spmd.spmd_jit(fun, mesh=spmd.create_mesh([("a", 8)]), in_layouts=P("a"), **options)
    np.testing.assert_array_equal(step(x), jax.jit(fun)(x))
    return step.lower(x)


def nearest(x):
    return jax.image.resize(x, (2 * x.shape[0], x.shape[1]), "nearest")


def resized_gradient(x):
    return jax.grad(lambda x: (nearest(x) ** 2).sum())(x)


AT_HOME = {
    "nearest": nearest,
    "nearest_gradient": resized_gradient,
    "all": lambda x: x[np.arange(N)],
    "each_twice": lambda x: x[np.repeat(np.arange(N), 2)],
    "columns": lambda x: x[:, np.array([3, 0, 1, 2])],
    "added_to_each_twice": lambda x: x.at[np.repeat(np.arange(N), 2)].add(x.repeat(2, 0)),
    "in_pairs": lambda x: x[np.arange(N).reshape(8, 2)],
}
AMONG_NEIGHBOURS = {
    "rolled": lambda x: x[(np.arange(N) + 3) % N],
    "reflected": lambda x: x[np.abs(np.arange(-2, N))],
    "every_second": lambda x: x[2 * np.arange(N // 2)],
    "backwards": lambda x: x[np.arange(N)[::-1]],
    "clipped": lambda x: x.at[np.arange(-1, N + 2)].get(mode="clip"),
    "added_to_some": lambda x: x.at[np.arange(1, 9)].add(x[8:]),
    "added_to_every_second": lambda x: x.at[np.arange(N)[::-2]].add(x[:8]),
    "greatest": lambda x: x.at[np.arange(4, 12)].max(x[:8]),
    "computed": lambda x: x[jnp.clip(jnp.floor((jnp.arange(24) + 0.5) * N / 48).astype(int), 0, N - 1)],
    "among_columns": lambda x: x.T[:, jnp.arange(N) // 2],
}
LEFT = {
    "scattered": lambda x: x[np.random.RandomState(0).permutation(N)],
    "added_twice": lambda x: x.at[np.arange(N) % 8].add(x),
    "dropped": lambda x: x.at[np.arange(8, 24)].add(x, mode="drop"),
}
X = np.random.RandomState(0).randn(N, 4).astype(np.float32)


@pytest.mark.parametrize("name", AT_HOME)
def test_sends_nothing(name):
    assert not of(AT_HOME[name], X).collectives()


@pytest.mark.parametrize("name", AMONG_NEIGHBOURS)
def test_looks_nothing_up(name):
    text = of(AMONG_NEIGHBOURS[name], X).as_text("propagate")
    assert "= gather(" not in text and "= scatter(" not in text


@pytest.mark.parametrize("name", LEFT)
def test_leaves_others(name):
    text = of(LEFT[name], X).as_text("propagate")
    assert "= gather(" in text or "= scatter(" in text


@given(
    st.lists(st.integers(-3, N + 2), min_size=1, max_size=12), st.integers(1, 3), st.integers(0, 1), st.data()
)
def test_any_places(places, times, axis, data):
    """Also ones that are out of bounds, in any mode, and of any kind of scatter."""
    places = np.repeat(np.array(places), times)
    x = np.arange(N * N, dtype=np.int32).reshape(N, N)
    mode = data.draw(st.sampled_from(["clip", "fill", "drop"]))
    kind = data.draw(st.sampled_from(["get", "add", "max", "multiply", "set"]))

    def fun(x):
        at = x.at[places] if axis == 0 else x.at[:, places]
        if kind == "get":
            return at.get(mode=mode)
        if kind == "set":
            return at.set(7, mode=mode)
        return getattr(at, kind)(x[:, 0][:, None] if axis else x[0], mode=mode)

    of(fun, x)
