"""JAX's `custom_partitioning` functions: their rule says where they may be cut, their callback what a device runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.errors import LayoutError, UnsupportedError
from tests.share import examples

MESH = spmd.create_mesh([("a", 4), ("b", 2)])


def f32(*shape):
    return np.random.RandomState(sum(shape)).rand(*shape).astype(np.float32)


def product(calls):
    """A product that sums over the contracted dim's axes itself; `calls`: the specs that its callback was asked about."""

    @custom_partitioning
    def product(x, w):
        return jnp.sin(x) @ w

    def partition(mesh, args, result):
        shardings = tuple(a.sharding for a in args)
        calls.append((*(s.spec for s in shardings), result.sharding.spec))
        axes = shardings[0].spec[1]

        def on_blocks(x, w):
            y = jnp.sin(x) @ w
            return jax.lax.psum(y, axes) if axes else y

        return mesh, on_blocks, result.sharding, shardings

    product.def_partition(partition, sharding_rule="b i, i o -> b o", reduction_factors=("i",))
    return product


@given(
    st.lists(st.permutations(["a", "b", None, None]), min_size=2, max_size=2),
    st.sampled_from([(8, 6, 4), (7, 5, 3)]),
)
@examples(15)
def test_any_layout(wanted, sizes):
    b, i, o = sizes
    x, w = f32(b, i), f32(i, o)
    function, calls = product(calls := []), calls
    step = spmd.spmd_jit(
        lambda x, w: function(x, w) * 2, mesh=MESH, in_layouts=tuple(P(*spec[:2]) for spec in wanted)
    )
    np.testing.assert_allclose(step(x, w), 2 * np.sin(x) @ w, rtol=1e-5)
    assert calls


def test_runs_what_the_callback_gives():
    function = product(calls := [])
    x, w = f32(8, 6), f32(6, 4)
    step = spmd.spmd_jit(function, mesh=MESH, in_layouts=(P("a", "b"), P("b")), out_layouts=P("a"))
    assert [(c.kind, c.axes) for c in step.lower(x, w).collectives()] == [("all_reduce", ("b",))]
    assert calls == [(P("a", "b"), P("b", None), P("a", None))]
    assert step.lower(x, w).stablehlo().count("all_reduce") == 1
    np.testing.assert_allclose(step(x, w), np.sin(x) @ w, rtol=1e-5)


def rows(rule=None, **options):
    """Cumulative sums of rows, on whole rows, whatever the callback is asked."""

    @custom_partitioning
    def rows(x):
        return jnp.cumsum(x, 1)

    def partition(mesh, args, result):
        spec = P(args[0].sharding.spec[0], None)
        sharding = NamedSharding(mesh, spec)
        return mesh, lambda x: jnp.cumsum(x, 1), sharding, (sharding,)

    rows.def_partition(partition, sharding_rule=rule, **options)
    return rows


@pytest.mark.parametrize("rule", ["b i -> b i", "b i -> b j", None])
def test_callbacks_may_want_other_shardings(rule):
    """Values are relaid to what the callback asks for, also where the rule said more, less or nothing."""
    function = rows(rule)
    x = f32(8, 6)
    for layout in (P("a", "b"), P("b", "a"), P(None, "a"), P(("a", "b"))):
        step = spmd.spmd_jit(lambda x: function(x) + 1, mesh=MESH, in_layouts=layout, out_layouts=layout)
        np.testing.assert_allclose(step(x), np.cumsum(x, 1) + 1, rtol=1e-5)


def refusing(least):
    """Sums of rows that refuses whatever is sharded, or by `least` of 1 everything."""

    @custom_partitioning
    def sums(x, y):
        return x.sum(1) + y

    def partition(mesh, args, result):
        if sum(a is not None for x in args for a in x.sharding.spec) >= least:
            raise ValueError("rows must be whole")
        return mesh, lambda x, y: x.sum(1) + y, result.sharding, tuple(a.sharding for a in args)

    sums.def_partition(partition, sharding_rule="b i, b -> b")
    return sums


@pytest.mark.parametrize("layout", [P("a"), P("a", "b"), P(None, "b")])
def test_callbacks_that_refuse_get_whole_values(layout):
    x, y = f32(8, 6), f32(8)
    step = spmd.spmd_jit(refusing(1), mesh=MESH, in_layouts=(layout, P("a")), out_layouts=P("a"))
    np.testing.assert_allclose(step(x, y), x.sum(1) + y, rtol=1e-5)
    why = "fallback: sums runs replicated, its partition callback refuses other layouts: rows must be whole"
    assert why in step.lower(x, y).explain()


def test_callbacks_that_refuse_everything():
    step = spmd.spmd_jit(refusing(0), mesh=MESH, in_layouts=P("a"))
    with pytest.raises(LayoutError, match="partition callback of sums fails: rows must be whole"):
        step.lower(f32(8, 6), f32(8))


def test_static_arguments_and_rules_made_from_shapes():
    def shift(x, by):
        return jnp.roll(x, by, 1)

    shift = custom_partitioning(shift, static_argnums=(1,))

    def partition(by, mesh, args, result):
        return mesh, lambda x: jnp.roll(x, by, 1), result.sharding, (args[0].sharding,)

    def rule(by, mesh, ins, outs):
        assert by == 2
        return "b i -> b i", {"need_replication_factors": ("i",)}

    shift.def_partition(partition, sharding_rule=rule)
    x = f32(8, 6)
    step = spmd.spmd_jit(lambda x: shift(x, 2), mesh=MESH, in_layouts=P("a", "b"), out_layouts=P("a"))
    assert [c.kind for c in step.lower(x).collectives()] == ["all_gather"]
    np.testing.assert_allclose(step(x), np.roll(x, 2, 1))


def test_within_other_transformations():
    """Several calls, in a loop, in a branch, on trees, and in a manual region, where it is the plain function."""
    function = product([])

    def fun(x, w):
        y = jax.lax.fori_loop(0, 3, lambda i, y: function(y, w), x)
        y = jax.lax.cond(y.sum() > 0, lambda y: function(y, w), lambda y: y, y)
        inside = jax.shard_map(function, mesh=MESH.to_jax(), in_specs=(P("a"), P()), out_specs=P("a"))
        return y + inside(x, w)

    x, w = f32(8, 6), f32(6, 6)
    step = spmd.spmd_jit(fun, mesh=MESH, in_layouts=(P("a", "b"), P("b")))
    np.testing.assert_allclose(step(x, w), jax.jit(fun)(x, w), rtol=1e-4)


def test_abstract_mesh():
    mesh = spmd.create_mesh({"a": 128, "b": 16}, abstract=True)
    function = product(calls := [])
    step = spmd.spmd_jit(function, mesh=mesh, in_layouts=(P("a", "b"), P("b")), out_layouts=P("a"))
    lowered = step.lower(f32(256, 32), f32(32, 4))
    assert "tensor<2x2xf32>" in lowered.stablehlo() and len(calls) == 1


def test_from_stablehlo():
    """Programs that JAX lowered in this process: the callback is found by its number."""
    function = product(calls := [])
    x, w = f32(8, 6), f32(6, 4)
    mesh = MESH.to_jax()
    shardings = NamedSharding(mesh, P("a", "b")), NamedSharding(mesh, P("b"))
    lowered = jax.jit(function, in_shardings=shardings).lower(x, w)
    program = spmd.from_stablehlo(lowered.as_text())
    assert calls == [(P("a", "b"), P("b", None), P("a", None))]
    np.testing.assert_allclose(program.compile()(x, w)[0], np.sin(x) @ w, rtol=1e-5)


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64])
def test_wide_numbers_from_stablehlo(dtype):
    """Though JAX is set to 32 bits here."""

    @custom_partitioning
    def thrice(x):
        return x * 3

    def partition(mesh, args, result):
        return mesh, lambda x: x * 3, result.sharding, tuple(a.sharding for a in args)

    thrice.def_partition(partition, sharding_rule="i -> i")
    x = np.arange(8, dtype=dtype) + 2**40
    with jax.enable_x64(True):
        sharded = NamedSharding(MESH.to_jax(), P("a"))
        text = jax.jit(thrice, in_shardings=sharded).lower(jax.ShapeDtypeStruct((8,), dtype)).as_text()
    (found,) = spmd.from_stablehlo(text).compile()(x)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, x * dtype(3))


def test_programs_of_another_process():
    """Their callbacks are out of reach: they can be looked at, but not run."""
    text = """module {
      sdy.mesh @mesh = <["a"=4, "b"=2]>
      func.func @main(%x: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>}) -> tensor<8x6xf32> {
        %0 = stablehlo.custom_call @CustomSPMDPartitioning(%x) {backend_config = "12345", sdy.sharding_rule =
          #sdy.op_sharding_rule<([i, j])->([i, j]) {i=8, j=6}, custom>} : (tensor<8x6xf32>) -> tensor<8x6xf32>
        return %0 : tensor<8x6xf32>
      }
    }"""
    lowered = spmd.from_stablehlo(text)
    assert "tensor<2x3xf32>" in lowered.stablehlo()
    with pytest.raises(UnsupportedError, match="only the process that made the program has"):
        lowered.compile()


def test_callbacks_that_contradict_themselves():
    @custom_partitioning
    def twice(x):
        return x * 2

    twice.def_partition(
        lambda mesh, args, result: (
            mesh,
            lambda x: jnp.concatenate([x, x]),
            result.sharding,
            (args[0].sharding,),
        ),
        sharding_rule="b -> b",
    )
    with pytest.raises(
        LayoutError, match=r"partition callback of twice gave a function that makes \(f32\[4\]\)"
    ):
        spmd.spmd_jit(twice, mesh=MESH, in_layouts=P("a")).lower(f32(8))
