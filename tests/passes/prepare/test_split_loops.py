"""Loops that hand a state on: what doesn't need it is made ahead of them, or behind them, by all devices together."""

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

from spmd_compiler.ir.trips import trip_count
from spmd_compiler.passes.spread_loops import SpreadLoops
from tests import share
from tests.passes.test_spread_loops import RNG, W, is_right, is_spread, lowered, sent, trips


# ------------------------------------------------------------------------------------------------ programs
def linear_attention(q, k, v):
    """By chunks, with a state that decays; n x chunk x width."""
    mask = jnp.tril(jnp.ones((q.shape[1], q.shape[1])))

    def chunk(state, qkv):
        q, k, v = qkv
        return 0.9 * state + k.T @ v, ((q @ k.T) * mask) @ v + q @ state

    return lax.scan(chunk, jnp.zeros((q.shape[-1], v.shape[-1])), (q, k, v))[1]


def linear_attention_train(q, k, v):
    return jax.grad(lambda *x: (linear_attention(*x) ** 2).sum(), (0, 1, 2))(q, k, v)


def linear_attention_last(q, k, v):
    """Also the state that is left, and backwards."""

    def chunk(state, qkv):
        q, k, v = qkv
        return state + k.T @ v, jnp.tanh(q @ state)

    return lax.scan(chunk, jnp.ones((q.shape[-1], v.shape[-1])), (q, k, v), reverse=True)


def advantages(rewards, values, done):
    def step(last, rvd):
        r, v, d = rvd
        last = r - v * (1 - d) + 0.95 * (1 - d) * last
        return last, jnp.tanh(last) + r

    return lax.scan(step, jnp.zeros_like(values[0]), (rewards, values, done), reverse=True)[1]


def last_row(x, w):
    """The state is what was made of the slice before."""

    def step(last, row):
        made = jnp.tanh(row @ w) @ w.T
        return made[:, :1], row + last

    return lax.scan(step, jnp.zeros((x.shape[1], 1)), x)[1]


def sums_behind(x, w):
    """A weight's gradient is added up by a product of the state, the slice, and the number of the iteration."""

    def step(i, carry):
        state, total, out = carry
        state = 0.5 * state + x[i][:, :2]
        return state, total + x[i].T @ (state * (i + 1)), out.at[i].set(x[i] @ w)

    return lax.fori_loop(
        0, len(x), step, (jnp.zeros_like(x[0][:, :2]), jnp.zeros((x.shape[2], 2)), jnp.zeros_like(x))
    )


Q, K, V = (W(8, 16, 6) for _ in range(3))
LONG = W(8, 4, 48), W(8, 4, 48), W(8, 4, 48)
X, SQUARE = W(8, 64, 12), W(12, 12)
PROGRAMS = {
    "linear_attention": (linear_attention, (Q, K, V), (P("a"),) * 3, P("a"), 2),
    "linear_attention_train": (linear_attention_train, (Q, K, V), (P("a"),) * 3, P("a"), 3),
    "linear_attention_last": (linear_attention_last, (Q, K, V), (P("a"),) * 3, (P(), P("a")), 2),
    "linear_attention_two_axes": (linear_attention, (Q, K, V), (P(("a", "b")),) * 3, P(("a", "b")), 2),
    "advantages": (advantages, LONG, (P("a"),) * 3, P("a"), 2),
    "last_row": (last_row, (X, SQUARE), (P("a"), P()), P("a"), 2),
    "sums_behind": (sums_behind, (X, SQUARE), (P("a"), P()), (P(), P(), P("a")), 1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_needs_no_state_is_shared(name):
    """`shared`: loops that devices run a part of the iterations of."""
    fun, args, specs, outs, shared = PROGRAMS[name]
    low = lowered(fun, args, specs, outs)
    assert is_spread(low)
    assert len([t for t in trips(low) if t < len(args[0])]) >= shared
    gathered = 0.75 * sum(x.nbytes for x, spec in zip(args, specs, strict=True) if spec != P())
    assert sum(sent(low).values()) < gathered / 2
    is_right(fun, low, args)


def test_states_are_exchanged_instead_of_keys_and_values():
    low = lowered(linear_attention, (W(8, 64, 32),) * 3, (P("a"),) * 3, P("a"))
    states = 2 * 32 * 32 * 4  # bytes of those of a device's own two chunks
    assert sent(low) == {"all_to_all": 2 * states * 3 / 4}  # there and back


@pytest.mark.parametrize("fun", [lambda h, x: (h + x, h + x), lambda h, x: (jnp.tanh(h @ x.T @ x), h)])
def test_where_everything_needs_the_state_it_stays_one_loop(fun):
    def scanned(x):
        return lax.scan(fun, jnp.zeros_like(x[0]), x)[1]

    x = W(8, 4, 4)
    low = lowered(scanned, (x,), P("a"), P("a"))
    whiles = [op for op in low.stages["propagate"].main.body.walk() if op.name == "while"]
    assert [trip_count(op) for op in whiles] == [8]
    is_right(scanned, low, (x,))


def test_a_state_may_lie_where_the_user_asks():
    def attention(lies):
        def fun(q, k, v):
            def chunk(state, qkv):
                q, k, v = qkv
                state = lies(state + k.T @ v)
                return state, q @ state

            return lax.scan(chunk, jnp.zeros((q.shape[-1], v.shape[-1])), (q, k, v))[1]

        return fun

    args = W(8, 64, 32), W(8, 64, 32), W(8, 64, 32)
    asked = attention(lambda x: lax.with_sharding_constraint(x, P()))
    low = lowered(asked, args, (P("a"),) * 3, P("a"))
    states = 2 * 32 * 32 * 4  # bytes of those of a device's own two chunks
    assert sent(low) == {"all_gather": 3 * states}
    is_right(attention(lambda x: x), low, args)


def test_what_is_changed_in_place_stays_one_loop():
    def updated(x, w):
        def step(i, carry):
            state, x = carry
            state = 0.5 * state + jnp.tanh(x[i] @ w @ w.T)
            return state, x.at[i].add(state)

        return lax.fori_loop(0, len(x), step, (jnp.zeros_like(x[0]), x))[1]

    def read_again(x, w):
        def step(i, carry):
            state, out = carry
            out = out.at[i].set(jnp.tanh(x[i] @ w @ w.T) + state)
            return 0.5 * state + out.mean(0), out

        return lax.fori_loop(0, len(x), step, (jnp.zeros_like(x[0]), jnp.zeros_like(x)))

    for fun, outs in ((updated, P("a")), (read_again, (P(), P("a")))):
        low = lowered(fun, (X, SQUARE), (P("a"), P()), outs)
        assert 8 in trips(low)
        is_right(fun, low, (X, SQUARE))


# ------------------------------------------------------------------------------------------------ generated
EARLY = [lambda x, i: x, lambda x, i: x * 2, lambda x, i: x @ x.T @ x, lambda x, i: x + i.astype(x.dtype)]
CORE = [lambda h, e: h + e, lambda h, e: e - h, lambda h, e: jnp.maximum(h, e), lambda h, e: e]
LATE = [
    lambda h, x, i: h,
    lambda h, x, i: h @ x.T @ x,
    lambda h, x, i: x * h + i.astype(x.dtype),
    lambda h, x, i: x * 3,
]


@st.composite
def drawn(draw):
    mesh = [("a", draw(st.sampled_from([2, 3, 4]))), ("b", draw(st.sampled_from([1, 2])))]
    shape = draw(st.sampled_from([4, 5, 6, 8, 12])), draw(st.integers(1, 5)), draw(st.integers(1, 5))
    spec = P(draw(st.sampled_from(["a", "b", ("a", "b")])))
    picks = [draw(st.integers(0, 3)) for _ in range(6)]
    dtype = draw(st.sampled_from(["float32", "float64", "int32"]))
    return mesh, shape, spec, picks, draw(st.booleans()), draw(st.booleans()), dtype


@share.examples(60)
@given(drawn())
def test_generated_loops(case):
    mesh, shape, spec, picks, reverse, sums, dtype = case
    early, early2, core, late, late2, added = (
        fs[k] for fs, k in zip((EARLY, EARLY, CORE, LATE, LATE, LATE), picks, strict=True)
    )

    def fun(x):
        n = len(x)

        def body(i, carry):
            state, total, out, other = carry
            at = n - 1 - i if reverse else i
            row = x[at]
            new = jnp.clip(core(state, early(row, i)), -8, 8)
            made = late(new, early2(row, i), i)
            if sums:
                total = total + added(state, row, i).sum(0)
            return new, total, out.at[at].set(made), other.at[at].set(late2(state, row, i))

        zeros = jnp.zeros_like(x)
        return lax.fori_loop(0, n, body, (x[0] * 0 + 1, zeros[0, 0], zeros, zeros))

    with jax.enable_x64(dtype == "float64"):
        x = RNG.integers(-2, 3, shape).astype(jnp.dtype(dtype))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(SpreadLoops, "_is_better", lambda *_: True)  # so small a loop hardly pays
            low = lowered(fun, (x,), spec, (P(), P(), spec, spec), mesh=mesh)
        is_right(fun, low, (x,), exact=True)
