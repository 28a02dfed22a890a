"""Where the carries of loops lie, by what their users inside want and by axes that change places."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd


def k_means(x: jax.Array, centres: jax.Array) -> jax.Array:
    def step(i: jax.Array, centres: jax.Array) -> jax.Array:
        nearest = jnp.argmin(((x[:, None] - centres[None]) ** 2).sum(-1), -1)
        total = jax.ops.segment_sum(x, nearest, len(centres))
        count = jax.ops.segment_sum(jnp.ones(len(x)), nearest, len(centres))
        return total / jnp.maximum(count, 1)[:, None]

    return lax.fori_loop(0, 5, step, centres)


def conjugate_gradients(a: jax.Array, b: jax.Array) -> jax.Array:
    def step(state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        x, r, p, rr, i = state
        ap = a @ p
        alpha = rr / jnp.vdot(p, ap)
        x, r = x + alpha * p, r - alpha * ap
        new = jnp.vdot(r, r)
        return x, r, r + (new / rr) * p, new, i + 1

    start = (jnp.zeros_like(b), b, b, jnp.vdot(b, b), jnp.int32(0))
    return lax.while_loop(lambda s: (s[4] < 20) & (s[3] > 1e-10), step, start)[0]


def run(
    step: Callable[..., jax.Array], mesh: spmd.Mesh, specs: tuple[P, ...], args: tuple[np.ndarray, ...]
) -> np.ndarray:
    put = [jax.device_put(x, NamedSharding(mesh.to_jax(), s)) for x, s in zip(args, specs, strict=True)]
    return np.asarray(step(*put))


def test_sums_that_one_carry_is_made_of_are_reduced_together():
    """The carry is read whole, so it is no sum that is due: both sums are reduced where they are made, in one message."""
    mesh, specs, r = spmd.create_mesh({"a": 8}), (P("a"), P()), np.random.RandomState(0)
    args = r.randn(4096, 8).astype(np.float32), r.randn(16, 8).astype(np.float32)
    step = spmd.spmd_jit(k_means, mesh=mesh, in_layouts=specs, out_layouts=P())
    (reduction,) = step.lower(*args).collectives()
    assert (reduction.kind, reduction.trips) == ("all_reduce", 5)
    np.testing.assert_allclose(run(step, mesh, specs, args), jax.jit(k_means)(*args), rtol=1e-4)


def test_carries_of_a_loop_go_to_the_axis_that_their_product_wants():
    """p, r and x lie over both axes in one order: an iteration sends a part of what it does with p along the columns."""
    mesh, specs, r = spmd.create_mesh({"a": 4, "b": 2}), (P("a", "b"), P("b")), np.random.RandomState(0)
    a = r.randn(1024, 1024).astype(np.float32) / 50
    args = a @ a.T + np.eye(1024, dtype=np.float32), r.randn(1024).astype(np.float32)
    step = spmd.spmd_jit(conjugate_gradients, mesh=mesh, in_layouts=specs, out_layouts=None)
    assert step.lower(*args).comm_bytes() <= 2_600
    want = jax.jit(conjugate_gradients)(*args)
    np.testing.assert_allclose(run(step, mesh, specs, args), want, atol=2e-4)


def test_carries_move_over_several_axes_at_once():
    """The squared residual is a sum over both axes, and read whole: reduced once, for the condition and for its ratio."""
    mesh, specs, r = (
        spmd.create_mesh({"a": 4, "b": 2}),
        (P("a", "b"), P(("a", "b"))),
        np.random.RandomState(0),
    )
    a = r.randn(1024, 1024).astype(np.float32) / 50
    args = a @ a.T + np.eye(1024, dtype=np.float32), r.randn(1024).astype(np.float32)
    step = spmd.spmd_jit(conjugate_gradients, mesh=mesh, in_layouts=specs, out_layouts=specs[1])
    found = step.lower(*args).collectives()
    assert [c.kind for c in found].count("all_reduce") == 3  # one before the loop, two in it
    want = jax.jit(conjugate_gradients)(*args)
    np.testing.assert_allclose(run(step, mesh, specs, args), want, atol=2e-4)


def test_an_axis_of_steps_goes_to_what_each_step_is_cut_along():
    """Behind another axis that is there, as the loop has it: an all-to-all, where a gather sends twice as much."""
    mesh = spmd.create_mesh({"rows": 2, "steps": 2, "columns": 2}, abstract=True)

    def states(a, xs):
        return lax.scan(lambda h, x: (a * h + x[..., None], h.sum(-1)), jnp.zeros((8, 256, 16)), xs)[1]

    layouts = (P(("rows", "steps")), P("steps", "columns", "rows"))
    step = spmd.spmd_jit(states, mesh=mesh, in_layouts=layouts)
    low = step.lower(*(jax.ShapeDtypeStruct(x, np.float32) for x in ((256, 16), (32, 8, 256))))
    assert [(c.kind, c.bytes_per_device) for c in low.collectives()] == [
        ("all_to_all", 32 * 8 * 256 * 4 / 8 / 2)
    ]


def test_a_carry_on_axes_along_both_dims_is_gathered_once():
    """Without one of the axes alone each iteration would send as much."""
    mesh = spmd.create_mesh({"a": 4, "b": 2}, abstract=True)
    step = spmd.spmd_jit(
        lambda x: lax.fori_loop(0, 16, lambda _, x: x @ x, x), mesh=mesh, in_layouts=P("a", "b")
    )
    low = step.lower(jax.ShapeDtypeStruct((64, 64), np.float32))
    assert low.comm_bytes() == 64 * 64 * 4 * 7 / 8 and len(low.collectives()) <= 2


def test_indices_that_are_doubled_again_and_again():
    """What an index or a concatenation is made of is looked at once, not once for each way to it."""

    def doubled(xs):
        def body(i, c):
            for _ in range(40):
                i = i + i
            return c + jax.lax.dynamic_index_in_dim(xs, i, 0, False)

        return jax.lax.fori_loop(0, 8, body, jnp.zeros(64))

    def longer(x):
        for _ in range(12):
            x = jnp.concatenate([x, x])
        return x

    mesh = spmd.create_mesh({"a": 8}, abstract=True)
    for fun, shape in ((doubled, (8, 64)), (longer, (8,))):
        low = spmd.spmd_jit(fun, mesh=mesh, in_layouts=P("a")).lower(jax.ShapeDtypeStruct(shape, np.float32))
        assert sum(1 for _ in low.stages["optimize"].walk()) < 1000
