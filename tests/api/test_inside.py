"""JAX's own transformations and control flow inside a partitioned program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
W = np.random.RandomState(0).randn(8, 8).astype(np.float32)
X = np.random.RandomState(1).randn(16, 8).astype(np.float32)


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g * jnp.cos(x), -0.1, 0.1),))


@jax.jit
def layer(w, x):
    return jnp.tanh(x @ w)


def loss(w, x):
    return jnp.mean(layer(w, x) ** 2)


def remat(w, x):
    return jax.grad(lambda w: jax.checkpoint(loss)(w, jax.checkpoint(layer)(w, x)))(w)


def remat_policy(w, x):
    policy = jax.checkpoint_policies.dots_saveable
    return jax.grad(jax.checkpoint(loss, policy=policy))(w, x)


def per_example(w, x):
    return jax.vmap(jax.grad(lambda w, row: loss(w, row[None])), (None, 0))(w, x)


def grad_of_scan(w, x):
    def total(w):
        state, sums = lax.scan(lambda h, s: (layer(w, h) * s, h.sum()), x, jnp.arange(1.0, 4.0))
        return state.sum() + sums[-1]

    return jax.value_and_grad(total)(w)


def reverse_scan(w, x):
    return lax.scan(lambda c, row: (c + row @ w, c), jnp.zeros(8), x, reverse=True)


def loop_with_data(w, x):
    return lax.while_loop(
        lambda c: (c[1] < 5) & (jnp.sum(c[0]) < 1e3), lambda c: (c[0] @ w, c[1] + 1), (x, 0)
    )


def loop_of_loops(w, x):
    return lax.fori_loop(0, 3, lambda i, h: lax.fori_loop(0, i + 1, lambda j, g: jnp.tanh(g @ w) + j, h), x)


def branches(w, x):
    by_number = lax.switch(jnp.argmax(x[0]) % 3, [jnp.sin, lambda v: v @ w, lambda v: v * 2], x)
    return lax.cond(x.sum() > 0, lambda v: v.sum(0), lambda v: v.max(0), by_number)


def grad_of_cond(w, x):
    return jax.grad(lambda w: lax.cond(w[0, 0] > 0, lambda w: (x @ w).sum(), lambda w: (w**2).sum(), w))(w)


def mapped(w, x):
    return lax.map(lambda row: jnp.sort(row) @ w, x)


def scanned_associatively(w, x):
    return lax.associative_scan(jnp.add, x @ w)


PROGRAMS = {
    "grad": lambda w, x: jax.grad(loss, (0, 1))(w, x),
    "jvp": lambda w, x: jax.jvp(loss, (w, x), (w, x)),
    "hessian_vector": lambda w, x: jax.jvp(lambda w: jax.grad(loss)(w, x), (w,), (w,)),
    "vmap": lambda w, x: jax.vmap(layer, (None, 0))(w, x.reshape(4, 4, 8)),
    "per_example": per_example,
    "remat": remat,
    "remat_policy": remat_policy,
    "custom_vjp": lambda w, x: jax.grad(lambda w: clipped(x @ w).sum())(w),
    "grad_of_scan": grad_of_scan,
    "reverse_scan": reverse_scan,
    "loop_with_data": loop_with_data,
    "loop_of_loops": loop_of_loops,
    "branches": branches,
    "grad_of_cond": grad_of_cond,
    "map": mapped,
    "associative_scan": scanned_associatively,
}
LAYOUTS = [(P(), P("a")), (P("a", "b"), P("b")), (P(None, ("b", "a")), P(None, "a")), (P("b"), P(("a", "b")))]


@pytest.mark.parametrize("layouts", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_to_jit(name, layouts):
    want = jax.jit(PROGRAMS[name])(W, X)
    got = spmd.spmd_jit(PROGRAMS[name], mesh=MESH, in_layouts=layouts)(W, X)
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("axis", ["a", "b"])
def test_shard_map_of_some_axes_inside(axis):
    """The other axes stay with the compiler."""

    def f(x):
        def mean(u):
            return lax.pmean(jnp.sin(u), axis)

        inner = jax.shard_map(
            mean, mesh=MESH.to_jax(), in_specs=P(axis), out_specs=P(), axis_names={axis}, check_vma=False
        )
        return inner(x * 2).sum(0)

    got = spmd.spmd_jit(f, mesh=MESH, in_layouts=P(None, "b" if axis == "a" else "a"))(X)
    n = dict(MESH.axes)[axis]
    want = np.sin(2 * X).reshape(n, 16 // n, 8).mean(0).sum(0)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_grad_through_shard_map_inside():
    def f(w, x):
        inner = jax.shard_map(
            lambda w, u: lax.psum(jnp.sum(jnp.tanh(u @ w)), "a"),
            mesh=MESH.to_jax(),
            in_specs=(P(), P("a")),
            out_specs=P(),
        )
        return inner(w, x)

    got = spmd.spmd_jit(jax.grad(f), mesh=MESH, in_layouts=(P("b"), P()))(W, X)
    np.testing.assert_allclose(got, jax.grad(lambda w: jnp.tanh(X @ w).sum())(W), rtol=1e-4, atol=1e-5)


def test_pure_callback():
    """On whole operands, also within a branch, and beside those of the function around."""

    def host(function, x):
        return jax.pure_callback(function, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    def fun(x):
        y = host(lambda v: np.sin(v), x * 2)
        return y + jax.lax.cond(x.sum() > 0, lambda y: host(lambda v: np.cos(v), y), lambda y: y, y)

    x = np.random.RandomState(0).rand(8, 4).astype(np.float32)
    step = spmd.spmd_jit(
        fun, mesh=spmd.create_mesh([("a", 4), ("b", 2)]), in_layouts=P("a"), out_layouts=P("a")
    )
    want = np.sin(2 * x) + np.cos(np.sin(2 * x))
    np.testing.assert_allclose(step(x), want, rtol=1e-5)
    assert "fallback: custom_call" in step.lower(x).explain()
    around = jax.jit(lambda x: host(lambda v: v * 5, x) + step(x) + host(lambda v: v * 3, x))
    np.testing.assert_allclose(around(x), want + 8 * x, rtol=1e-5)
