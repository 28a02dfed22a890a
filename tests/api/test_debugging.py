"""`jax.debug` within programs: what is printed, or handed to a callback, and which layouts are shown."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import checkify
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
X = np.arange(16, dtype=np.float32).reshape(8, 2)


class Seen(list):
    """What a callback was called with."""

    def __call__(self, *values):
        self.append([np.asarray(v).tolist() for v in values])

    def by(self, call, *args):
        self.clear()
        jax.block_until_ready(call(*args))
        jax.effects_barrier()
        return sorted(map(str, self))


SEEN = Seen()


def told(*values):
    jax.debug.callback(SEEN, *values)


def several(x):
    told(x.sum(), x)
    return x * 2


def in_loop(x):
    def step(carry, v):
        told(carry.sum())
        return carry + v, None

    return jax.lax.scan(step, x, jnp.arange(3.0))[0]


def in_unknown_loop(x):
    def step(carry):
        told(carry.sum())
        return carry * 2

    return jax.lax.while_loop(lambda c: c.sum() < 500, step, x)


def in_branch(x):
    def yes(v):
        told(v.sum())
        return v

    return jax.lax.cond(x.sum() > 0, yes, lambda v: v * 2, x)


def under_vmap(x):
    return jax.vmap(lambda v: (told(v), v * 2)[1])(x)


def in_gradient(x):
    return jax.grad(lambda v: (told(v.sum()), (v**2).sum())[1])(x)


def in_remat(x):
    return jax.grad(jax.checkpoint(lambda v: (told(v.sum()), jnp.sin(v).sum())[1]))(x)


def twice(x):
    told(x)
    told(x)
    return x


def nothing(x):
    told()
    return x


def all_types(x):
    told(x.astype(jnp.int32), x > 3, x.astype(jnp.bfloat16))
    return x


def of_partial_sums(x):
    told(x.T @ x)
    return x


def of_uneven_parts(x):
    told(x[:7] * 2)
    return x[:5]


def alone(x):
    told(jnp.sort(x, 0))
    return 0.0


def per_device(x):
    return jax.shard_map(several, mesh=MESH.to_jax(), in_specs=P("a"), out_specs=P("a"))(x)


CASES = [several, in_loop, in_unknown_loop, in_branch, under_vmap, in_gradient, in_remat, twice, nothing]
CASES += [all_types, of_partial_sums, of_uneven_parts, alone, per_device]


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
@pytest.mark.parametrize("spec", [P("a"), P(("a", "b")), P(None, "b")], ids=str)
def test_callbacks_are_called_as_on_one_device(function, spec):
    partitioned = spmd.spmd_jit(function, mesh=MESH, in_layouts=spec)
    assert SEEN.by(partitioned, X) == SEEN.by(jax.jit(function), X) != []


@pytest.mark.parametrize(
    "around",
    [
        lambda f: jax.jit(lambda x: f(x) + 1),
        lambda f: jax.grad(lambda x: f(x).sum()),
        lambda f: spmd.spmd_jit(lambda x: f(x) + 1, mesh=MESH),
        lambda f: f.lower(X).compile(),
    ],
    ids=["jit", "grad", "spmd_jit", "compiled"],
)
def test_a_program_called_elsewhere_calls_back_once(around):
    call = around(spmd.spmd_jit(several, mesh=MESH, in_layouts=P("a")))
    once = [str([X.sum().tolist(), X.tolist()])]
    assert SEEN.by(call, X) == once
    assert SEEN.by(call, X) == once


def test_on_one_device():
    mesh = spmd.create_mesh({"a": 1}, devices=jax.devices()[:1])
    assert len(SEEN.by(spmd.spmd_jit(several, mesh=mesh), X)) == 1


def test_prints(capfd):
    def f(x):
        jax.debug.print("sum {s}, first {x}", s=x.sum(), x=x[0])
        return x * 2

    jax.block_until_ready(spmd.spmd_jit(f, mesh=MESH, in_layouts=P("a"))(X))
    jax.effects_barrier()
    assert capfd.readouterr().out.splitlines() == ["sum 120.0, first [0. 1.]"]


def test_the_layouts_that_values_have_are_shown():
    shown = []

    def f(x, w):
        y = x @ w
        jax.debug.inspect_array_sharding(y, callback=shown.append)
        return jnp.tanh(y)

    w = np.ones((2, 6), np.float32)
    layouts = (P("a"), P(None, "b"))
    lowered = spmd.spmd_jit(f, mesh=MESH, in_layouts=layouts).lower(X, w)
    assert shown == [NamedSharding(MESH.to_jax(), P("a", "b"))]
    plain = spmd.spmd_jit(lambda x, w: jnp.tanh(x @ w), mesh=MESH, in_layouts=layouts).lower(X, w)
    assert lowered.collectives() == plain.collectives() == []


def test_to_ask_for_the_layout_of_a_partial_sum_does_not_reduce_it():
    shown = []

    def f(x, ask):
        y = x.sum(0)
        if ask:
            jax.debug.inspect_array_sharding(y, callback=shown.append)
        return 2 * y

    lowered = [
        spmd.spmd_jit(f, mesh=MESH, in_layouts=P("a"), static_argnums=1).lower(X, ask)
        for ask in (True, False)
    ]
    assert len({low.comm_bytes() for low in lowered}) == len(shown) == 1
    assert shown[0].spec == P()


def test_layouts_are_drawn(capsys):
    def f(x):
        jax.debug.visualize_array_sharding(x, use_color=False)
        return x + 1

    spmd.spmd_jit(f, mesh=MESH, in_layouts=P("a")).lower(X)
    drawn = capsys.readouterr().out
    assert all(f"CPU {k},{k + 1}" in drawn for k in range(0, 8, 2))


def test_checks_inside():
    def f(x):
        checkify.check(x.sum() < 0, "the sum is {s}", s=x.sum())
        return jnp.log(x - 5)

    for errors, message in (
        (checkify.user_checks, "the sum is 120.0"),
        (checkify.nan_checks, "nan generated"),
    ):
        error, out = spmd.spmd_jit(checkify.checkify(f, errors=errors), mesh=MESH, in_layouts=P("a"))(X)
        assert message in error.get()
        np.testing.assert_allclose(out, jnp.log(X - 5))


def test_checks_outside_are_refused():
    f = spmd.spmd_jit(lambda x: jnp.log(x - 5), mesh=MESH, in_layouts=P("a"))
    error, _ = checkify.checkify(f)(X)  # checks of the user's, of which it has none
    assert error.get() is None
    with pytest.raises(spmd.UnsupportedError, match=r"checkify\.checkify\(f"):
        checkify.checkify(f, errors=checkify.nan_checks)(X)
