"""What XLA is told beside the program, and that programs compute the same whatever it is told."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import compat_executables, ir, xla_options, xla_threads
from spmd_compiler.ir.verify import verify
from spmd_compiler.passes.optimizations import xla_kernels, xla_schedules
from spmd_compiler.xla_options import BY_RESULTS, LEVEL, MODULES, NEWER, SCHEDULER
from tests.variants import lowered as variant

MESH = spmd.create_mesh({"a": 8})
GRID = spmd.create_mesh({"a": 4, "b": 2})
X = np.linspace(-2, 2, 64 * 64, dtype=np.float32).reshape(64, 64)
ROWS = P("a")


def lowered(fun, *args, specs=ROWS, out=None, mesh=MESH):
    return spmd.spmd_jit(fun, mesh=mesh, in_layouts=specs, out_layouts=out).lower(*args)


def told(program, platform="cpu"):
    groups = xla_options.xla_options(program.stages["optimize"], platform, jax.devices())
    return {name: value for group in groups for name, value in group.items()}


def newer(program):
    """Whether it is compiled with the newer emitter."""
    options = told(program)
    assert (MODULES in options) != options[NEWER]
    return options[NEWER]


def mlp(x, w):
    return jnp.maximum(x @ w, 0) @ w.T


def layers(x, w, depth=12):
    for _ in range(depth):
        x = x + jnp.maximum(x @ w, 0)
    return x


def test_products_suit_the_older_emitter():
    options = told(lowered(mlp, X, X, specs=(P("a"), P())))
    assert options[NEWER] is False
    assert options[LEVEL] == 1
    assert options[MODULES] >= 2


def test_equal_kernels_are_compiled_once_by_the_newer_one():
    assert newer(lowered(layers, X, X, specs=(P("a"), P())))
    loop = lowered(
        lambda x, w: jax.lax.fori_loop(0, 12, lambda _, h: h + h @ w, x), X, X, specs=(P("a"), P())
    )
    assert not newer(loop)


def test_slices_of_an_all_to_all_are_equal_kernels():
    moved = lowered(lambda x: x * 2, X, specs=P("a"), out=P(None, "a"))
    assert [c.kind for c in moved.collectives()] == ["all_to_all"]
    assert newer(moved)
    pair = spmd.create_mesh({"a": 2}, devices=jax.devices()[:2])
    assert not newer(lowered(lambda x: x * 2, X, specs=P("a"), out=P(None, "a"), mesh=pair))


def test_slow_ops_weigh_against_products():
    many, few = (jax.ShapeDtypeStruct((8, n), np.float32) for n in (1 << 19, 1 << 10))
    assert newer(lowered(lambda x: jnp.tanh(x).sum(1), many))
    assert not newer(lowered(lambda x: jnp.tanh(x).sum(1), few))
    wide = jax.ShapeDtypeStruct((1 << 13, 512), np.float32)
    weights = jax.ShapeDtypeStruct((512, 512), np.float32)
    assert not newer(lowered(lambda x, w: jnp.tanh(x @ w), wide, weights, specs=(P("a"), P())))


def test_elementwise_ops_weigh_against_products():
    weights = jax.ShapeDtypeStruct((64, 64), np.float32)

    def product(x, w):
        return jnp.maximum(x @ w, 0) * 2 + 1

    for rows, expected in ((1 << 18, True), (1 << 10, False)):
        x = jax.ShapeDtypeStruct((rows, 64), np.float32)
        program = lowered(product, x, weights, specs=(P("a"), P()))
        assert newer(program) is expected
        assert told(program)[LEVEL] == 1


def test_few_kernels_are_optimized():
    few = lowered(
        lambda x, w: x.reshape(32, 2, 64).transpose(1, 0, 2).reshape(64, 64) @ w, X, X, specs=(P(), P())
    )
    assert told(few)[LEVEL] == 2


def test_hardly_any_products_suit_the_older_emitter():
    """Such programs are few kernels, which write over nothing."""
    many = jax.ShapeDtypeStruct((8, 1 << 21), np.float32)
    program = lowered(lambda x: (x * x).sum(1), many)
    assert not newer(program)
    assert told(program)[LEVEL] == 2


def test_random_bits_are_optimized_more():
    def noisy(x, key):
        return (x + jax.random.uniform(key, x.shape)).sum(1)

    for size, level in ((1 << 18, 3), (1 << 8, 2)):
        x = jax.ShapeDtypeStruct((8, size), np.float32)
        program = lowered(noisy, x, jax.random.key(0), specs=(P("a"), P()))
        assert told(program)[LEVEL] == level


def test_a_single_kernel_shares_no_module():
    turned = lowered(lambda x: x * 2 + 1, X, specs=P(("a", "b")), out=P(("b", "a")), mesh=GRID)
    assert [c.kind for c in turned.collectives()] == ["collective_permute"]
    assert newer(turned)


def test_only_cpus_are_told():
    program = lowered(mlp, X, X, specs=(P("a"), P()))
    assert all(told(program, platform) == {} for platform in ("tpu", "cuda", None))


def test_flags_of_the_user_stay(monkeypatch):
    program = lowered(mlp, X, X, specs=(P("a"), P()))
    monkeypatch.setenv("XLA_FLAGS", f"--xla_dump_to=/nowhere --{LEVEL}=3")
    assert told(program).keys() <= {SCHEDULER, xla_threads.DISABLED}


@pytest.mark.parametrize("options", [None, {LEVEL: 0}, {LEVEL: 3}], ids=str)
def test_results_are_the_same(options):
    compiled = lowered(mlp, X, X, specs=(P("a"), P())).compile(options)
    np.testing.assert_allclose(compiled(X, X), np.maximum(X @ X, 0) @ X.T, rtol=1e-4, atol=1e-3)


def watched(monkeypatch):
    """The options that XLA is given, one call after another."""
    seen, compile_with = [], compat_executables._compiler.get_compile_options

    def watch(*args, env_options_overrides=None, **more):
        seen.append(env_options_overrides)
        return compile_with(*args, env_options_overrides=env_options_overrides, **more)

    assert compat_executables.is_known()
    monkeypatch.setattr(compat_executables._compiler, "get_compile_options", watch)
    return seen


def test_options_of_the_user_come_first(monkeypatch):
    seen = watched(monkeypatch)
    lowered(mlp, X, X, specs=(P("a"), P())).compile({LEVEL: 1})
    assert seen[-1][LEVEL] == 1


def test_unknown_options_of_the_user_are_errors():
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_thing"):
        lowered(mlp, X, X, specs=(P("a"), P())).compile({"xla_no_such_thing": 1})


def test_what_xla_lacks_it_does_without(monkeypatch):
    monkeypatch.setattr(compat_executables, "_unknown", set())
    wishes = [{LEVEL: 2, "xla_no_such_wish": True}, {SCHEDULER: BY_RESULTS}]
    monkeypatch.setattr("spmd_compiler.partitioned.xla_options", lambda *_: wishes)
    seen = watched(monkeypatch)
    compiled = lowered(mlp, X, X, specs=(P("a"), P())).compile()
    assert compat_executables._unknown == {"xla_no_such_wish"}
    assert seen[-1] == {SCHEDULER: BY_RESULTS}
    np.testing.assert_allclose(compiled(X, X), np.maximum(X @ X, 0) @ X.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("known", [True, False], ids=["direct", "jit"])
def test_both_ways_take_options(known, monkeypatch):
    monkeypatch.setattr(compat_executables, "is_known", lambda: known)
    compiled = lowered(mlp, X, X, specs=(P("a"), P())).compile({LEVEL: 1})
    np.testing.assert_allclose(compiled(X, X), np.maximum(X @ X, 0) @ X.T, rtol=1e-4, atol=1e-3)


def test_ops_that_an_emitter_lacks():
    """XLA's older one has no clamp of complex numbers."""
    x = (X + 1j * X[::-1]).astype(np.complex64)

    def clamp(x):
        return jax.lax.rev(jax.lax.clamp(np.complex64(-1), x, np.complex64(1)), [1])

    clamped = lowered(clamp, x)
    assert not newer(clamped)
    np.testing.assert_array_equal(clamped.compile()(x), jax.jit(clamp)(x))


def test_stencils_in_loops_are_optimized_more():
    def heat(x):
        return jax.lax.fori_loop(
            0, 10, lambda _, x: 0.5 * x + 0.25 * (jnp.roll(x, 1, 0) + jnp.roll(x, -1, 0)), x
        )

    def weighted(x):
        return jax.lax.fori_loop(0, 10, lambda _, x: jnp.roll(x, 1, 0) + x @ x.T[:, :128], x)

    for fun, rows, stencil in ((heat, 1 << 13, True), (heat, 1 << 8, False), (weighted, 1 << 13, False)):
        program = lowered(fun, jax.ShapeDtypeStruct((rows, 128), np.float32))
        assert told(program)[LEVEL] == (3 if stencil else 1 if fun is weighted else 2)
        assert newer(program) is stencil


@pytest.mark.parametrize(("rows", "suits"), [(1, True), (64, False)])
def test_operands_that_products_by_vectors_transpose_suit_the_newer_emitter(rows, suits):
    """As the caches of keys when a token is decoded; with many rows the product weighs."""
    q, k = np.ones((4, rows, 8, 32), np.float32), np.ones((4, 2048, 8, 32), np.float32)
    program = lowered(lambda q, k: jnp.einsum("bqhd,bkhd->bqhk", q, k), q, k, specs=(P(None, None, "a"),) * 2)
    assert newer(program) is suits


def branches(x, ws):
    return sum(jnp.sort(x @ w).prod(1) for w in ws)


def temporaries(program, options):
    return program.compile(options).memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("count", (8, 128))
def test_what_is_scattered_and_looked_up_in_loops_suits_the_newer_emitter(count):
    places = np.arange(count, dtype=np.int32)
    rows = np.ones((count, 64), np.float32)
    scattered = lowered(lambda x, i, rows: x.at[i].add(rows), X, places, rows, specs=(ROWS, P(), P()))
    looked_up = lowered(
        lambda x, i: jax.lax.fori_loop(0, 2, lambda _, i: x[:, 0].astype(int)[i], i),
        X,
        places[: count // 2],
        specs=P(),
    )
    for program in (scattered, looked_up):
        assert newer(program) == (count > xla_options.PLACES)
        assert told(program)[LEVEL] == (3 if newer(program) else 2)


@pytest.mark.parametrize("loop", [False, True], ids=["once", "loop"])
def test_branches_run_one_behind_the_other_for_memory(loop):
    x, ws = jax.ShapeDtypeStruct((1024, 128), np.float32), [np.ones((128, 512), np.float32)] * 6

    def repeated(x, ws):
        return jax.lax.fori_loop(0, 3, lambda _, x: x + branches(x, ws)[:, None], x)

    program = lowered(repeated if loop else branches, x, ws, specs=(P("a"), P()))
    assert told(program)[SCHEDULER] == BY_RESULTS
    other = temporaries(program, {SCHEDULER: "CPU_SCHEDULER_TYPE_CONCURRENCY_OPTIMIZED"})
    assert temporaries(program, None) < 0.5 * other


def test_where_one_waits_for_the_other_there_is_one_order():
    x, w = (jax.ShapeDtypeStruct((n, 128), np.float32) for n in (1024, 128))
    program = lowered(layers, x, w, specs=(P("a"), P()))
    assert SCHEDULER not in told(program)
    assert temporaries(program, None) == temporaries(program, {SCHEDULER: BY_RESULTS})


@pytest.mark.parametrize("name", ["lm_2d_train_scan", "conv_spatial_train", "grad_accum_fsdp_train"])
@pytest.mark.parametrize("order", [xla_schedules._at_once, xla_schedules._by_results])
def test_orders_keep_what_depends_on_what(name, order):
    module = variant(name).stages["optimize"]
    ordered = ir.parse(str(module))
    xla_schedules._sort(xla_schedules._ordered(xla_schedules._kernels_in(ordered.main.body), order))
    verify(ordered)
    before, after = (Counter(op.name for op in m.walk()) for m in (module, ordered))
    assert before == after


def test_many_kernels_run_by_results():
    """A transformer's training step, unrolled: a twelfth less memory, though by estimate it would be a little more."""
    assert SCHEDULER in told(variant("lm_2d_train_unrolled"))


@pytest.mark.parametrize(
    ("name", "by_results"),
    [
        ("mlp_deep_megatron", True),  # activations are computed again for the gradients of weights
        ("matmul_2d_2d", True),  # a gather along columns is copied
        ("dp_sgd", True),
        ("fsdp_mlp_train", False),  # the gradients of all weights are there when they are scattered
        ("block_2d_fwd_unrolled", False),
        ("embed_xent_train~7", False),  # what the labels pick waits for the gradients, with which XLA sums it
    ],
)
def test_the_order_that_takes_less_memory_is_chosen(name, by_results):
    assert (SCHEDULER in told(variant(name, abstract=False))) is by_results


def test_what_is_computed_again_stays_within_bounds():
    """Each sum reads the one before twice: on all paths there are 2 ** 60."""

    def doubled(x):
        for _ in range(60):
            x = x + x * 0.5
        return x

    block = lowered(doubled, X).stages["optimize"].main.body
    assert len(xla_kernels.as_computed(block).ops) < 20 * len(block.ops)


TOGETHER = """mesh {a=2, b=2}
func @main(%x: f32[4] {-}, %y: f32[4] {-}) -> (f32[4] {-}, f32[4] {-}) {
  %0: f32[4], %1: f32[4] = all_reduce(%x, %y) axes=["a"] kind="sum"
  %2: f32[4] = SECOND
  %3: f32[4] {-} = all_reduce(%2) axes=["AXIS"] kind="sum"
  %4: f32[4] {-} = negate(%1)
  return %3, %4
}
"""


@pytest.mark.parametrize(
    ("second", "axis", "operands"),
    [
        ("negate(%0)", "a", [1, 1, 1]),  # what is negated may go with the second one
        ("add(%0, %1)", "a", [2, 1]),
        ("negate(%x)", "a", [2, 1]),
        ("negate(%0)", "b", [2, 1]),
    ],
)
def test_of_what_is_reduced_together_some_may_go_with_a_later_one(second, axis, operands):
    module = ir.parse(TOGETHER.replace("SECOND", second).replace("AXIS", axis))
    computed = module.with_body(xla_kernels.as_computed(module.main.body))
    verify(computed)
    assert [len(op.operands) for op in computed.walk() if op.name == "all_reduce"] == operands
