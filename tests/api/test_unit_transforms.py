"""Derivatives and batches of functions with sharding rules: right for every layout, and they run on blocks too."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from tests.share import examples

MESH = spmd.create_mesh([("a", 4), ("b", 2)])


def f32(*shape):
    return np.random.RandomState(sum(shape)).rand(*shape).astype(np.float32)


def plain_product(x, w):
    return jnp.sin(x) @ w


def plain_scaled(x, d):
    """Rows by their norm; how many entries of each row are large."""
    norm = (x * x).sum(-1, keepdims=True)
    return x * d / norm, (x > 0.5).sum(-1), norm[..., 0].max()


def plain_parts(x):
    return x.reshape(-1, 3, x.shape[1]).prod(1)


product = spmd.sharding_rule("b i, i o -> b o", reduction="sum")(plain_product)
scaled = spmd.sharding_rule("... d, d -> ... d, ..., ", reduction={"...": "max"})(plain_scaled)
parts = spmd.sharding_rule("(h k) t -> h t", k=3)(plain_parts)

FUNCTIONS = {
    "product": (product, plain_product, [(8, 6), (6, 4)]),
    "product uneven": (product, plain_product, [(7, 6), (6, 5)]),
    "scaled": (scaled, plain_scaled, [(4, 5, 6), (6,)]),
    "parts": (parts, plain_parts, [(12, 5)]),
}
TRANSFORMS = {
    "grad": lambda f: lambda *xs: jax.grad(lambda *ys: jnp.cos(f(*ys)[0]).sum(), tuple(range(len(xs))))(*xs),
    "forward": lambda f: lambda *xs: jax.jvp(lambda *ys: f(*ys)[0], xs, xs),
    "second": lambda f: lambda *xs: jax.jvp(jax.grad(lambda *ys: (f(*ys)[0] ** 2).sum()), xs, xs)[1],
    "batch": lambda f: lambda *xs: jax.vmap(lambda y: f(y, *xs[1:]), 1)(jnp.stack([xs[0], 2 * xs[0]], 1)),
    "checkpoint": lambda f: (
        lambda *xs: jax.grad(jax.checkpoint(lambda y: jnp.sin(f(y, *xs[1:])[0]).sum()))(xs[0])
    ),
    "loop": lambda f: (
        lambda *xs: jax.grad(
            lambda y: jax.lax.scan(
                lambda c, _: (c + jnp.tanh(f(c, *xs[1:])[0].mean()), 0), y, None, length=3
            )[0].sum()
        )(xs[0])
    ),
}
specs = st.permutations(["a", "b", None, None])


def tupled(function):
    def run(*args):
        out = function(*args)
        return out if isinstance(out, tuple) else (out,)

    return run


@given(
    st.sampled_from(sorted(FUNCTIONS)),
    st.sampled_from(sorted(TRANSFORMS)),
    st.lists(specs, min_size=2, max_size=2),
)
@examples(16)
def test_any_layout(name, transform, wanted):
    function, plain, shapes = FUNCTIONS[name]
    args = [f32(*s) for s in shapes]
    layouts = tuple(P(*spec[: len(s)]) for spec, s in zip(wanted, shapes, strict=False))
    change = TRANSFORMS[transform]
    got = spmd.spmd_jit(change(tupled(function)), mesh=MESH, in_layouts=layouts)(*args)
    want = jax.jit(change(tupled(plain)))(*args)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5), got, want)


def test_gradients_run_on_blocks():
    """Data parallel: the weights' gradient is one all-reduce, nothing else is sent."""

    def step(w, x):
        return jax.grad(lambda w: product(x, w).sum())(w)

    lowered = spmd.spmd_jit(step, mesh=MESH, in_layouts=(P(), P(("a", "b"))), out_layouts=P()).lower(
        f32(6, 4), f32(512, 6)
    )
    assert [c.kind for c in lowered.collectives()] == ["all_reduce"]
    assert "fallback" not in lowered.explain()


def test_gradient_of_a_program():
    """The rule counts also where a whole `spmd_jit` function is differentiated."""
    x, w = f32(8, 6), f32(6, 4)
    loss = spmd.spmd_jit(lambda x, w: (product(x, w) ** 2).sum(), mesh=MESH, in_layouts=(P("a"), P()))
    got = jax.jit(jax.grad(loss, 1))(x, w)
    want = jax.grad(lambda w: (plain_product(x, w) ** 2).sum())(w)
    np.testing.assert_allclose(got, want, rtol=1e-5)


@pytest.mark.parametrize("manual", [{"a"}, {"a", "b"}])
def test_gradients_within_manual_regions(manual):
    """JAX tracks there which values vary over the manual axes: the weights' gradient is summed over them."""

    def loss(function):
        def body(x, w):
            y = function(x, w)
            return jax.lax.psum((y * x[:, :1] * w[0]).sum(), "a")

        return jax.shard_map(
            body, mesh=MESH.to_jax(), in_specs=(P("a"), P()), out_specs=P(), axis_names=manual
        )

    x, w = f32(8, 6), f32(6, 4)
    want = jax.jit(jax.grad(loss(plain_product), (0, 1)))(x, w)
    step = spmd.spmd_jit(jax.grad(loss(product), (0, 1)), mesh=MESH, in_layouts=(P(None, "b"), P("b")))
    for got in (step(x, w), jax.jit(jax.grad(loss(product), (0, 1)))(x, w)):
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, want)


def test_custom_vjp():
    """The forward and the backward function each have a rule."""
    forward = spmd.sharding_rule("b d -> b d")(lambda x: x**3)
    backward = spmd.sharding_rule("b d, b d -> b d")(lambda x, ct: 3 * x * x * ct)
    cube = jax.custom_vjp(forward)
    cube.defvjp(lambda x: (forward(x), x), lambda x, ct: (backward(x, ct),))
    step = spmd.spmd_jit(
        jax.grad(lambda x: cube(x).sum()), mesh=MESH, in_layouts=P("a", "b"), out_layouts=P("a", "b")
    )
    x = f32(8, 6)
    lowered = step.lower(x)
    assert not lowered.collectives()
    assert 'sharding_rule="b d, b d -> b d"' in lowered.as_text("propagate")
    np.testing.assert_allclose(step(x), 3 * x * x, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_other_reductions_are_whole_in_derivatives(reduction):
    """Only some of the blocks' results count, so no block has a derivative by itself."""
    reduce = getattr(jnp, reduction)
    largest = spmd.sharding_rule("b d -> d", reduction=reduction)(lambda x: reduce(x, 0))
    x = f32(8, 6)
    step = spmd.spmd_jit(jax.grad(lambda x: (largest(x) ** 2).sum()), mesh=MESH, in_layouts=P("a"))
    np.testing.assert_allclose(step(x), jax.grad(lambda x: (reduce(x, 0) ** 2).sum())(x), rtol=1e-5)
