"""Dims of one element that come and go are written once, and nothing else changes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from benchmarks.variants import draw
from tests.variants import lowered

MESH = spmd.create_mesh({"a": 8})
X = np.random.default_rng(0).standard_normal((16, 1, 24)).astype(np.float32)


def ops(fun, x, want=None):
    program = spmd.spmd_jit(fun, mesh=MESH, in_layouts=P("a")).lower(x)
    np.testing.assert_array_equal(program.compile()(x), jax.jit(fun)(x) if want is None else want)
    return [op.name for op in program.stages["propagate"].main.body.ops if op.name != "constant"]


def there_and_back(x):
    return lax.reshape(lax.reshape(x, (1, 16, 24)), (16, 24, 1)) * 2


def in_a_loop(x):
    return lax.fori_loop(0, 3, lambda _, x: x + jnp.sum(x, 1, keepdims=True), x)


def joined_columns(x):
    return x.reshape(2, 8, 24).reshape(16, 24)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool", "complex64"])
@pytest.mark.parametrize("reduce", [jnp.sum, jnp.prod, jnp.max, jnp.min], ids=lambda f: f.__name__)
def test_reductions_of_one_element_are_reshapes(reduce, dtype):
    ordered = dtype != "complex64" or reduce in (jnp.sum, jnp.prod)  # JAX writes how complex numbers compare
    assert ("reduce" in ops(lambda x: reduce(x, 1), jnp.asarray(X, dtype)[:, :, :8])) != ordered


def test_reshapes_that_follow_each_other():
    assert ops(there_and_back, X).count("reshape") == 1
    assert not {"reshape", "reduce"} & {*ops(lambda x: jnp.sum(x, 1, keepdims=True) + 1, X)}


def test_broadcasts_that_follow_each_other():
    assert ops(lambda x: jnp.ones((16, 4, 24)) * x[:, 0][:, None], X).count("broadcast_in_dim") == 2


def test_reshapes_that_are_broadcast():
    rows = X[:, 0]
    made = ops(lambda x: lax.broadcast_in_dim(lax.reshape(x, (16, 1, 24)), (16, 4, 24), (0, 1, 2)) * 2, rows)
    assert (made.count("reshape"), made.count("broadcast_in_dim")) == (0, 2)


def test_bodies_of_loops():
    program = spmd.spmd_jit(in_a_loop, mesh=MESH, in_layouts=P("a")).lower(X)
    assert not {"reduce", "reshape"} & {op.name for op in program.stages["propagate"].walk()}


@pytest.mark.parametrize("start", [np.float32(1), None], ids=["known", "traced"])
def test_reductions_from_something_else_stay(start):
    """XLA drops it."""

    def fun(x):
        return lax.reduce(x, x[0, 0, 0] if start is None else start, lax.add, (1,))

    assert "reduce" in ops(fun, X, X[:, 0] + (X[0, 0, 0] if start is None else start))


@pytest.mark.parametrize(
    "fun",
    [
        lambda x: jnp.sum(x, (1, 2)),
        lambda x: lax.reduce(x, np.float32(0), lambda a, b: a + b * 2, (1,)),
        lambda x: lax.reduce((x, x), (np.float32(0),) * 2, lambda a, b: (a[0] + b[0], a[1] + b[1]), (1,))[0],
    ],
    ids=["more_elements", "other_region", "two_operands"],
)
def test_other_reductions_stay(fun):
    assert "reduce" in ops(fun, X)


def test_reshapes_that_join_dims_stay():
    assert "reshape" in ops(joined_columns, X[:, 0])


def test_gradients_of_biases_go_with_those_of_weights():
    """All are scattered as their moments lie, over three axes at once, and the parameters gathered."""
    built = draw("zero1_adam_train~cube0", 0).built
    state = sum(a.nbytes for a in jax.tree.leaves(built.args[0]["p"]))
    program = lowered("zero1_adam_train~cube0")
    loss, scattered, gathered = program.collectives()
    assert loss.bytes_per_device == 7
    assert scattered.bytes_per_device == gathered.bytes_per_device == 7 / 8 * state
