"""Loops of independent iterations over sharded slices: each device runs its own."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.ir.trips import trip_count
from spmd_compiler.tools.fuzz.check import on_devices
from tests import share

MESH = [("a", 4), ("b", 2)]
RNG = np.random.default_rng(0)


def W(*shape, dtype=np.float32):
    return RNG.normal(0, 0.5, shape).astype(dtype)


def lowered(fun, args, specs, outs, mesh=MESH, **options):
    mesh = spmd.create_mesh(mesh, abstract=True)
    step = spmd.spmd_jit(fun, mesh=mesh, in_layouts=specs, out_layouts=outs, options=spmd.Options(**options))
    return step.lower(*args)


def is_right(fun, low, args, exact=False):
    found = on_devices(low.stages, [np.asarray(a) for a in jax.tree.leaves(args)])
    for got, want in zip(found, jax.tree.leaves(jax.jit(fun)(*args)), strict=True):
        if exact:
            np.testing.assert_array_equal(got, want)
        else:
            np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)


def trips(low):
    """Of the loops that devices run."""
    module = low.stages["optimize"]
    return sorted(trip_count(op) or 0 for op in module.main.body.walk() if op.name == "while")


def is_spread(low):
    return any(op.name == "enter_manual" for op in low.stages["propagate"].main.body.walk())


def sent(low):
    found = Counter()
    for c in low.collectives():
        found[c.kind] += c.bytes_per_device * c.trips
    return found


# ------------------------------------------------------------------------------------------------ programs
def mapped(x, w):
    return lax.map(lambda row: jnp.tanh(row @ w), x)


def experts(x, up, down):
    def body(total, ws):
        return total + jax.nn.relu(x @ ws[0]) @ ws[1], None

    return lax.scan(body, jnp.zeros_like(x), (up, down))[0]


def experts_by_number(x, up, down):
    def body(i, total):
        return total + jax.nn.relu(x @ up[i]) @ down[i] * (i + 1)

    return lax.fori_loop(0, up.shape[0], body, x)


def experts_train(x, up, down):
    def loss(up, down):
        return (experts(x, up, down) ** 2).sum()

    gradients = jax.grad(loss, (0, 1))(up, down)
    return tuple(w - 0.01 * g for w, g in zip((up, down), gradients, strict=True))


def microbatches(w, xs, ys):
    def loss(w, x, y):
        return ((jnp.tanh(x @ w) - y) ** 2).mean()

    def body(carry, batch):
        value, gradient = jax.value_and_grad(loss)(w, *batch)
        return (carry[0] + value, carry[1] + gradient), None

    (total, gradient), _ = lax.scan(body, (0.0, jnp.zeros_like(w)), (xs, ys))
    return w - 0.1 * gradient, total


def by_chunks(w, x):
    """A loss by chunks whose insides are computed again in the gradient."""

    def loss(w):
        def chunk(total, x):
            return total + jax.nn.logsumexp(x @ w, 1).sum(), None

        return lax.scan(jax.checkpoint(chunk), 0.0, x.reshape(8, -1, 8))[0]

    value, gradient = jax.value_and_grad(loss)(w)
    return w - 0.1 * gradient, value


def cut_into_microbatches(w, xs, ys):
    return microbatches(w, xs.reshape(8, -1, 8), ys.reshape(8, -1, 8))


X, UP, DOWN = W(16, 8), W(8, 8, 12), W(8, 12, 8)
PROGRAMS = {
    "map": (mapped, (W(8, 16, 8), W(8, 8)), (P("a"), P()), P("a"), {}),
    "map_two_axes": (mapped, (W(8, 16, 8), W(8, 8)), (P(("a", "b")), P()), P(("a", "b")), {}),
    "experts": (experts, (X, UP, DOWN), (P(), P("a"), P("a")), P(), {"all_reduce": 768}),
    "by_chunks": (
        by_chunks,
        (W(8, 48), W(256, 8)),
        (P(), P("a")),
        P(),
        {"all_reduce": 1.5 * (8 * 48 + 1) * 4},
    ),
    "experts_by_number": (
        experts_by_number,
        (X, UP, DOWN),
        (P(), P("a"), P("a")),
        P(),
        {"all_reduce": 768},
    ),
    "experts_batch": (experts, (X, UP, DOWN), (P("b"), P("a"), P("a")), P("b"), {"all_reduce": 384}),
    "experts_hidden": (experts, (X, UP, DOWN), (P(), P("a", None, "b"), P("a", "b")), P(), None),
    "experts_train": (experts_train, (X, UP, DOWN), (P(), P("a"), P("a")), P("a"), {"all_reduce": 768}),
    "microbatches": (
        microbatches,
        (W(8, 8), W(8, 16, 8), W(8, 16, 8)),
        (P(), P("a"), P("a")),
        P(),
        {"all_reduce": 390},
    ),
    "cut": (
        cut_into_microbatches,
        (W(8, 8), W(64, 8), W(64, 8)),
        (P(), P("a"), P("a")),
        P(),
        {"all_reduce": 390},
    ),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_device_runs_its_iterations(name):
    fun, args, specs, outs, sends = PROGRAMS[name]
    low = lowered(fun, args, specs, outs)
    assert is_spread(low)
    n = 8 if name == "map_two_axes" else 4
    assert set(trips(low)) <= {8 // n}
    if sends is not None:
        assert sent(low) == sends
    is_right(fun, low, args)


# ------------------------------------------------------------------------------------------------ what a loop may do
def combined(x):
    def body(carry, row):
        total, most, least, product, count, some, odd = carry
        new = (
            total + row,
            jnp.maximum(row, most),
            jnp.minimum(least, row),
            product * row,
            count + (row > 0),
            some | (row > 1),
            odd ^ (row > 0.5),
        )
        return new, None

    ones = jnp.ones_like(x[0])
    start = ones, ones, ones, 2 * ones, jnp.ones_like(ones, jnp.int32), ones > 2, ones > 0
    return lax.scan(body, start, x)[0]


def test_sums_and_the_like_go_on_from_where_they_start():
    x = W(16, 4096)
    low = lowered(combined, (x,), P("a"), P())
    assert is_spread(low)
    is_right(combined, low, (x,))


def numbered(x):
    return lax.scan(lambda i, row: (i + 1, row * i), 0, x)[1]


def backwards(x):
    return lax.scan(lambda c, row: (c + row, row * 2), jnp.zeros_like(x[0]), x, reverse=True)


def numbered_backwards(x):
    n = x.shape[0]

    def body(i, carry):
        total, out = carry
        at = n - 1 - i
        return total + x[at] * i, out.at[at].set(x[at] + i)

    return lax.fori_loop(0, n, body, (jnp.zeros_like(x[0]), jnp.zeros_like(x)))


def in_place(x):
    return lax.fori_loop(0, x.shape[0], lambda i, x: x.at[i].set(jnp.sin(x[i])), x)


def along_columns(x):
    def body(i, out):
        column = lax.dynamic_slice_in_dim(x, i, 1, 1)
        return lax.dynamic_update_slice_in_dim(out, column * 2 + i, i, 1)

    return lax.fori_loop(0, x.shape[1], body, jnp.zeros_like(x))


def until_done(x):
    """Devices leave the inner loop at different times."""

    def one(row):
        return lax.while_loop(lambda r: (r * r).sum() > 0.1, lambda r: jnp.roll(r, 1) * 0.7, row)

    return lax.map(one, x)


ROWS = W(8, 8)


@pytest.mark.parametrize(
    "fun",
    [numbered, backwards, numbered_backwards, in_place, along_columns, until_done],
    ids=lambda f: f.__name__,
)
def test_numbers_directions_and_places(fun):
    spec = P(None, "a") if fun is along_columns else P("a")
    outs = (P(), spec) if fun in (backwards, numbered_backwards) else spec
    low = lowered(fun, (ROWS,), spec, outs)
    assert is_spread(low)
    assert {"all_gather", "all_to_all"}.isdisjoint(sent(low))
    is_right(fun, low, (ROWS,))


def test_what_is_made_from_nothing_lies_as_it_is_asked_for():
    def rows():
        return lax.map(lambda i: jnp.cos(jnp.arange(6.0) * i), jnp.arange(8))

    low = lowered(rows, (), (), P("a"))
    assert trips(low) == [2] and not sent(low)
    is_right(rows, low, ())


@pytest.mark.parametrize("count", [15, 31])
@pytest.mark.parametrize(
    "fun", [numbered, backwards, numbered_backwards, combined, in_place], ids=lambda f: f.__name__
)
def test_some_devices_may_have_fewer(fun, count):
    """Of 15 rows three devices have four, the last one has three; what is changed in place is changed once."""
    mesh = spmd.create_mesh(MESH, abstract=True)
    rows = spmd.Layout(["a", None], mesh)

    def program(x):
        return jax.tree.map(lambda y: y * 1, fun(spmd.relayout(x, rows)))

    x = W(count, 4096)
    low = spmd.spmd_jit(program, mesh=mesh, in_layouts=None).lower(x)
    assert is_spread(low) == (fun is not in_place)
    assert fun is in_place or trips(low) == [-(-count // 4)]
    is_right(fun, low, (x,))


@pytest.mark.parametrize("outer", ["in turn", "by themselves"])
def test_loops_in_loops(outer):
    def often(x, w):
        if outer == "in turn":
            return lax.fori_loop(0, 3, lambda i, x: mapped(x, w) + i, x)
        return lax.map(lambda v: mapped(x, v), jnp.stack([w, w + 1]))

    x, w = W(8, 16, 8), W(8, 8)
    low = lowered(often, (x, w), (P("a"), P()), P("a") if outer == "in turn" else P(None, "a"))
    assert is_spread(low) and not sent(low)
    is_right(often, low, (x, w))


# ------------------------------------------------------------------------------------------------ what stays as it is
def recurrent(x):
    return lax.scan(lambda c, row: (jnp.tanh(c + row), c), jnp.zeros_like(x[0]), x)


def neighbours(x):
    return lax.fori_loop(0, 7, lambda i, s: s + x[i] * x[i + 1], jnp.zeros_like(x[0]))


def both_ways(x):
    return lax.fori_loop(0, 8, lambda i, s: s + x[i] * x[7 - i], jnp.zeros_like(x[0]))


def a_mean_so_far(x):
    return lax.scan(lambda c, row: (c + row, c / 2), jnp.zeros_like(x[0]), x)


@pytest.mark.parametrize("fun", [recurrent, neighbours, both_ways, a_mean_so_far], ids=lambda f: f.__name__)
def test_iterations_that_depend_on_others_stay_in_one_loop(fun):
    outs = (P(), P("a")) if fun in (recurrent, a_mean_so_far) else P()
    low = lowered(fun, (ROWS,), P("a"), outs)
    assert not is_spread(low)
    is_right(fun, low, (ROWS,))


def test_more_devices_than_iterations():
    x, w = W(3, 16, 8), W(8, 8)
    low = lowered(mapped, (x, w), (P("a"), P()), P("a"))
    assert not is_spread(low)
    is_right(mapped, low, (x, w))


@pytest.mark.parametrize(("spec", "spreads"), [(P("a"), False), (P(), False), (P("b"), True)])
def test_what_the_user_asks_for_inside_is_kept(spec, spreads):
    def constrained(x, w):
        def one(row):
            return jnp.tanh(lax.with_sharding_constraint(row @ w, spec))

        return lax.map(one, x)

    x, w = W(8, 16, 8), W(8, 8)
    low = lowered(constrained, (x, w), (P("a"), P()), P("a"))
    assert is_spread(low) == spreads
    is_right(mapped, low, (x, w))


def test_plain_propagation_has_it_too():
    fun, args, specs, outs, sends = PROGRAMS["experts"]
    assert sent(lowered(fun, args, specs, outs, sweeps=0)) == sends


# ------------------------------------------------------------------------------------------------ generated
DTYPES = ["float32", "float64", "bfloat16", "float16", "int32", "complex64"]


@st.composite
def drawn(draw):
    sizes = draw(st.sampled_from([(4, 2), (2, 3), (2, 1), (3, 2)]))
    count = draw(st.sampled_from([2, 4, 5, 6, 7, 8, 11, 12]))
    dim = draw(st.integers(0, 2))
    shape = [draw(st.integers(1, 5)) for _ in range(3)]
    shape[dim] = count
    axes = draw(st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a")]))
    spec = [None] * 3
    spec[dim] = axes
    reverse, kind = draw(st.booleans()), draw(st.sampled_from(["sum", "stack", "both"]))
    dtype = draw(st.sampled_from(DTYPES))
    return [("a", sizes[0]), ("b", sizes[1])], shape, dim, P(*spec), reverse, kind, dtype


@share.examples(40)
@given(drawn())
def test_generated_loops(case):
    mesh, shape, dim, spec, reverse, kind, dtype = case

    def fun(x):
        n = shape[dim]
        x = x * 2

        def body(i, carry):
            at = n - 1 - i if reverse else i
            row = lax.dynamic_slice_in_dim(x, at, 1, dim)
            total, out = carry
            if kind != "stack":
                total = total + row
            if kind != "sum":
                out = lax.dynamic_update_slice_in_dim(out, row * 2 + jnp.asarray(i, x.dtype), at, dim)
            return total, out

        zeros = jnp.zeros_like(lax.slice_in_dim(x, 0, 1, axis=dim))
        return lax.fori_loop(0, n, body, (zeros + 1, jnp.zeros_like(x)))

    with jax.enable_x64(dtype == "float64"):
        x = RNG.integers(-4, 5, shape).astype(jnp.dtype(dtype))
        low = lowered(fun, (x,), spec, (P(), spec), mesh=mesh)
        is_right(fun, low, (x,), exact=True)
