"""StableHLO with Shardy's or XLA's annotations in, a partitioned program out, same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.errors import ArgumentError, LayoutError, MeshError, ParseError

RNG = np.random.default_rng(0)


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


@pytest.fixture(scope="module")
def mesh():
    return Mesh(np.array(jax.devices()).reshape(2, 2, 2), ("a", "b", "c"), axis_types=(AxisType.Auto,) * 3)


@pytest.fixture(params=["shardy", "gspmd"], autouse=True)
def partitioner(request):
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", request.param == "shardy")
    yield request.param
    jax.config.update("jax_use_shardy_partitioner", before)


def check(jitted, *args, **options):
    """Compiles what JAX lowers, runs it, and compares with one device."""
    text = jitted.lower(*args).as_text()
    lowered = spmd.from_stablehlo(text, **options)
    got = lowered.compile()(*jax.tree.leaves(args))
    want = jax.tree.leaves(jitted(*args))
    assert len(got) == len(want)
    for x, y in zip(got, want, strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=1e-5)
    return lowered


def layouts(lowered):
    return [x.ir.dims for x in (*lowered.in_layouts, *lowered.out_layouts)]


def test_shardings_of_arguments_and_results(mesh, partitioner):
    def n(*spec):
        return NamedSharding(mesh, P(*spec))

    f = jax.jit(
        lambda x, y: (x @ y, (x * 2).sum()),
        in_shardings=(n(("c", "a"), None), n(None, "b")),
        out_shardings=(n("a", "b"), None),
    )
    lowered = check(f, numbers(8, 16), numbers(16, 4))
    a, b, c = ("a", "b", "c") if partitioner == "shardy" else ("d0", "d1", "d2")
    assert layouts(lowered)[:3] == [((c, a), ()), ((), (b,)), ((a,), (b,))]


def test_what_is_not_annotated_the_compiler_chooses(mesh):
    f = jax.jit(lambda x, y: jnp.tanh(x) + y, in_shardings=(NamedSharding(mesh, P("a")), None))
    lowered = check(f, numbers(8, 4), numbers(8, 4))
    x, y, out = layouts(lowered)
    assert x == y == out
    assert lowered.collectives() == []


def test_constraints_and_open_dims(mesh):
    def f(x, y):
        z = lax.with_sharding_constraint(x @ y, NamedSharding(mesh, P(("a", "b"), None)))
        z = jnp.sin(z)
        return lax.with_sharding_constraint(z, NamedSharding(mesh, P(P.UNCONSTRAINED, "c")))

    lowered = check(jax.jit(f), numbers(8, 16), numbers(16, 8))
    (out,) = lowered.out_layouts
    assert [out.mesh.axes_size(axes) for axes in out.ir.dims] == [4, 2]  # the open dim stays as it came


def test_shard_map_runs_as_written(mesh):
    def f(x):
        def body(u):
            return lax.psum(u, "a") * (lax.axis_index("b") + 1)

        y = jax.shard_map(body, mesh=mesh, in_specs=P("a", "b"), out_specs=P(None, "b"))(x * 2)
        return y + 1

    check(jax.jit(f), numbers(8, 6))


def test_shard_map_over_some_axes(mesh):
    def f(x):
        g = jax.shard_map(
            lambda u: lax.psum(u, "a"), mesh=mesh, in_specs=P("a"), out_specs=P(), axis_names={"a"}
        )
        return g(x)

    check(jax.jit(f, in_shardings=NamedSharding(mesh, P("a", "b"))), numbers(8, 8))


def test_shard_map_without_arguments(mesh):
    def f(x):
        g = jax.shard_map(
            lambda: lax.axis_index("a").astype(jnp.float32).reshape(1),
            mesh=mesh,
            in_specs=(),
            out_specs=P("a"),
        )
        return x + g()

    check(jax.jit(f), numbers(2))


def test_two_shard_maps_that_share_a_function(mesh):
    relu = jax.jit(lambda u: jnp.maximum(u, 0))

    def f(x):
        first = jax.shard_map(lambda u: relu(u) + 1, mesh=mesh, in_specs=P("a"), out_specs=P("a"))(x)
        second = jax.shard_map(lambda u: lax.psum(relu(u), "b"), mesh=mesh, in_specs=P("b"), out_specs=P())
        return relu(first), second(first)

    check(jax.jit(f), numbers(8, 4))


def test_loops_and_functions(mesh):
    def f(x, w):
        def body(c, _):
            c = lax.with_sharding_constraint(jnp.tanh(c @ w), NamedSharding(mesh, P("a", None)))
            return c, c.sum()

        return lax.scan(body, x, None, length=3)

    check(jax.jit(f, in_shardings=(NamedSharding(mesh, P("a", "b")), None)), numbers(8, 8), numbers(8, 8))


def test_a_train_step(mesh):
    def loss(params, x, y):
        h = jax.nn.relu(x @ params["w1"] + params["b1"])
        return ((h @ params["w2"] - y) ** 2).mean()

    def step(params, x, y):
        value, grads = jax.value_and_grad(loss)(params, x, y)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

    def n(*spec):
        return NamedSharding(mesh, P(*spec))

    specs = {"b1": n("b"), "w1": n(None, "b"), "w2": n("b", None)}
    params = {"b1": numbers(8), "w1": numbers(4, 8), "w2": numbers(8, 2)}
    f = jax.jit(step, in_shardings=(specs, n("a"), n("a")), out_shardings=(specs, None), donate_argnums=0)
    lowered = check(f, params, numbers(16, 4), numbers(16, 2))
    assert {c.kind for c in lowered.collectives()} <= {"all_reduce", "reduce_scatter", "all_gather"}


def test_given_mesh_and_layouts(mesh):
    f = jax.jit(lambda x: (x * 2, x.sum()), in_shardings=NamedSharding(mesh, P("a")))
    mine = spmd.create_mesh([("x", 4), ("y", 2)])
    lowered = check(f, numbers(8, 8), mesh=mine)
    assert layouts(lowered)[0] == (("x:(1)2",), ())
    lowered = check(f, numbers(8, 8), in_layouts=[spmd.Layout([None, "x"], mine)])
    assert layouts(lowered)[0] == ((), ("x",))
    lowered = check(f, numbers(8, 8), mesh=mine, out_layouts=[P("y", "x"), None])
    assert layouts(lowered)[1] == (("y",), ("x",))


def test_a_mesh_larger_than_the_machine_compiles():
    text = """module {
      sdy.mesh @mesh = <["data"=512, "model"=32]>
      func.func @main(%x: tensor<1024x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {"model"}]>})
          -> tensor<1024x64xf32> {
        %0 = stablehlo.tanh %x : tensor<1024x64xf32>
        return %0 : tensor<1024x64xf32>
      }
    }"""
    lowered = spmd.from_stablehlo(text)
    assert layouts(lowered) == [(("data",), ("model",))] * 2
    assert "tensor<2x2xf32>" in lowered.stablehlo()
    with pytest.raises(MeshError, match="abstract"):
        lowered.compile()


SHARDY = """module {
  sdy.mesh @mesh = <["a"=4, "b"=2]>
  func.func @main(%arg0: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a":(1)2, "b"}, {}]>}) -> tensor<8x8xf32> {
    %0 = sdy.reshard %arg0 <@mesh, [{"b"}, {"a"}]> : tensor<8x8xf32>
    %1 = stablehlo.tanh %0 {sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"b"}, {}]>]>} : tensor<8x8xf32>
    %2 = stablehlo.dot_general %1, %0, contracting_dims = [1] x [0]
        {sdy.sharding_rule = #sdy.op_sharding_rule<([i, k], [k, j])->([i, j]) {i=8, j=8, k=8} reduction={k}>}
        : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
    sdy.sharding_group %2 group_id=0 : tensor<8x8xf32>
    %3 = sdy.named_computation<"inner">(%2) in_shardings=[<@mesh, [{}, {"a"}]>] out_shardings=[<@mesh, [{}, {}]>]
        (%arg1: tensor<8x8xf32>) {
      %9 = stablehlo.negate %arg1 : tensor<8x8xf32>
      sdy.return %9 : tensor<8x8xf32>
    } : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %4 = sdy.all_slice [{}, {"a"}] %3 out_sharding=<@mesh, [{}, {"a"}]> : tensor<8x8xf32>
    %5 = sdy.propagation_barrier %4 allowed_direction=NONE : tensor<8x8xf32>
    return %5 : tensor<8x8xf32>
  }
}"""


def test_other_ops_of_shardy():
    x = numbers(8, 8)
    lowered = spmd.from_stablehlo(SHARDY)
    assert layouts(lowered)[0] == (("a:(1)2", "b"), ())
    (got,) = lowered.compile()(x)
    np.testing.assert_allclose(got, -(np.tanh(x) @ x), rtol=1e-5, atol=1e-5)
    assert "sdy.s" not in lowered.stablehlo()  # no sharding, no constraint


def test_partial_sums_at_the_border():
    text = """module {
      sdy.mesh @mesh = <["a"=4, "b"=2]>
      func.func @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{}, {"a"}]>}) -> tensor<8x8xf32> {
        %0 = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1]
            : (tensor<8x8xf32>, tensor<8x8xf32>) -> tensor<8x8xf32>
        %1 = sdy.sharding_constraint %0 <@mesh, [{}, {}], unreduced={"a"}> : tensor<8x8xf32>
        %2 = stablehlo.add %1, %1 : tensor<8x8xf32>
        return %2 : tensor<8x8xf32>
      }
    }"""
    x = numbers(8, 8)
    (got,) = spmd.from_stablehlo(text).compile()(x)
    np.testing.assert_allclose(got, 2 * x @ x.T, rtol=1e-4, atol=1e-4)


def test_an_irregular_order_of_devices_is_right_and_reported():
    text = """module attributes {mhlo.num_partitions = 4 : i32} {
      func.func @main(%x: tensor<8x8xf32> {mhlo.sharding = "{devices=[4,1]0,1,3,2}"},
                      %y: tensor<8x8xf32> {mhlo.sharding = "{devices=[2,2]<=[4]}"}) -> tensor<8x8xf32> {
        %0 = stablehlo.add %x, %y : tensor<8x8xf32>
        return %0 : tensor<8x8xf32>
      }
    }"""
    x, y = numbers(8, 8), numbers(8, 8)
    lowered = spmd.from_stablehlo(text)
    np.testing.assert_allclose(lowered.compile()(x, y)[0], x + y, rtol=1e-6)
    assert layouts(lowered)[0] == ((), ())
    assert "0,1,3,2" in lowered.explain()


def test_a_module_without_annotations_runs_on_one_device():
    text = jax.jit(lambda x: x + 1).lower(numbers(4)).as_text()
    lowered = spmd.from_stablehlo(text)
    np.testing.assert_allclose(lowered.compile()(np.zeros(4, np.float32))[0], np.ones(4))


def test_malformed_text_names_line_and_column():
    with pytest.raises(ParseError) as error:
        spmd.from_stablehlo("module {\n  func.func @main() {\n    stablehlo.nope\n  }\n}")
    assert (error.value.line, error.value.column) == (3, 5)
    text = SHARDY.replace(
        'sdy.sharding = #sdy.sharding<@mesh, [{"a":(1)2, "b"}, {}]>', 'mhlo.sharding = "{devices=[8,1]}"'
    )
    with pytest.raises(ParseError) as error:
        spmd.from_stablehlo(text)
    assert error.value.line == 3
    assert "{devices=[8,1]}" in str(error.value)


def test_bad_annotations_and_arguments():
    def main(annotation, shape="8x8"):
        return f"""module {{
          sdy.mesh @mesh = <["a"=4, "b"=2]>
          func.func @main(%x: tensor<{shape}xf32> {{{annotation}}}) -> tensor<{shape}xf32> {{
            return %x : tensor<{shape}xf32>
          }}
        }}"""

    with pytest.raises(MeshError, match="for 4 devices"):
        spmd.from_stablehlo(main('mhlo.sharding = "{devices=[4,1]<=[4]}"'))
    good = main('sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>')
    with pytest.raises(MeshError, match="different numbers of devices"):
        spmd.from_stablehlo(good, mesh=spmd.create_mesh({"x": 4}, abstract=True))
    with pytest.raises(ArgumentError, match="in_layouts has 2 layouts, but @main has 1"):
        spmd.from_stablehlo(good, in_layouts=[None, None])
    with pytest.raises(LayoutError, match=r"in_layouts\[0\]"):
        spmd.from_stablehlo(good, in_layouts=[P("q")])
    with pytest.raises(ArgumentError, match="takes 1 argument, not 2"):
        spmd.from_stablehlo(good).compile()(1, 2)


def test_a_region_over_pieces_of_axes_is_reported():
    """It runs as written: the same on the devices that share its part."""
    part = '"{devices=[2,1,4]<=[8] last_tile_dim_replicate}"'
    inside = '"{devices=[1,1,2,4]<=[8] last_tile_dims={manual, replicated}}"'
    text = f"""module attributes {{mhlo.num_partitions = 8 : i32}} {{
      func.func @main(%x: tensor<8x8xf32>) -> tensor<8x8xf32> {{
        %0 = stablehlo.custom_call @Sharding(%x) {{mhlo.sharding = {part}}} : (tensor<8x8xf32>) -> tensor<8x8xf32>
        %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {{mhlo.sharding = {inside}}}
          : (tensor<8x8xf32>) -> tensor<4x8xf32>
        %2 = stablehlo.negate %1 : tensor<4x8xf32>
        %3 = stablehlo.custom_call @Sharding(%2) {{mhlo.sharding = {inside}}} : (tensor<4x8xf32>) -> tensor<4x8xf32>
        %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {{mhlo.sharding = {part}}}
          : (tensor<4x8xf32>) -> tensor<8x8xf32>
        return %4 : tensor<8x8xf32>
      }}
    }}"""
    x = np.arange(64, dtype=np.float32).reshape(8, 8)
    lowered = spmd.from_stablehlo(text, mesh=spmd.create_mesh({"a": 4, "b": 2}))
    assert "fallback: manual_computation runs replicated, each part on 4 devices" in lowered.explain()
    np.testing.assert_array_equal(lowered.compile()(x)[0], -x)
    assert "fallback:" not in spmd.from_stablehlo(text).explain()
