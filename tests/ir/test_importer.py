"""What StableHLO looks like once it is imported."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spmd_compiler.errors import ParseError, SpmdError
from spmd_compiler.ir.exporter import export_text
from spmd_compiler.ir.graph import Dense, Module, Op, Raw
from spmd_compiler.ir.importer import import_module
from spmd_compiler.ir.locations import argument_name, parse_location
from spmd_compiler.ir.mesh import Mesh
from spmd_compiler.ir.types import DTYPES, TOKEN, TensorType, mlir_dtype, numpy_dtype

MESH = Mesh([("x", 2)])


def lower(f, *args, **options) -> Module:
    return import_module(jax.jit(f, **options).lower(*args).compiler_ir(), MESH)


def only(module: Module, name: str) -> Op:
    found = [op for op in module.walk() if op.name == name]
    assert len(found) == 1, f"{len(found)} {name} in\n{export_text(module)}"
    return found[0]


def ones(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_names_types_and_structure():
    module = lower(lambda x, y: jnp.sin(x) @ y, ones(2, 3), ones(3, 4))
    body = module.main.body
    assert [op.name for op in body.ops] == ["sine", "dot_general"]
    assert [a.type for a in body.args] == [TensorType((2, 3), "f32"), TensorType((3, 4), "f32")]
    assert [a.name for a in body.args] == ["x", "y"]
    assert body.ops[1].operands == [body.ops[0].result, body.args[1]]
    assert body.returns == [body.ops[1].result]
    assert module.mesh is MESH


def test_dot_general():
    op = only(
        lower(lambda x, y: jnp.einsum("bij,bkj->bik", x, y), ones(5, 2, 3), ones(5, 4, 3)), "dot_general"
    )
    assert op.attrs["contract"] == ((2,), (2,))
    assert op.attrs["batch"] == ((0,), (0,))
    assert op.attrs["precision_config"] == ("DEFAULT", "DEFAULT")


def test_gather_and_scatter():
    def take(x, i):
        return jax.lax.gather(
            x,
            i,
            jax.lax.GatherDimensionNumbers(offset_dims=(1,), collapsed_slice_dims=(0,), start_index_map=(0,)),
            (1, 4),
        )

    def add(x, i, u):
        return x.at[i].add(u)

    gather = only(lower(take, ones(8, 4), ones(3, 1, dtype=jnp.int32)), "gather")
    assert gather.attrs["offset_dims"] == (1,)
    assert gather.attrs["collapsed_slice_dims"] == (0,)
    assert gather.attrs["start_index_map"] == (0,)
    assert gather.attrs["index_vector_dim"] == 1
    assert gather.attrs["slice_sizes"] == (1, 4)
    scatter = only(lower(add, ones(8, 4), ones(3, dtype=jnp.int32), ones(3, 4)), "scatter")
    assert scatter.attrs["update_window_dims"] == (1,)
    assert scatter.attrs["inserted_window_dims"] == (0,)
    assert scatter.attrs["scatter_dims_to_operand_dims"] == (0,)
    assert scatter.attrs["unique_indices"] is False
    assert [op.name for op in scatter.regions[0].ops] == ["add"]


def test_convolution():
    op = only(
        lower(
            lambda x, k: jax.lax.conv_general_dilated(
                x, k, (2, 1), [(1, 2), (0, 3)], dimension_numbers=("NHWC", "HWIO", "NHWC")
            ),
            ones(1, 8, 9, 3),
            ones(3, 3, 3, 5),
        ),
        "convolution",
    )
    assert op.attrs["input_batch_dimension"] == 0
    assert op.attrs["input_feature_dimension"] == 3
    assert op.attrs["input_spatial_dimensions"] == (1, 2)
    assert op.attrs["kernel_input_feature_dimension"] == 2
    assert op.attrs["kernel_output_feature_dimension"] == 3
    assert op.attrs["output_spatial_dimensions"] == (1, 2)
    assert op.attrs["padding"] == ((1, 2), (0, 3))
    assert op.attrs["window_strides"] == (2, 1)
    assert op.attrs["feature_group_count"] == 1


def test_enums_and_booleans():
    module = lower(lambda x: (x < 2, jnp.fft.fft(x.astype(jnp.complex64))), ones(4))
    compare = only(module, "compare")
    assert (compare.attrs["comparison_direction"], compare.attrs["compare_type"]) == ("LT", "FLOAT")
    fft = only(module, "fft")
    assert fft.attrs["fft_type"] == "FFT"
    assert fft.attrs["fft_length"] == (4,)
    sort = only(lower(lambda x: jax.lax.sort(x, dimension=0), ones(4, 4)), "sort")
    assert sort.attrs == {"dimension": 0, "is_stable": True}


def test_calls_regions_and_captures():
    def f(x, n):
        return jax.lax.fori_loop(0, n, lambda i, y: jnp.where(y > 0, y, x), x)

    module = lower(f, ones(3), jax.ShapeDtypeStruct((), jnp.int32))
    loop = only(module, "while")
    condition, body = loop.regions
    assert [v.type for v in body.args] == [v.type for v in loop.operands] == [r.type for r in loop.results]
    assert len(condition.returns) == 1
    assert condition.returns[0].type == TensorType((), "i1")
    calls = [op for op in module.walk() if op.name == "call"]
    assert calls and all(op.attrs["callee"] in module.functions for op in calls)


def test_custom_calls():
    def f(x):
        return jax.ffi.ffi_call("foo", x, has_side_effect=True)(x, depth=np.int32(3))

    op = only(lower(f, ones(2, 2)), "custom_call")
    assert op.attrs["call_target_name"] == "foo"
    assert op.attrs["has_side_effect"] is True
    assert isinstance(op.attrs["api_version"], int)
    assert "depth = 3 : i32" in next(v.text for v in op.attrs.values() if isinstance(v, Raw))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (200,), (0, 3)])
def test_constants(dtype, shape):
    size = int(np.prod(shape))
    data = (np.arange(size) % 2 + (dtype == "f8e8m0fnu")).astype(numpy_dtype(dtype)).reshape(shape)
    if dtype[0] == "c" and size:
        data = (data * (1 + 2j)).astype(data.dtype)
    element = mlir_dtype(dtype)
    dims = "".join(f"{d}x" for d in shape)
    # A constant that is too long is printed in hexadecimal; both forms have to be read.
    text = f"""
      func.func public @main() -> tensor<{dims}{element}> {{
        %0 = stablehlo.constant {_dense(data)} : tensor<{dims}{element}>
        return %0 : tensor<{dims}{element}>
      }}"""
    module = import_module(text, MESH)
    value = module.main.body.ops[0].attrs["value"]
    assert value.array.dtype == numpy_dtype(dtype)
    np.testing.assert_array_equal(value.broadcast(TensorType(shape, dtype)), data)
    again = import_module(export_text(module), MESH).main.body.ops[0].attrs["value"]
    assert again == value


def _dense(data: np.ndarray) -> str:
    def item(v):
        if data.dtype.kind == "c":
            return f"({v.real:e},{v.imag:e})"
        if data.dtype == bool:
            return str(bool(v)).lower()
        is_integer = data.dtype.kind in "iu" or data.dtype.name.startswith(("int", "uint"))
        return str(int(v)) if is_integer else f"{float(v):e}"

    def nested(a):
        return item(a[()]) if a.ndim == 0 else "[" + ", ".join(map(nested, a)) + "]"

    if data.size == 0:
        return "dense<>"
    return f"dense<{nested(data)}>"


@pytest.mark.parametrize("dtype", ["bf16", "f32", "f8e4m3fn"])
def test_constants_keep_nan_and_infinity(dtype):
    bits = {"bf16": "0x7FC1", "f32": "0x7FC00001", "f8e4m3fn": "0x7F"}[dtype]
    element = mlir_dtype(dtype)
    text = f"""
      func.func public @main() -> tensor<2x{element}> {{
        %0 = stablehlo.constant dense<[{bits}, -1.5]> : tensor<2x{element}>
        return %0 : tensor<2x{element}>
      }}"""
    array = import_module(text, MESH).main.body.ops[0].attrs["value"].array
    assert array.view(f"u{array.itemsize}")[0] == int(bits, 16)
    assert float(array[1]) == -1.5


def test_splats_stay_small():
    module = lower(lambda: jnp.full((1000, 1000), 7.0))
    values = [op.attrs["value"] for op in module.walk() if op.name == "constant"]
    assert all(v.array.size == 1 for v in values)
    text = """
      func.func public @main() -> tensor<1000x1000xf32> {
        %0 = stablehlo.constant dense<7.0> : tensor<1000x1000xf32>
        return %0 : tensor<1000x1000xf32>
      }"""
    assert import_module(text, MESH).main.body.ops[0].attrs["value"] == Dense(
        np.float32(7.0) * np.ones(()).astype("f4"), True
    )


def test_dense_resource():
    text = """
      module {
        func.func public @main() -> tensor<2xf32> {
          %0 = stablehlo.constant dense_resource<weights> : tensor<2xf32>
          return %0 : tensor<2xf32>
        }
      }
      {-# dialect_resources: { builtin: { weights: "0x040000000000803F00000040" } } #-}"""
    value = import_module(text, MESH).main.body.ops[0].attrs["value"]
    np.testing.assert_array_equal(value.array, np.array([1.0, 2.0], np.float32))


def test_locations_are_the_users():
    def f(x):
        return jnp.cumsum(x) * 2

    module = lower(f, ones(4))
    lines = {op.loc.line for op in module.walk() if op.name == "multiply"}
    assert lines == {f.__code__.co_firstlineno + 1}
    assert all(op.loc.file in ("", __file__) for op in module.walk())
    assert only(module, "multiply").loc.scope == "jit(f)/mul"


def test_location_text():
    site = jax.__path__[0]
    text = (
        f'loc("jit(f)/mul"(callsite("mul"("{site}/numpy/ufuncs.py":1:2) at '
        'callsite("f"("/home/me/mlp.py":42:7 to :19) at "<module>"("/home/me/run.py":3:0)))))'
    )
    loc = parse_location(text)
    assert (loc.file, loc.line, loc.column, loc.scope) == ("/home/me/mlp.py", 42, 7, "jit(f)/mul")
    assert str(loc) == "mlp.py:42"
    assert parse_location('loc("a\\22b")').scope == 'a"b'
    assert parse_location('loc("/a/b.py":1:2)') == ("/a/b.py", 1, "", 2)
    assert parse_location('loc(fused["/a/b.py":1:2, "/a/c.py":3:4])').file == "/a/b.py"
    assert argument_name("loc(\"params[0]['w']\")") == "params_0_w"
    assert argument_name('loc("jit(f)"("/a/b.py":1:2))') == ""


def test_argument_attributes():
    module = lower(lambda x, y: (x + 1, y), ones(4), ones(4), donate_argnums=0)
    assert module.main.arg_attrs[0] == {"tf.aliasing_output": 0}
    assert module.main.arg_attrs[1] == {}
    assert module.main.result_attrs[0]["jax.result_info"] == "result[0]"


def test_shardy_annotations():
    text = """
      module @sharded {
        sdy.mesh @mesh = <["a"=2, "b"=2]>
        func.func public @main(%x: tensor<8x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) -> tensor<8x8xf32> {
          %0 = sdy.sharding_constraint %x <@mesh, [{"b"}, {?}]> : tensor<8x8xf32>
          %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"a"}, {}]>] out_shardings=[<@mesh, [{"a"}, {}]>]
              manual_axes={"a", "b"} (%y: tensor<4x8xf32>) {
            %2 = stablehlo.negate %y : tensor<4x8xf32>
            sdy.return %2 : tensor<4x8xf32>
          } : (tensor<8x8xf32>) -> tensor<8x8xf32>
          return %1 : tensor<8x8xf32>
        }
      }"""
    module = import_module(text, MESH)
    assert module.name == "sharded"
    assert module.attrs["sdy.mesh"] == (("mesh", Raw('#sdy.mesh<["a"=2, "b"=2]>')),)
    assert module.main.arg_attrs[0]["sdy.sharding"] == Raw('#sdy.sharding<@mesh, [{"a"}, {}]>')
    assert only(module, "sharding_constraint").attrs["sharding"] == Raw('#sdy.sharding<@mesh, [{"b"}, {?}]>')
    manual = only(module, "manual_computation")
    assert sorted(manual.attrs) == ["in_shardings", "manual_axes", "out_shardings"]
    assert [op.name for op in manual.regions[0].ops] == ["negate"]
    exported = export_text(module)
    assert export_text(import_module(exported, MESH)) == exported
    assert exported.count("sdy.return") == 1


def test_tokens():
    text = """
      func.func public @main(%t: !stablehlo.token) -> !stablehlo.token {
        %0 = stablehlo.after_all %t : !stablehlo.token
        return %0 : !stablehlo.token
      }"""
    module = import_module(text, MESH)
    assert only(module, "after_all").result.type is TOKEN
    assert "!stablehlo.token" in export_text(module)


def test_only_public_function_is_the_entry():
    text = """
      func.func public @step(%x: tensor<f32>) -> tensor<f32> {
        %0 = func.call @inner(%x) : (tensor<f32>) -> tensor<f32>
        return %0 : tensor<f32>
      }
      func.func private @inner(%x: tensor<f32>) -> tensor<f32> { return %x : tensor<f32> }"""
    module = import_module(text, MESH)
    assert list(module.functions) == ["main", "inner"]
    assert export_text(import_module(export_text(module), MESH)) == export_text(module)
    with pytest.raises(SpmdError, match="2 public ones: step, inner"):
        import_module(text.replace("private", "public"), MESH)


def test_malformed_text_has_line_and_column():
    text = "module {\n  func.func public @main() {\n    %0 = stablehlo.nonsense\n    return\n  }\n}"
    with pytest.raises(ParseError, match="nonsense") as caught:
        import_module(text, MESH)
    assert (caught.value.line, caught.value.column) == (3, 10)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("func.func public @main(%x: tensor<?xf32>) { return }", r"dynamic type tensor<\?xf32>"),
        ("func.func public @main(%x: tuple<tensor<f32>>) { return }", r"type tuple<tensor<f32>>"),
        ("func.func private @main(tensor<f32>) -> tensor<f32>", "@main has no body"),
        ("func.func public @main(%x: tensor<f80>) { return }", "type tensor<f80>"),
    ],
)
def test_unsupported_input(text, message):
    with pytest.raises(SpmdError, match=message):
        import_module(text, MESH)


def test_functions_that_nothing_calls_may_be_anything():
    text = """module {
      func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
        %0 = stablehlo.negate %x : tensor<8xf32>
        return %0 : tensor<8xf32>
      }
      func.func private @middle(%x: tensor<8xf32>) -> tensor<8xf32> {
        %0 = call @declared(%x) : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>
      }
      func.func private @declared(%x: tensor<8xf32>) -> tensor<8xf32>
      func.func private @dynamic(%x: tensor<?xf32>) -> tensor<?xf32> {
        return %x : tensor<?xf32>
      }
    }"""
    assert list(import_module(text, Mesh([])).functions) == ["main", "middle"]
    called = text.replace("stablehlo.negate %x :", "call @middle(%x) : (tensor<8xf32>) ->")
    with pytest.raises(SpmdError, match="function @declared has no body"):
        import_module(called, Mesh([]))
