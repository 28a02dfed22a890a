"""What a loop keeps for a later one is computed again there, where cheap ops make it of what else is kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.passes.optimizations import residuals
from spmd_compiler.tools.fuzz.check import on_devices
from tests.share import examples

LAYERS, WIDTH, ROWS = 3, 64, 4096
KEPT = LAYERS, ROWS // 4, WIDTH  # what a device holds of a stack


def lowered(fun, w, x, **options):
    mesh = spmd.create_mesh([("data", 4)], abstract=True)
    step = spmd.spmd_jit(fun, mesh=mesh, in_layouts=(P(), P("data")), options=spmd.Options(**options))
    return step.lower(w, x)


def shapes(layers=LAYERS, width=WIDTH, rows=ROWS, dtype=np.float32):
    return jax.ShapeDtypeStruct((layers, width, width), dtype), jax.ShapeDtypeStruct((rows, width), dtype)


def stacks(low):
    """The shapes of what the loops of a program stack."""
    loops = [op for op in low.stages["optimize"].main.body.walk() if op.name == "while"]
    made = {v: op.name for loop in loops for op in loop.regions[1].ops for v in op.results}
    kept = [(v, r) for loop in loops for v, r in zip(loop.results, loop.regions[1].returns, strict=True)]
    return sorted(v.type.shape for v, r in kept if made.get(r) == "dynamic_update_slice")


def is_right(fun, dtype=np.float32, rows=8, layers=LAYERS, width=4, tolerance=1e-4):
    rng = np.random.default_rng(0)
    args = [rng.normal(0, 0.4, s.shape).astype(dtype) for s in shapes(layers, width, rows)]
    low = lowered(fun, *args)
    found = on_devices(low.stages, args)
    for got, want in zip(found, jax.tree.leaves(jax.jit(fun)(*args)), strict=True):
        got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    return low


def gradients(body, **options):
    def loss(w, x):
        out, rows = lax.scan(body, x, w, **options)
        return sum((y**2).sum() for y in jax.tree.leaves((out, rows)))

    return jax.grad(loss, (0, 1))


def gelu(x, w):
    return x + jax.nn.gelu(x @ w), None


@pytest.fixture
def always(monkeypatch):
    """What is small is computed again too."""
    monkeypatch.setattr(residuals, "OP", 0)


def test_of_what_follows_from_another_one_is_kept(always):
    """x, and of gelu its argument and a tanh: JAX keeps four more values."""
    assert stacks(lowered(gradients(gelu), *shapes())).count(KEPT) == 3
    is_right(gradients(gelu))


def rational(x, w):
    y = jnp.sin(x @ w)
    return y * 2 * (y - 1) / (y + 3), None


def test_what_nobody_kept_is_kept_where_more_follows_from_it(always):
    """y, from which all follows but x and the cosine; JAX keeps five values that follow from it instead."""
    assert stacks(lowered(gradients(rational), *shapes())).count(KEPT) == 3
    is_right(gradients(rational))


@pytest.mark.parametrize("body", [gelu, rational])
@pytest.mark.parametrize("options", [{"reverse": True}, {"unroll": 3}, {"unroll": 2}], ids=str)
def test_in_loops_that_run_otherwise(body, options, always):
    is_right(gradients(body, **options), layers=6)


@pytest.mark.parametrize("dtype, tolerance", [("bfloat16", 0.1), ("float16", 0.01), ("float64", 1e-6)])
def test_in_other_types(dtype, tolerance, always):
    with jax.enable_x64(dtype == "float64"):
        is_right(gradients(rational), jnp.dtype(dtype), tolerance=tolerance)


def test_what_the_user_wants_too_stays(always):
    """The argument of the tanh is a result: it is kept anyway, and what follows from it is not."""

    def body(x, w):
        y = x @ w
        return x + jnp.where(y > 0, y * y, 0.5 * y), y

    def fun(w, x):
        (_, rows), back = jax.vjp(lambda w, x: lax.scan(body, x, w), w, x)
        return rows, back((x, rows))

    is_right(fun)
    assert stacks(lowered(fun, *shapes())).count(KEPT) == 2


def test_a_row_may_be_what_a_loop_carries_on(always):
    """The second loop carries a row as it is, and reads the other one in the next iteration."""

    def fun(w, x):
        def follow(last, rows):
            return rows[1], last * rows[0]

        _, made = lax.scan(lambda x, w: (x @ w, (x, 2 * x + 1)), x, w)
        return lax.scan(follow, x, made)

    is_right(fun)
    assert stacks(lowered(fun, *shapes())).count(KEPT) == 2


def test_nested_loops(always):
    """Layers in microbatches: the loops over layers are inside of one over these."""

    def fun(w, x):
        def add(total, rows):
            return jax.tree.map(jnp.add, total, gradients(gelu)(w, rows)[0]), None

        return lax.scan(add, jnp.zeros_like(w), x.reshape(2, -1, x.shape[1]))[0]

    is_right(fun, rows=16)


def test_a_checkpoint_is_honoured():
    """What the user has computed again is no more than before."""
    low = lowered(gradients(jax.checkpoint(gelu)), *shapes())
    assert stacks(low).count(KEPT) == 1


def test_rows_that_a_loop_does_not_write_are_not_computed():
    """Of six rows three are written; the others are zeros, and not 1 more than zeros."""

    def fun(w, x):
        def fill(i, rows):
            y = x @ w[i]
            return rows[0].at[i].set(y), rows[1].at[i].set(y + 1)

        def read(i, total):
            return total + filled[0][i] * filled[1][i]

        filled = lax.fori_loop(0, 3, fill, (jnp.zeros((6, *x.shape)),) * 2)
        return lax.fori_loop(0, 6, read, jnp.zeros_like(x))

    is_right(fun)


def test_what_only_the_user_reads_is_read_twice(always):
    """The loop stacks y for the user, and again for the second loop."""

    def fun(w, x):
        def body(x, w):
            y = jnp.tanh(x @ w)
            return y, (y, y)

        _, (wanted, rows) = lax.scan(body, x, w)
        return wanted, lax.scan(lambda total, y: (total + y, None), jnp.zeros_like(x), rows)[0]

    is_right(fun)
    assert stacks(lowered(fun, *shapes())).count(KEPT) == 1


UNARY = {"tanh": jnp.tanh, "square": jnp.square, "neg": jnp.negative, "abs": jnp.abs, "sin": jnp.sin}
BINARY = {"add": jnp.add, "mul": jnp.multiply, "max": jnp.maximum, "sub": jnp.subtract}
step = st.tuples(st.sampled_from([*UNARY, *BINARY]), st.integers(0, 20), st.integers(0, 20))


@examples(8)
@given(st.lists(step, min_size=2, max_size=9), st.booleans(), st.sampled_from([5, 8, 12]))
def test_any_chain(steps, reverse, rows):
    """Of ops with and without gradients that need their operands, on rows that 4 devices share evenly or not."""

    def body(x, w):
        made = [x, x @ w, x.mean(-1, keepdims=True) + jnp.zeros_like(x)]
        for name, a, b in steps:
            a, b = made[a % len(made)], made[b % len(made)]
            made.append(UNARY[name](a) if name in UNARY else BINARY[name](a, b))
        return jnp.tanh(made[-1] + made[-2]), made[-2]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(residuals, "OP", 0)
        is_right(gradients(body, reverse=reverse), rows=rows, tolerance=1e-3)
