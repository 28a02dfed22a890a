"""JAX's transformations of an `spmd_jit` function: outside, under `jit`, and inside another program."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
RNG = np.random.RandomState(0)
W = RNG.randn(16, 8).astype("float32")
X = RNG.randn(8, 16).astype("float32")


def loss(w, x):
    return jnp.mean(jnp.tanh(x @ w) ** 2)


def layer(w, x):
    return jnp.tanh(x @ w), jnp.argmax(x, -1)


LAYOUTS = {"in_layouts": (P(None, "b"), P("a")), "mesh": MESH}
f_loss = spmd.spmd_jit(loss, **LAYOUTS)
f_layer = spmd.spmd_jit(layer, **LAYOUTS)


def close(got, want):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        assert g.shape == w.shape and g.dtype == w.dtype
        if g.dtype == jax.dtypes.float0:
            continue
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=2e-4, atol=2e-5)


def grads(f):
    return lambda w, x: jax.grad(f, (0, 1))(w, x)


def value_and_grad(f):
    return lambda w, x: jax.value_and_grad(f)(w, x)


def forward(f):
    return lambda w, x: jax.jvp(f, (w, x), (jnp.ones_like(w), jnp.cos(x)))


def one_tangent(f):
    return lambda w, x: jax.jvp(lambda w: f(w, x), (w,), (jnp.ones_like(w),))


def linearized(f):
    def run(w, x):
        y, move = jax.linearize(f, w, x)
        return y, move(jnp.ones_like(w), x)

    return run


def hessian(f):
    return lambda w, x: jax.hessian(lambda v: f(w * v, x))(jnp.linspace(0.5, 1.5, 8))


def jacobian(f):
    return lambda w, x: jax.jacrev(lambda v: f(w * v, x))(jnp.linspace(0.5, 1.5, 8))


def batch(f):
    return lambda w, x: jax.vmap(f, (None, 0))(w, jnp.stack([x, 2 * x, x + 1]))


def batch_inner(f):
    return lambda w, x: jax.vmap(f, (1, None), 0)(jnp.stack([w, 2 * w], 1), x)


def per_example(f):
    return lambda w, x: jax.vmap(jax.grad(f), (None, 0))(w, jnp.stack([x, 2 * x]))


def rematerialised(f):
    return lambda w, x: jax.grad(jax.checkpoint(f))(w, x)


def in_scan(f):
    def run(w, x):
        def body(c, s):
            return c - 0.1 * jax.grad(f)(c, x * s), f(c, x)

        return jax.lax.scan(body, w, jnp.arange(1.0, 4.0))

    return run


def through_scan(f):
    def run(w, x):
        def total(w):
            return jax.lax.scan(lambda c, s: (c + f(w * s, x), None), 0.0, jnp.arange(1.0, 4.0))[0]

        return jax.grad(total)(w)

    return run


TRANSFORMS = [
    grads,
    value_and_grad,
    forward,
    one_tangent,
    linearized,
    hessian,
    batch,
    batch_inner,
    per_example,
    rematerialised,
    in_scan,
    through_scan,
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: t.__name__)
@pytest.mark.parametrize("where", ["eager", "jit", "spmd_jit"])
def test_transform(transform, where):
    want = transform(loss)(W, X)
    run = transform(f_loss)
    if where == "jit":
        run = jax.jit(run)
    elif where == "spmd_jit":
        run = spmd.spmd_jit(run, **LAYOUTS)
    close(run(W, X), want)


@pytest.mark.parametrize("transform", [forward, linearized, batch, batch_inner], ids=lambda t: t.__name__)
def test_several_results_and_integers(transform):
    close(transform(f_layer)(W, X), transform(layer)(W, X))


def test_vjp_of_one_result():
    def pull(f):
        y, back, label = jax.vjp(f, W, X, has_aux=True)
        return y, label, back(jnp.ones_like(y))

    close(pull(f_layer), pull(layer))


def test_grad_is_partitioned_and_compiled_once():
    count = 0

    def counted(w, x):
        nonlocal count
        count += 1
        return loss(w, x)

    f = spmd.spmd_jit(counted, **LAYOUTS)
    args = (jax.device_put(W, jax.NamedSharding(MESH.to_jax(), P(None, "b"))), X)
    g = jax.grad(f)(*args)
    assert g.sharding.spec == P(None, "b")
    with jax.log_compiles(False), _no_compilation():
        for _ in range(3):
            jax.grad(f)(*args)
    assert count == 1


class _no_compilation:
    def __enter__(self):
        self.events = []
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def _listen(self, name, seconds, **_):
        if "backend_compile" in name:
            self.events.append(name)

    def __exit__(self, *exc):
        jax.monitoring.unregister_event_duration_listener(self._listen)
        assert not self.events


def test_vmap_on_a_mesh_axis():
    xs = RNG.randn(4, 6, 16).astype("float32")
    f = spmd.spmd_jit(lambda w, x: jnp.tanh(x @ w), mesh=MESH, in_layouts=(P(), P()))
    got = jax.vmap(f, (None, 0), spmd_axis_name="a")(W, xs)
    close(got, np.tanh(xs @ W))


@jax.custom_vjp
def clipped(x):
    return jnp.sin(x)


clipped.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.clip(g * jnp.cos(x), -0.01, 0.01),))


@jax.custom_jvp
def soft(x):
    return jnp.log1p(jnp.exp(x))


soft.defjvp(lambda p, t: (soft(p[0]), t[0] * jax.nn.sigmoid(p[0]) * 2))


@pytest.mark.parametrize("f", [clipped, soft], ids=["custom_vjp", "custom_jvp"])
@pytest.mark.parametrize("where", ["inside", "outside"])
def test_custom_rules(f, where):
    def total(w, x):
        return jnp.sum(f(x @ w))

    want = jax.grad(total, (0, 1))(W, X)
    if where == "inside":
        got = spmd.spmd_jit(jax.grad(total, (0, 1)), **LAYOUTS)(W, X)
    else:
        got = jax.grad(spmd.spmd_jit(total, **LAYOUTS), (0, 1))(W, X)
    close(got, want)


def test_two_programs_in_one_jit():
    @jax.jit
    def both(w, x):
        y, _ = f_layer(w, x)
        return f_loss(w, x) + y.sum()

    close(both(W, X), loss(W, X) + layer(W, X)[0].sum())


def test_program_on_another_mesh_inside_is_an_error():
    other = spmd.create_mesh([("a", 8)])
    inner = spmd.spmd_jit(loss, mesh=other, in_layouts=(P(), P("a")))
    outer = spmd.spmd_jit(lambda w, x: inner(w, x) * 2, **LAYOUTS)
    with pytest.raises(spmd.MeshError, match="one program has one mesh"):
        outer(W, X)


def test_keys_and_dropout():
    def dropped(w, x, key):
        return jnp.sum(jnp.where(jax.random.bernoulli(key, 0.5, x.shape), x, 0) @ w)

    key = jax.random.key(3)
    f = spmd.spmd_jit(dropped, mesh=MESH, in_layouts=(P(None, "b"), P("a"), P()))
    close(jax.grad(f)(W, X, key), jax.grad(dropped)(W, X, key))
    close(
        jax.vmap(f, (None, None, 0))(W, X, jax.random.split(key, 3)),
        jax.vmap(dropped, (None, None, 0))(W, X, jax.random.split(key, 3)),
    )


def heads(w, x):
    return jnp.tanh((x @ w).reshape(8, 2, 4)).sum(0)


def squares(x):
    return (jnp.tanh(x.reshape(2, 4, 16)) ** 2).sum((0, 1))


IN_PIECES = {  # the layouts of arguments with which results, or what gradients keep, lie on pieces of axes
    "split": (lambda x: x.reshape(2, 4, 16) * 2, P("a"), (X,)),
    "split and summed": (squares, P("a"), (X,)),
    "fewer heads than devices": (heads, (P(None, "a"), P("b")), (W, X)),
}
TRANSFORMS = {
    "jit": jax.jit,
    "grad": lambda f: jax.grad(lambda *args: jnp.sum(f(*args) ** 2)),
    "jit of grad": lambda f: jax.jit(jax.grad(lambda *args: jnp.sum(f(*args) ** 2))),
    "vjp in jit": lambda f: lambda *args: jax.jit(lambda *xs: jax.vjp(f, *xs))(*args)[0],
    "checkpoint": lambda f: jax.grad(jax.checkpoint(lambda *args: jnp.sum(f(*args) ** 2))),
    "jvp": lambda f: lambda *args: jax.jvp(f, args, args),
    "vmap": lambda f: lambda *args: jax.vmap(f)(*(jnp.stack([x, 2 * x]) for x in args)),
}


@pytest.mark.parametrize("how", TRANSFORMS)
@pytest.mark.parametrize("name", IN_PIECES)
def test_pieces_of_axes_do_not_leave_for_jax(name, how):
    f, layouts, args = IN_PIECES[name]
    partitioned = spmd.spmd_jit(f, mesh=MESH, in_layouts=layouts)
    got, want = (TRANSFORMS[how](g)(*args) for g in (partitioned, f))
    close(got, want)
    assert all(isinstance(x.sharding, jax.sharding.NamedSharding) for x in jax.tree.leaves(got))


def test_pieces_of_axes_leave_a_program_that_is_called_alone():
    f, layouts, args = IN_PIECES["split"]
    lowered = spmd.spmd_jit(f, mesh=MESH, in_layouts=layouts).lower(*args)
    assert any(":" in str(x) for x in jax.tree.leaves(lowered.out_layouts))
    assert lowered.comm_bytes() == 0
