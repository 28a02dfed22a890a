"""Shardy's annotations as frontend attributes and custom calls, the form in which modules pass through HLO."""

import numpy as np
import pytest

import spmd_compiler as spmd
from spmd_compiler.errors import LayoutError

RNG = np.random.default_rng(0)
MESHES = r"""{mesh = #sdy.mesh<[\22a\22=4, \22b\22=2]>, other = \22#sdy.mesh<[\\22c\\22=8]>\22}"""
ALL_REDUCE = """"stablehlo.all_reduce"(%1) <{replica_groups = dense<[[0, 1], [2, 3], [4, 5], [6, 7]]> : tensor<4x2xi64>,
        channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids}> ({
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      %s = stablehlo.add %p, %q : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<2x4xf32>) -> tensor<2x4xf32>"""


def sharding(text):
    return f'mhlo.frontend_attributes = {{kept = "1", xla.sdy.sharding = "{quoted(text)}"}}'


def quoted(text):
    return text.replace('"', r"\22")


def per_value(*texts):
    return f"#sdy.sharding_per_value<[{', '.join(texts)}]>"


def module(main, more=""):
    return f"""module attributes {{mhlo.frontend_attributes = {{xla.sdy.meshes = "{MESHES}"}}}} {{
      {main}
      {more}
    }}"""


def numbers(*shape):
    return RNG.standard_normal(shape).astype(np.float32)


def test_shardings_of_arguments_results_and_ops():
    text = module(f"""
    func.func @main(%x: tensor<8x4xf32> {{{sharding('#sdy.sharding<@mesh, [{"a"}, {}]>')}}}) -> tensor<8x4xf32> {{
      %0 = stablehlo.add %x, %x {{{sharding(per_value('<@mesh, [{"a"}, {"b"}]>'))}}} : tensor<8x4xf32>
      %1 = stablehlo.custom_call @xla.sdy.PropagationBarrier(%0) : (tensor<8x4xf32>) -> tensor<8x4xf32>
      stablehlo.custom_call @xla.sdy.ShardingGroup(%1) {{has_side_effect = true}} : (tensor<8x4xf32>) -> ()
      %2 = stablehlo.custom_call @Sharding(%1) {{{sharding(per_value('<@other, [{"c"}, {}]>'))}}}
          : (tensor<8x4xf32>) -> tensor<8x4xf32>
      %3 = stablehlo.tanh %2 : tensor<8x4xf32>
      %4 = stablehlo.custom_call @xla.sdy.FuncResultSharding(%3) {{{sharding(per_value('<@mesh, [{"b"}, {}]>'))}}}
          : (tensor<8x4xf32>) -> tensor<8x4xf32>
      return %4 : tensor<8x4xf32>
    }}""")
    lowered = spmd.from_stablehlo(text)
    assert [x.ir.dims for x in (*lowered.in_layouts, *lowered.out_layouts)] == [(("a",), ()), (("b",), ())]
    relaid = [op for op in lowered.stages["propagate"].main.body.ops if op.name == "relayout"]
    assert "{a.b,-}" in [repr(op.result.layout) for op in relaid]  # @other counts the same devices
    x = numbers(8, 4)
    np.testing.assert_allclose(lowered.compile()(x)[0], np.tanh(2 * x), rtol=1e-6)
    assert 'kept = "1"' in lowered.as_text("import") and "xla.sdy" not in lowered.stablehlo()


ENTER = r"""stablehlo.custom_call @local_xla.sdy.GlobalToLocalShape(%x, %y) {mhlo.frontend_attributes = {
        xla.sdy.in_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}, {\22b\22}]>, <@mesh, [{\22b\22}, {}]>]>",
        xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22, \22b\22}>"}}
        : (tensor<8x16xf32>, tensor<16x4xf32>) -> (tensor<2x8xf32>, tensor<8x4xf32>)"""
LEAVE = r"""stablehlo.custom_call @xla.sdy.LocalToGlobalShape(%1) {mhlo.frontend_attributes = {
        xla.sdy.out_shardings = "#sdy.sharding_per_value<[<@mesh, [{\22a\22}, {}], replicated={\22b\22}>]>",
        xla.sdy.manual_axes = "#sdy<manual_axes{\22a\22, \22b\22}>"}} : (tensor<2x4xf32>) -> tensor<8x4xf32>"""
BODY = f"""func.func private @f.xla.sdy.manual_computation_body_3(%u: tensor<2x8xf32>, %v: tensor<8x4xf32>)
        -> tensor<2x4xf32> {{
      %1 = stablehlo.dot_general %u, %v, contracting_dims = [1] x [0]
          : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>
      %2 = {ALL_REDUCE}
      return %2 : tensor<2x4xf32>
    }}"""
CALL = "call @f.xla.sdy.manual_computation_body_3({}) : (tensor<2x8xf32>, tensor<8x4xf32>) -> tensor<2x4xf32>"


def test_manual_computations_are_calls_between_two_custom_calls():
    text = module(
        f"""func.func @main(%x: tensor<8x16xf32>, %y: tensor<16x4xf32>) -> tensor<8x4xf32> {{
          %0:2 = {ENTER}
          %1 = {CALL.format("%0#0, %0#1")}
          %2 = {LEAVE}
          return %2 : tensor<8x4xf32>
        }}""",
        BODY,
    )
    x, y = numbers(8, 16), numbers(16, 4)
    (got,) = spmd.from_stablehlo(text).compile()(x, y)
    np.testing.assert_allclose(got, x @ y, rtol=1e-4, atol=1e-5)


def test_a_body_that_is_not_entered_is_an_error():
    text = module(
        f"""func.func @main(%x: tensor<2x8xf32>, %y: tensor<8x4xf32>) -> tensor<8x4xf32> {{
          %1 = {CALL.format("%x, %y")}
          %2 = {LEAVE}
          return %2 : tensor<8x4xf32>
        }}""",
        BODY,
    )
    with pytest.raises(LayoutError, match="manual_computation_body_3 don't all enter"):
        spmd.from_stablehlo(text)


def test_shardings_of_a_program_that_takes_one_tuple():
    mesh = quoted('mesh<["a"=4, "b"=2]>')
    text = f"""module attributes {{mhlo.frontend_attributes = {{
        xla.sdy.tuple_args_shardings = "#sdy.sharding_per_value<[<{mesh}, [{{{quoted('"a"')}}}]>, <{mesh}, [{{?}}]>]>",
        xla.sdy.tuple_results_shardings = "#sdy.sharding_per_value<[<{mesh}, [{{{quoted('"b"')}}}]>]>"}}}} {{
      func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {{
        %0 = stablehlo.add %x, %y : tensor<8xf32>
        return %0 : tensor<8xf32>
      }}
    }}"""
    lowered = spmd.from_stablehlo(text)
    assert lowered.in_layouts[0].ir.dims == (("a",),)
    assert lowered.out_layouts[0].ir.dims == (("b",),)
    with pytest.raises(LayoutError, match="2 shardings for 1 values of @main"):
        spmd.from_stablehlo(text.replace(", %y: tensor<8xf32>", "").replace("%x, %y", "%x, %x"))
