"""Carries of loops come in the order in which they are made, where that takes less memory."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.passes import optimize
from spmd_compiler.tools.fuzz.check import on_devices

IN, HIDDEN, OUT = 8, 64, 16


def train(params, x):
    """Gradients of two layers, summed over microbatches."""

    def loss(params, x):
        first, second = params
        return ((jax.nn.relu(x @ first) @ second) ** 2).sum()

    def add(total, x):
        return jax.tree.map(jnp.add, total, jax.grad(loss)(params, x)), None

    return lax.scan(add, jax.tree.map(jnp.zeros_like, params), x)[0]


def arguments():
    rng = np.random.default_rng(0)
    first, second, x = (
        rng.normal(size=s).astype(np.float32) for s in ((IN, HIDDEN), (HIDDEN, OUT), (3, 32, IN))
    )
    return (first, second), x


def loop_of(fun, *args):
    mesh = spmd.create_mesh([("data", 4)], abstract=True)
    low = spmd.spmd_jit(fun, mesh=mesh, in_layouts=(P(), P(None, "data")), out_layouts=P()).lower(*args)
    (loop,) = (op for op in low.stages["optimize"].main.body.ops if op.name == "while")
    return low, loop


def carried(loop):
    return [v.type.shape for v in loop.results if v.type.shape in ((IN, HIDDEN), (HIDDEN, OUT))]


def test_the_gradient_that_is_made_first_comes_first(monkeypatch):
    """With the other one first, XLA would keep what the first layer computed while it makes the gradient of the second."""
    low, loop = loop_of(train, *arguments())
    assert carried(loop)[-2:] == [(HIDDEN, OUT), (IN, HIDDEN)]
    found = on_devices(low.stages, [np.asarray(a) for a in jax.tree.leaves(arguments())])
    for got, want in zip(found, jax.tree.leaves(jax.jit(train)(*arguments())), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-2)
    monkeypatch.setattr(optimize, "order_carries", lambda block: None)
    assert carried(loop_of(train, *arguments())[1])[-2:] == [(IN, HIDDEN), (HIDDEN, OUT)]


def test_an_order_that_gains_nothing_stays(monkeypatch):
    def add(total, x):
        return (total[0] * x.max(), total[1] + x.sum()), None

    def fun(start, x):
        return lax.scan(add, start, x)[0]

    start, (_, x) = (jnp.ones(3), jnp.ones(2)), arguments()
    shapes = [v.type.shape for v in loop_of(fun, start, x)[1].results]
    monkeypatch.setattr(optimize, "order_carries", lambda block: None)
    assert shapes == [v.type.shape for v in loop_of(fun, start, x)[1].results]
