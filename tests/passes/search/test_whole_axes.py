"""Batches that a reshape cuts into microbatches: each of these over the whole axis, exchanged once."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.ir import TensorType
from spmd_compiler.ir.layout import Layout
from spmd_compiler.passes.search.whole_axes import with_whole_axes

D = 64


@pytest.mark.parametrize("count", [2, 4, 8])
def test_microbatches_lie_over_the_whole_axis(count):
    """An exchange of the batch, and one reduction of the gradients behind the loop."""

    def loss(w: jax.Array, x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.tanh(jnp.tanh(x @ w) @ w) ** 2)

    def step(w: jax.Array, x: jax.Array) -> jax.Array:
        def add(total: jax.Array, x: jax.Array) -> tuple[jax.Array, None]:
            return total + jax.grad(loss)(w, x), None

        return w - lax.scan(add, jnp.zeros_like(w), x.reshape(count, -1, D))[0]

    mesh, r = spmd.create_mesh({"data": 8}), np.random.RandomState(0)
    w, x = r.randn(D, D).astype(np.float32) / 8, r.randn(1024, D).astype(np.float32)
    compiled = spmd.spmd_jit(step, mesh=mesh, in_layouts=(P(), P("data")), out_layouts=P())
    found = compiled.lower(w, x).collectives()
    assert all(c.trips == 1 for c in found)
    assert sum(c.bytes_per_device for c in found) <= x.nbytes / 8 + 2 * 7 / 8 * w.nbytes
    np.testing.assert_allclose(compiled(w, x), jax.jit(step)(w, x), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("out", [P("data", "model"), P("data", None, "model")])
def test_an_axis_leaves_a_dim_before_that_is_split(out):
    """Cut over the groups and over what is in them, its pieces would have to be exchanged one by one."""

    def f(x: jax.Array) -> jax.Array:
        return 2 * jnp.sin(x.reshape(4, 8, 8, 2, 16))

    mesh, x = spmd.create_mesh({"data": 2, "model": 4}), jnp.arange(4 * 8 * 8 * 32.0).reshape(4, 8, 8, 32)
    step = spmd.spmd_jit(f, mesh=mesh, in_layouts=(P("data", None, None, "model"),), out_layouts=out)
    assert step.lower(x).comm_bytes() == 3 / 4 * x.nbytes / 8
    np.testing.assert_allclose(step(x), jax.jit(f)(x), rtol=1e-6)


@pytest.mark.parametrize(
    ("dims", "whole"),
    [
        ((("a:(1)4",), ("a:(4)2",), ()), ((), ("a",), ())),
        ((("a:(1)4",), ("b", "a:(4)2"), ()), ((), ("a", "b"), ())),
        ((("a:(1)4",), (), ("a:(4)2",)), (("a",), (), ())),  # the last dim is too short
        ((("a:(1)4",), (), ()), (("a",), (), ())),
        ((("b",), (), ("a:(4)2",)), (("b",), (), ())),  # no dim has room for it
    ],
)
def test_axes_are_seen_whole_on_the_last_dim_that_they_divide(dims, whole):
    mesh = spmd.create_mesh({"a": 8, "b": 2}, abstract=True)
    assert with_whole_axes(Layout(dims), TensorType((8, 16, 4), "f32"), mesh) == Layout(whole)
