"""Modules that other projects write for their partitioners: whatever is in them, the numbers are the plain program's."""

import io
import subprocess
import sys

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import spmd_compiler as spmd
from spmd_compiler.errors import LayoutError, MeshError, ParseError, SpmdError, UnsupportedError
from spmd_compiler.ir.context import parse_stablehlo

RNG = np.random.default_rng(0)
T = "tensor<8x8xf32>"


def run(text, *args):
    lowered = spmd.from_stablehlo(text)
    return lowered, lowered.compile()(*args)


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def main(body, *, top='sdy.mesh @mesh = <["a"=4, "b"=2]>', x="", y="", out=""):
    return f"""module {{
      {top}
      func.func @main(%x: {T} {{{x}}}, %y: {T} {{{y}}}) -> ({T} {{{out}}}) {{
        {body}
      }}
    }}"""


def test_meshes_that_nothing_names_and_functions_that_nobody_calls():
    text = f"""module {{
      sdy.mesh @huge = <["a"=64, "b"=64]>
      sdy.mesh @mesh = <["a"=4, "b"=2]>
      sdy.mesh @one = <[], device_ids=[3]>
      sdy.mesh @empty = <[]>
      func.func @main(%x: {T} {{sdy.sharding = #sdy.sharding<@mesh, [{{"a"}}, {{}}]>}}) -> {T} {{
        %0 = stablehlo.add %x, %x {{sdy.sharding = #sdy.sharding_per_value<[<@one, []>]>}} : {T}
        %1 = sdy.sharding_constraint %0 <@empty, [{{}}, {{}}]> : {T}
        return %1 : {T}
      }}
      func.func private @other(%x: {T} {{sdy.sharding = #sdy.sharding<@huge, [{{"a"}}, {{}}]>}}) -> {T} {{
        %0 = sdy.sharding_constraint %x <@huge, [{{"b"}}, {{}}]> : {T}
        return %0 : {T}
      }}
    }}"""
    x = numbers(8, 8)
    lowered, (got,) = run(text, x)
    np.testing.assert_allclose(got, 2 * x)
    assert lowered.in_layouts[0].mesh.size == 8


def test_of_meshes_of_several_sizes_the_largest_counts_and_the_others_are_reported():
    text = main(
        """%0 = stablehlo.add %x, %y : tensor<8x8xf32>
        %1 = sdy.sharding_constraint %0 <@small, [{}, {"a"}]> : tensor<8x8xf32>
        return %1 : tensor<8x8xf32>""",
        top='sdy.mesh @small = <["a"=2]> sdy.mesh @mesh = <["a"=4, "b"=2]>',
        x='sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {"a"}]>',
    )
    x, y = numbers(8, 8), numbers(8, 8)
    lowered, (got,) = run(text, x, y)
    np.testing.assert_allclose(got, x + y)
    assert "{a=2}" in lowered.explain()
    with pytest.raises(MeshError, match="different numbers of devices: 2 and 8, not 4"):
        spmd.from_stablehlo(text, mesh=spmd.create_mesh({"x": 4}, abstract=True))


def test_a_manual_computation_decides_the_mesh():
    text = """module {
      sdy.mesh @big = <["a"=8]>
      sdy.mesh @small = <["a"=2]>
      func.func @main(%x: tensor<8xf32> {sdy.sharding = #sdy.sharding<@big, [{"a"}]>}) -> tensor<8xf32> {
        %0 = sdy.manual_computation(%x) in_shardings=[<@small, [{"a"}]>] out_shardings=[<@small, [{"a"}]>]
            manual_axes={"a"} (%u: tensor<4xf32>) {
          %1 = stablehlo.negate %u : tensor<4xf32>
          sdy.return %1 : tensor<4xf32>
        } : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>
      }
    }"""
    x = numbers(8)
    lowered, (got,) = run(text, x)
    np.testing.assert_allclose(got, -x)
    assert lowered.in_layouts[0].mesh.size == 2


def test_two_manual_computations_over_different_devices_are_an_error():
    region = """%{0} = sdy.manual_computation(%x) in_shardings=[<@{1}, [{{"a"}}, {{}}]>]
            out_shardings=[<@{1}, [{{"a"}}, {{}}]>] manual_axes={{"a"}} (%u: {2}) {{
          sdy.return %u : {2}
        }} : (tensor<8x8xf32>) -> tensor<8x8xf32>"""
    text = main(
        region.format("0", "mesh", "tensor<2x8xf32>")
        + region.format("1", "small", "tensor<4x8xf32>")
        + "return %0 : tensor<8x8xf32>",
        top='sdy.mesh @small = <["a"=2]> sdy.mesh @mesh = <["a"=4]>',
    )
    with pytest.raises(LayoutError, match="let all manual computations share one mesh"):
        spmd.from_stablehlo(text)


def test_axis_names_that_look_alike_once_they_are_printable():
    text = main(
        """%0 = sdy.sharding_constraint %x <@mesh, [{"a b"}, {"a-b"}]> : tensor<8x8xf32>
        return %0 : tensor<8x8xf32>""",
        top='sdy.mesh @mesh = <["a b"=4, "a-b"=2]>',
    )
    x = numbers(8, 8)
    lowered, (got,) = run(text, x, x)
    np.testing.assert_array_equal(got, x)
    assert lowered.out_layouts[0].ir.dims == (("a_b",), ("a_b_",))


def test_tokens_stay_inside():
    text = """module {
      func.func @main(%t: !stablehlo.token, %x: tensor<8xf32>) -> (!stablehlo.token, tensor<8xf32>) {
        %0 = stablehlo.after_all %t, %t : !stablehlo.token
        %1 = stablehlo.negate %x : tensor<8xf32>
        return %0, %1 : !stablehlo.token, tensor<8xf32>
      }
    }"""
    x = numbers(8)
    _, (got,) = run(text, x)
    np.testing.assert_array_equal(got, -x)


def test_data_flow_edges_constants_and_notes_of_propagation():
    text = main(
        """%0 = sdy.constant dense<2.0> : tensor<8x8xf32>
        %1 = sdy.data_flow_edge %x sharding=<@mesh, [{"a"}, {"b"}]> : tensor<8x8xf32>
        %2 = stablehlo.multiply %0, %1 {sdy.propagation_edges = #sdy.propagation_edges<[
            {step-0 = [{"a" = operand-1 -> [result-0]}]}]>,
            sdy.sharding = #sdy.sharding_per_value<[<@mesh, [{"a"}, {}]>]>} : tensor<8x8xf32>
        return %2 : tensor<8x8xf32>"""
    )
    x = numbers(8, 8)
    lowered, (got,) = run(text, x, x)
    np.testing.assert_array_equal(got, 2 * x)
    assert "sdy.prop" not in lowered.stablehlo()


def test_terms_of_a_sum_stay_inside():
    text = main(
        f"return %x : {T}",
        x='sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {}], unreduced={"a"}>',
        out='sdy.sharding = #sdy.sharding<@mesh, [{}, {"b"}], unreduced={"a"}>',
    )
    x = numbers(8, 8)
    lowered, (got,) = run(text, x, x)
    np.testing.assert_array_equal(got, x)
    assert lowered.in_layouts[0].ir.dims == (("b",), ())
    assert "argument 0: no array holds terms of a sum" in lowered.explain()


def test_sub_axes_that_are_no_pieces_of_one_another():
    text = main(
        """%0 = sdy.sharding_constraint %x <@mesh, [{"a":(1)2}, {}]> : tensor<8x8xf32>
        %1 = sdy.sharding_constraint %0 <@mesh, [{"a":(1)3}, {}]> : tensor<8x8xf32>
        %2 = stablehlo.add %0, %1 : tensor<8x8xf32>
        return %2 : tensor<8x8xf32>""",
        top='sdy.mesh @mesh = <["a"=6]>',
    )
    x = numbers(8, 8)
    lowered, (got,) = run(text, x, x)
    np.testing.assert_array_equal(got, 2 * x)
    assert "{a:(1)3,-}" in lowered.explain()


def test_an_open_dim_keeps_what_the_other_dims_leave_of_an_axis():
    text = main(
        """%0 = sdy.sharding_constraint %x <@mesh, [{}, {"a"}]> : tensor<8x8xf32>
        %1 = sdy.sharding_constraint %0 <@mesh, [{"a":(1)2}, {?}]> : tensor<8x8xf32>
        return %1 : tensor<8x8xf32>"""
    )
    x = numbers(8, 8)
    lowered, (got,) = run(text, x, x)
    np.testing.assert_array_equal(got, x)
    assert lowered.out_layouts[0].ir.dims[0] == ("a:(1)2",)


def test_an_op_whose_region_uses_an_argument_stays_out_of_the_manual_region_behind_it():
    sharded, manual = 'mhlo.sharding = "{devices=[4,2]<=[8]}"', 'mhlo.sharding = "{manual}"'
    text = f"""module {{
      func.func @main(%x: {T}) -> ({T}, {T}) {{
        %c = stablehlo.constant dense<0> : tensor<i32>
        %0 = "stablehlo.case"(%c) ({{
          %n = stablehlo.negate %x : {T}
          stablehlo.return %n : {T}
        }}) : (tensor<i32>) -> {T}
        %1 = stablehlo.custom_call @Sharding(%0) {{{sharded}}} : ({T}) -> {T}
        %2 = stablehlo.custom_call @SPMDFullToShardShape(%1) {{{manual}}} : ({T}) -> tensor<2x4xf32>
        %3 = stablehlo.add %2, %2 : tensor<2x4xf32>
        %4 = stablehlo.custom_call @SPMDShardToFullShape(%3) {{{sharded}}} : (tensor<2x4xf32>) -> {T}
        return %4, %0 : {T}, {T}
      }}
    }}"""
    x = numbers(8, 8)
    _, (twice, once) = run(text, x)
    np.testing.assert_array_equal(twice, -2 * x)
    np.testing.assert_array_equal(once, -x)


@pytest.mark.parametrize(
    ("sharding", "message"),
    [
        ("{devices=[0]<=[0]}", "no tiles"),
        ("{devices=[8,1]0,0,1,2,3,4,5,6}", "each once"),
        ("{devices=[8,1]1,2,3,4,5,6,7,8}", "each once"),
        ("{devices=[8]<=[8] last_tile_dims={manual,manual}}", "no tiles"),
        ("{devices=[4,2]<=[2,4]T(0,0)}", "do not fill"),
        ("{devices=[2,2,2]<=[8] last_tile_dims={odd}}", "odd"),
        ("{{replicated}", "expected"),
        ("{devices=", "expected"),
        ("", "expected"),
    ],
)
def test_malformed_strings_are_errors(sharding, message):
    text = main(f"return %x : {T}", x=f'mhlo.sharding = "{sharding}"')
    with pytest.raises(SpmdError, match=message):
        spmd.from_stablehlo(text)


def test_mhlo_shardings_over_named_axes():
    text = f"""module attributes {{mhlo.num_partitions = 8 : i64}} {{
      func.func @main(%x: {T} {{mhlo.sharding = "{{mesh['a'=4,'b'=2], [{{'b'}}, {{'a'}}]}}"}}) -> {T} {{
        %0 = stablehlo.custom_call @Sharding(%x) {{mhlo.sharding = "{{mesh[a=4,b=2], [{{a}}]}}"}} : ({T}) -> {T}
        %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {{mhlo.sharding = "{{mesh[a=4,b=2], [], manual={{a,b}}}}"}}
            : ({T}) -> tensor<2x8xf32>
        %2 = stablehlo.negate %1 : tensor<2x8xf32>
        %3 = stablehlo.custom_call @SPMDShardToFullShape(%2) {{mhlo.sharding = "{{mesh[a=4,b=2], [{{a}}, {{}}]}}"}}
            : (tensor<2x8xf32>) -> {T}
        return %3 : {T}
      }}
    }}"""
    x = numbers(8, 8)
    lowered, (got,) = run(text, x)
    np.testing.assert_array_equal(got, -x)
    assert lowered.in_layouts[0].ir.dims == (("b",), ("a",))


def test_a_manual_value_must_leave_its_region():
    text = f"""module {{
      func.func @main(%x: {T}) -> tensor<1x8xf32> {{
        %0 = stablehlo.custom_call @Sharding(%x) {{mhlo.sharding = "{{devices=[8,1]<=[8]}}"}} : ({T}) -> {T}
        %1 = stablehlo.custom_call @SPMDFullToShardShape(%0) {{mhlo.sharding = "{{manual}}"}} : ({T}) -> tensor<1x8xf32>
        return %1 : tensor<1x8xf32>
      }}
    }}"""
    with pytest.raises(LayoutError, match="it leaves by @SPMDShardToFullShape"):
        spmd.from_stablehlo(text)


REDUCE = """module {{
  func.func @main(%x: tensor<8x8xf32>, %y: tensor<f32>) -> tensor<8xf32> {{
    %c = stablehlo.constant dense<2.0> : tensor<f32>
    %0 = stablehlo.reduce(%x init: %c) across dimensions = [0] : (tensor<8x8xf32>, tensor<f32>) -> tensor<8xf32>
      reducer(%a: tensor<f32>, %b: tensor<f32>) {{
      %1 = stablehlo.add %a, %b : tensor<f32>
      %2 = stablehlo.minimum %1, {} : tensor<f32>
      stablehlo.return %2 : tensor<f32>
    }}
    return %0 : tensor<8xf32>
  }}
}}"""


def test_reducers_may_use_constants_of_the_code_around_them():
    x = np.abs(numbers(8, 8)) + 1
    _, (got,) = run(REDUCE.format("%c"), x, np.float32(0))
    np.testing.assert_array_equal(got, np.full(8, 2, np.float32))
    with pytest.raises(UnsupportedError, match="the region uses a value of the program around it"):
        spmd.from_stablehlo(REDUCE.format("%y"))


def test_functions_that_call_themselves_are_refused():
    text = """module {
      func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
        %0 = call @again(%x) : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>
      }
      func.func private @again(%x: tensor<8xf32>) -> tensor<8xf32> {
        %0 = call @again(%x) : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>
      }
    }"""
    with pytest.raises(UnsupportedError, match="@again calls itself"):
        spmd.from_stablehlo(text)


def test_numbers_of_64_bits_stay_so_though_jax_is_set_to_32():
    text = """module {
      sdy.mesh @mesh = <["a"=4, "b"=2]>
      func.func @main(%x: tensor<8xf64> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}]>}, %i: tensor<8xi64>)
          -> (tensor<f64>, tensor<8xi64>) {
        %c = stablehlo.constant dense<0.0> : tensor<f64>
        %s = stablehlo.reduce(%x init: %c) applies stablehlo.add across dimensions = [0]
            : (tensor<8xf64>, tensor<f64>) -> tensor<f64>
        %j = stablehlo.add %i, %i : tensor<8xi64>
        return %s, %j : tensor<f64>, tensor<8xi64>
      }
    }"""
    x, i = 1 + 1e-12 * np.arange(8.0), np.arange(8) + (1 << 40)
    _, (total, doubled) = run(text, x, i)
    assert total.dtype == np.float64 and abs(float(total) - x.sum()) < 1e-14
    np.testing.assert_array_equal(doubled, 2 * i)


def test_bytecode_and_portable_artifacts():
    mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(4, 2), ("a", "b"))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("a", "b"))
    x = numbers(8, 8)
    exported = jax.export.export(jax.jit(lambda x: x @ x, in_shardings=sharding))(x)
    lowered, (got,) = run(exported.mlir_module_serialized, x)
    np.testing.assert_allclose(got, x @ x, rtol=1e-4, atol=1e-4)
    assert lowered.in_layouts[0].ir.dims in ((("a",), ("b",)), (("d0",), ("d1",)))
    stream = io.BytesIO()
    parse_stablehlo(main(f"return %x : {T}")).operation.write_bytecode(stream)
    np.testing.assert_array_equal(run(stream.getvalue(), x, x)[1][0], x)
    with pytest.raises(ParseError):
        spmd.from_stablehlo(b"neither")


def test_linear_algebra_of_a_module_from_elsewhere_finds_lapack():
    text = jax.export.export(jax.jit(jnp.linalg.cholesky))(np.eye(4, dtype=np.float32)).mlir_module()
    code = (
        "import sys, numpy as np, spmd_compiler as spmd\n"
        "x = np.eye(4, dtype=np.float32) * 4\n"
        "print(np.trace(spmd.from_stablehlo(sys.stdin.read()).compile()(x)[0]))"
    )
    # In a process that never lowered a decomposition itself.
    done = subprocess.run(
        [sys.executable, "-c", code], input=text, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "8.0", done.stderr


def test_the_place_of_a_mistake_within_a_string():
    text = (
        "module {\n  func.func @main(%x: tensor<8xf32> {mhlo.frontend_attributes = {\n"
        r'    xla.sdy.sharding = "#sdy.sharding<@mesh, [{\22a\22]>"}}) -> tensor<8xf32> {'
        "\n    return %x : tensor<8xf32>\n  }\n}"
    )
    with pytest.raises(ParseError, match=r"line 3, column 55: .*expected ','") as error:
        spmd.from_stablehlo(text)
    assert text.splitlines()[2][54] == "]"
    assert (error.value.line, error.value.column) == (3, 55)
