"""What the assignment of layouts takes for cheap."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from tests.variants import lowered


def bodies(x: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Some steps of n bodies, each of which pulls all others."""

    def step(state: tuple[jax.Array, jax.Array], _: None) -> tuple[tuple[jax.Array, jax.Array], None]:
        x, v = state
        d = x[None] - x[:, None]
        v = v + 0.01 * (lax.rsqrt((d**2).sum(-1) + 0.01)[..., None] ** 3 * d).sum(1) / len(x)
        return (x + 0.01 * v, v), None

    return lax.scan(step, (x, v), None, 8)[0]


@pytest.mark.parametrize("n", [512, 2048])
def test_work_on_all_pairs_is_spread(n):
    """Each device computes its rows of the n x n pairs, though sending x once and doing all of them is fewer bytes."""
    mesh = spmd.create_mesh({"a": 8}, abstract=True)
    x = jax.ShapeDtypeStruct((n, 3), jnp.float32)
    step = spmd.spmd_jit(bodies, mesh=mesh, in_layouts=(P("a"), P("a")), out_layouts=P("a"))
    (gather,) = step.lower(x, x).collectives()
    assert (gather.kind, gather.trips) == ("all_gather", 8)
    assert gather.bytes_per_device == n * 3 * 4 * 7 / 8


def test_work_on_few_pairs_is_repeated():
    mesh = spmd.create_mesh({"a": 8}, abstract=True)
    x = jax.ShapeDtypeStruct((16, 3), jnp.float32)
    step = spmd.spmd_jit(bodies, mesh=mesh, in_layouts=(P("a"), P("a")), out_layouts=P("a"))
    assert [c.trips for c in step.lower(x, x).collectives()] == [1]


@pytest.mark.parametrize(("n", "messages"), [(64, 1), (1024, 1024)])
def test_what_loops_do_to_large_arrays_is_spread(n, messages):
    """All shortest paths: each iteration needs one row. To send each row is twice the bytes of an exchange of all of them
    beforehand, and more messages; but then each device would do what all do together."""

    def paths(d):
        return lax.fori_loop(0, n, lambda k, d: jnp.minimum(d, d[:, k][:, None] + d[k]), d)

    mesh = spmd.create_mesh({"a": 8}, abstract=True)
    step = spmd.spmd_jit(paths, mesh=mesh, in_layouts=P("a"), out_layouts=P("a"))
    assert [c.trips for c in step.lower(jax.ShapeDtypeStruct((n, n), jnp.float32)).collectives()] == [
        messages
    ]


def test_no_more_messages_at_equal_bytes():
    """A sum over the experts, reduced at once rather than scattered and gathered to save some work in between."""

    def attended(latents, x, wq, wk):
        for _ in range(2):
            weights = jax.nn.softmax((latents @ wq) @ (x @ wk).transpose(0, 2, 1))
            latents = latents + weights @ x
        return latents

    mesh = spmd.create_mesh({"a": 8}, abstract=True)
    args = [jax.ShapeDtypeStruct(s, jnp.float32) for s in ((4, 32, 64), (4, 1024, 64), (64, 64), (64, 64))]
    step = spmd.spmd_jit(attended, mesh=mesh, in_layouts=(P(), P(None, "a"), P(), P()), out_layouts=P())
    assert {c.kind for c in step.lower(*args).collectives()} == {"all_reduce"}


def test_sums_that_can_go_together_are_reduced_rather_than_scattered():
    """At equal bytes: one all-reduce for what gradients and loss owe over the batch, as XLA's partitioners have it."""
    step = lowered("dtensor_model_train~5")
    assert sum(c.trips for c in step.collectives()) <= 7
    assert step.comm_bytes() <= 87_180
