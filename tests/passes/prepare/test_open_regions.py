"""Regions of `shard_map` that leave axes to the compiler: their bodies are partitioned over these.

What they compute is known from `jax.vmap` with an axis name, which knows of no devices.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.ir.optable import ASKED

EVEN = spmd.create_mesh([("b", 2), ("a", 2), ("c", 2)])
UNEVEN = spmd.create_mesh([("a", 2), ("b", 3)], devices=jax.devices()[:6])
X = np.random.RandomState(0).randn(8, 12).astype(np.float32)
W = np.random.RandomState(1).randn(12, 12).astype(np.float32)


def mlp(x, w):
    h = jnp.tanh(x @ w)
    return lax.psum(h.T @ h, "a"), h * lax.axis_index("a")


def collectives(x, w):
    everyone = lax.all_gather(x @ w, "a").sum(0) + lax.all_gather(x, "a", axis=1, tiled=True)[:, :12]
    swapped = lax.all_to_all(x @ w, "a", 1, 0, tiled=True)
    turned = lax.ppermute(x @ w, "a", [(0, 1), (1, 0)])
    parts = lax.psum_scatter(x @ w, "a", scatter_dimension=1, tiled=True)
    return lax.pmax(swapped, "a").sum(0) + lax.psum(parts.sum(), "a"), turned * everyone


def along_dims(x, w):
    x = jnp.sort(x + lax.axis_index("a"), axis=1)
    y = jnp.cumsum(jnp.roll(x, 1, axis=0), axis=0) + jnp.flip(x, 1)
    pads = jnp.pad(y, ((1, 1), (2, 0)))[1:-1, :-2].reshape(2, -1, 12)
    return lax.pmean(pads.sum((0, 1)), "a"), y @ w


def scanned(x, w):
    def step(carry, row):
        carry = lax.ppermute(jnp.tanh(carry @ w), "a", [(0, 1), (1, 0)]) + row
        return carry, carry.sum()

    last, sums = lax.scan(step, x, w[:3])
    return lax.psum(sums, "a"), last


def divergent_loop(x, w):
    """Rolling moves data between neighbours, on one half of the devices more often than on the other."""
    i = lax.axis_index("a")
    last = lax.fori_loop(0, 2 + 3 * i, lambda k, h: jnp.roll(h, (1, 1), (0, 1)) + jnp.cumsum(h, 1) * 0.1, x)
    return lax.psum(last.sum(0), "a"), last @ w


def divergent_branch(x, w):
    def deep(h):
        return lax.scan(lambda c, _: (jnp.roll(c, 1, 1) @ w * 0.1, None), h, length=3)[0]

    y = lax.cond(lax.axis_index("a") == 0, deep, lambda h: jnp.flip(h, 0), x)
    z = lax.switch(jnp.int32(x.sum() > 0), [jnp.sin, lambda v: jnp.roll(v, 3, 0)], x)
    return lax.psum(y.max(0), "a"), y + z


def gradient(x, w):
    def loss(w):
        return jnp.sum(jnp.tanh(x @ w) ** 2)

    g = lax.psum(jax.grad(jax.checkpoint(loss))(w), "a")
    return g.sum(0), x @ g


BODIES = [mlp, collectives, along_dims, scanned, divergent_loop, divergent_branch, gradient]
SPECS = [
    (P("a"), P()),
    (P(("a", "b")), P("b")),
    (P("b"), P(None, "b")),
    (P(None, ("b", "a")), P("b")),
    (P("a", "b"), P("b", "a")),
]


def on_devices(body, mesh):
    def f(x, w):
        inner = jax.shard_map(
            body,
            mesh=mesh.to_jax(),
            in_specs=(P("a"), P()),
            out_specs=(P(), P("a")),
            axis_names={"a"},
            check_vma=False,
        )
        y, z = inner(x * 2, w)
        return y + 1, jnp.sin(z)

    return f


@functools.cache
def on_paper(body):
    y, z = jax.jit(jax.vmap(body, (0, None), axis_name="a"))(2 * X.reshape(2, 4, 12), W)
    return y[0] + 1, np.sin(z.reshape(-1, z.shape[-1]))


@pytest.mark.parametrize("body", BODIES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("mesh", [EVEN, UNEVEN], ids=["even", "uneven"])
@pytest.mark.parametrize("specs", SPECS, ids=str)
def test_equal(body, mesh, specs):
    step = spmd.spmd_jit(on_devices(body, mesh), mesh=mesh, in_layouts=specs)
    for got, want in zip(step(X, W), on_paper(body), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=2e-4)


def test_the_body_is_partitioned():
    """A Megatron pair in the body: each device multiplies its own blocks, and their sum joins the body's own."""

    def body(x, v, w):
        return lax.psum(jnp.tanh(x @ v) @ w, "data")

    mesh = spmd.create_mesh({"data": 2, "model": 4})
    f = jax.shard_map(
        body,
        mesh=mesh.to_jax(),
        in_specs=(P("data"), P(), P()),
        out_specs=P(),
        axis_names={"data"},
        check_vma=False,
    )
    v, w = np.ones((12, 16), np.float32), np.ones((16, 12), np.float32)
    step = spmd.spmd_jit(f, mesh=mesh, in_layouts=(P("data"), P(None, "model"), P("model")), out_layouts=P())
    lowered = step.lower(X, v, w)
    (reduced,) = lowered.collectives()
    assert (reduced.kind, reduced.axes) == ("all_reduce", ("data", "model"))
    dots = [op for op in lowered.stages["optimize"].walk() if op.name == "dot_general"]
    assert [op.results[0].type.shape for op in dots] == [(4, 4), (4, 12)]
    want = (np.tanh(X @ v) @ w).reshape(2, 4, 12).sum(0)
    np.testing.assert_allclose(step(X, v, w), want, rtol=1e-4, atol=1e-5)


def test_who_receives_nothing_has_zeros():
    """Also where what is sent is the terms of a sum."""

    def body(x, w):
        return lax.ppermute(x @ w, "a", [(0, 1)])

    f = jax.shard_map(
        body,
        mesh=EVEN.to_jax(),
        in_specs=(P("a"), P()),
        out_specs=P("a"),
        axis_names={"a"},
        check_vma=False,
    )
    step = spmd.spmd_jit(f, mesh=EVEN, in_layouts=(P("a", "b"), P("b")), out_layouts=P("a"))
    assert "reduce over b" in step.lower(X, W).explain()
    np.testing.assert_allclose(step(X, W), np.r_[np.zeros((4, 12)), (X @ W)[:4]], rtol=1e-4, atol=1e-5)


def test_constraints_in_the_body():
    def body(x):
        y = lax.with_sharding_constraint(jnp.sin(x), P(None, "b"))
        return lax.psum(y, "a")

    f = jax.shard_map(
        body, mesh=EVEN.to_jax(), in_specs=P("a"), out_specs=P(), axis_names={"a"}, check_vma=False
    )
    step = spmd.spmd_jit(f, mesh=EVEN, in_layouts=P(("a", "c")), out_layouts=P())
    lowered = step.lower(X)
    (moved,) = [op for op in lowered.stages["propagate"].walk() if op.attrs.get("cause") == ASKED]
    assert str(moved.results[0].layout) == "{-,b}"
    assert spmd.ir.parse(lowered.as_text("propagate")).walk()
    np.testing.assert_allclose(step(X), np.sin(X).reshape(2, 4, 12).sum(0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("inner_axes", [{"b"}, {"b", "c"}], ids=sorted)
@pytest.mark.parametrize("spec", [P(), P("a", "b"), P(("c", "b"), "a")], ids=str)
def test_regions_in_regions(inner_axes, spec):
    """The inner one runs in a function that is called, and in a loop."""

    @jax.jit
    def nested(x):
        def inner(u):
            return lax.psum(u, "b") * (1 + lax.axis_index("b")) + lax.axis_index("a")

        return jax.shard_map(inner, in_specs=P(None, "b"), out_specs=P(None, "b"), axis_names=inner_axes)(x)

    def body(x):
        y = lax.scan(lambda c, _: (nested(c) * 0.5, None), x, length=2)[0]
        return lax.psum(y @ y.T, "a") + nested(y).sum()

    f = jax.shard_map(
        body, mesh=EVEN.to_jax(), in_specs=P("a"), out_specs=P(), axis_names={"a"}, check_vma=False
    )
    got = spmd.spmd_jit(f, mesh=EVEN, in_layouts=spec)(X)

    def on_paper(x, i):
        def nested(x):
            both = x[:, :6] + x[:, 6:]
            return np.concatenate([both, 2 * both], 1) + i

        y = nested(nested(x) * 0.5) * 0.5
        return y @ y.T, nested(y).sum()

    products, sums = zip(*[on_paper(X[4 * i : 4 * i + 4], i) for i in range(2)], strict=True)
    np.testing.assert_allclose(got, sum(products) + sums[0], rtol=1e-4)
