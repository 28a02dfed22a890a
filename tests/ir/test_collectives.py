"""Exported collectives: which devices they join, in which order, and what each device receives."""

import jax
import jax.core as core
import numpy as np
import pytest
from jax.extend.core import Primitive
from jax.interpreters import mlir as jax_mlir
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _stablehlo
from jaxlib.mlir.dialects import func

from spmd_compiler.errors import SpmdError
from spmd_compiler.ir.context import make_context
from spmd_compiler.ir.exporter import export_module, export_text
from spmd_compiler.ir.graph import Block, Function, Module, Op, Value
from spmd_compiler.ir.groups import device_groups, positions, shift_pairs, transfer_pairs
from spmd_compiler.ir.mesh import Mesh
from spmd_compiler.ir.types import TensorType
from tests.interpreter import evaluate, needs_cores

MESH = Mesh([("a", 4), ("b", 2)])
# The bits of a device's number that an axis consists of, major to minor: a device is (a1, a0, b0).
BITS = {"a": (0, 1), "b": (2,), "a:(1)2": (0,), "a:(2)2": (1,)}
AXES = [("a",), ("b",), ("a", "b"), ("b", "a"), ("a:(1)2",), ("a:(2)2", "b"), ("a:(2)2", "a:(1)2"), ()]
F32x8 = TensorType((8,), "f32")


@pytest.fixture
def eight_devices():
    if jax.device_count() < 8:
        pytest.skip("needs 8 virtual devices")


def bits(device):
    return [device >> 2 & 1, device >> 1 & 1, device & 1]


def position(device, axes):
    """Row-major position on `axes`, from the bits alone."""
    out = 0
    for axis in axes:
        for bit in BITS[axis]:
            out = out * 2 + bits(device)[bit]
    return out


def peers(device, axes):
    """The devices that differ on `axes` only, in the order of `axes`."""
    own = {bit for axis in axes for bit in BITS[axis]}
    same = [d for d in range(8) if all(bits(d)[b] == bits(device)[b] for b in range(3) if b not in own)]
    return sorted(same, key=lambda d: position(d, axes))


@pytest.mark.parametrize("axes", AXES)
def test_groups(axes):
    groups = device_groups(MESH, axes)
    assert {tuple(g) for g in groups.tolist()} == {tuple(peers(d, axes)) for d in range(8)}
    assert positions(MESH, axes).tolist() == [position(d, axes) for d in range(8)]


def test_pairs():
    assert shift_pairs(MESH, ("a",), 1, False).tolist() == [[0, 2], [1, 3], [2, 4], [3, 5], [4, 6], [5, 7]]
    assert shift_pairs(MESH, ("b",), -1, True).tolist() == [[d, d ^ 1] for d in range(8)]
    for pair in transfer_pairs(MESH, ("a", "b"), ("b", "a")).tolist():
        assert position(pair[0], ("a", "b")) == position(pair[1], ("b", "a"))
    for source, target in transfer_pairs(MESH, ("a:(1)2", "b"), ("b", "a:(1)2")).tolist():
        assert bits(source)[1] == bits(target)[1]
        assert position(source, ("a:(1)2", "b")) == position(target, ("b", "a:(1)2"))


def device_module(op_name, attrs, shape, mesh=MESH):
    x, y = Value(F32x8), Value(TensorType(shape, "f32"))
    ops = [Op(op_name, [x], [y], attrs)]
    return Module(mesh, {"main": Function("main", Block([x], ops, [y]))})


run_device_module = Primitive("run_device_module")
run_device_module.def_abstract_eval(lambda x, *, text, shape: core.ShapedArray(shape, x.dtype))


def _lower(ctx, x, *, text, shape):
    inner = ir.Module.parse(text, ctx.module_context.context)
    callee = jax_mlir.merge_mlir_modules(
        ctx.module_context.module, "device", inner, dst_symtab=ctx.module_context.symbol_table
    )
    result = ir.RankedTensorType.get(shape, ir.F32Type.get())
    return func.CallOp([result], ir.FlatSymbolRefAttr.get(callee), [x]).results


jax_mlir.register_lowering(run_device_module, _lower)


def run(op_name, attrs, shape, x, groups):
    """float32[devices, *shape]: the op on XLA's virtual devices, `x[d]` being device d's operand."""
    text = export_text(device_module(op_name, attrs, shape), groups=groups)
    mesh = jax.make_mesh((4, 2), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)
    spec = jax.P(("a", "b"))

    def on_device(row):
        return run_device_module.bind(row[0], text=text, shape=shape)[None]

    mapped = jax.shard_map(on_device, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return np.asarray(jax.jit(mapped)(x))


def expected(op_name, attrs, x):
    out, reduce = [], {"sum": np.sum, "max": np.max, "min": np.min, "mul": np.prod}
    for device in range(8):
        group = peers(device, attrs["axes"])
        rows, index = x[group], position(device, attrs["axes"])
        if op_name == "all_gather":
            out.append(rows.reshape(-1))
        elif op_name == "all_to_all":
            out.append(rows.reshape(len(group), len(group), -1)[:, index].reshape(-1))
        else:
            total = reduce[attrs["kind"]](rows, axis=0)
            out.append(total if op_name == "all_reduce" else total.reshape(len(group), -1)[index])
    return np.stack(out)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("groups", ["mesh_axes", "dense"])
@pytest.mark.parametrize("axes", AXES)
def test_collectives_on_devices(axes, groups):
    x = np.arange(64, dtype=np.float32).reshape(8, 8) % 7
    n = MESH.axes_size(axes)
    for op_name, attrs, shape in [
        ("all_reduce", {"kind": "max"}, (8,)),
        ("all_reduce", {"kind": "sum"}, (8,)),
        ("all_gather", {"dim": 0}, (8 * n,)),
        ("reduce_scatter", {"dim": 0, "kind": "sum"}, (8 // n,)),
        ("all_to_all", {"split_dim": 0, "concat_dim": 0}, (8,)),
    ]:
        attrs = {"axes": axes, "cause": "a test", **attrs}
        np.testing.assert_array_equal(
            run(op_name, attrs, shape, x, groups), expected(op_name, attrs, x), op_name
        )


@pytest.mark.usefixtures("eight_devices")
def test_permutes_on_devices():
    x = 1 + np.arange(64, dtype=np.float32).reshape(8, 8)
    shifted = run("collective_permute", {"axes": ("a",), "shift": 1}, (8,), x, "mesh_axes")
    np.testing.assert_array_equal(shifted, np.concatenate([np.zeros((2, 8)), x[:-2]]))
    turned = run("collective_permute", {"axes": ("a",), "shift": -1, "wrap": True}, (8,), x, "mesh_axes")
    np.testing.assert_array_equal(turned, np.roll(x, -2, axis=0))
    moved = run("collective_permute", {"axes": ("a", "b"), "target_axes": ("b", "a")}, (8,), x, "mesh_axes")
    np.testing.assert_array_equal(moved, x[[position(d, ("b", "a")) for d in range(8)]])


@needs_cores
def test_interpreter_runs_dense_groups():
    x = np.array([[1, 2], [30, 40]], np.float32)
    mesh = Mesh([("a", 2), ("b", 1)])
    value, total = Value(TensorType((2,), "f32")), Value(TensorType((2,), "f32"))
    index = Value(TensorType((), "i32"))
    ops = [
        Op("all_reduce", [value], [total], {"axes": ("a",), "kind": "sum"}),
        Op("axis_index", [], [index], {"axes": ("b", "a")}),
    ]
    module = Module(mesh, {"main": Function("main", Block([value], ops, [total, index]))})
    results = evaluate(module, [[row] for row in x])
    for device, (row, place) in enumerate(results):
        np.testing.assert_array_equal(row, [31, 42])
        assert place == device


@pytest.mark.parametrize("axes", AXES)
def test_axis_index(axes):
    """The arithmetic, with a constant in the place of the partition number."""
    index = Value(TensorType((), "i32"))
    module = Module(
        MESH, {"main": Function("main", Block([], [Op("axis_index", [], [index], {"axes": axes})], [index]))}
    )
    text = export_text(module)
    for device in range(8):
        single = text.replace("stablehlo.partition_id :", f"stablehlo.constant dense<{device}> :")
        with make_context() as context:
            (result,) = _stablehlo.eval_module(ir.Module.parse(single, context), [])
            assert int(np.array(result)) == position(device, axes)


def test_axis_index_is_computed_once_per_block():
    positions_of = [("a",), ("a",), ("b", "a"), ("a",)]
    ops = [Op("axis_index", [], [Value(TensorType((), "i32"))], {"axes": axes}) for axes in positions_of]
    module = Module(MESH, {"main": Function("main", Block([], ops, [op.result for op in ops]))})
    assert export_text(module).count("stablehlo.partition_id") == 1
    assert export_text(module).count("stablehlo.divide") == 1


def test_combined_collectives_and_channels():
    x, y = Value(F32x8), Value(TensorType((3,), "i1"))
    outs = [Value(F32x8), Value(TensorType((3,), "i1"))]
    ops = [Op("all_reduce", [x, y], outs, {"axes": ("a",), "kind": "max"})]
    text = export_text(Module(MESH, {"main": Function("main", Block([x, y], ops, outs))}))
    assert text.count("all_reduce") == 2
    assert "handle = 1," in text and "handle = 2," in text
    assert "mhlo.num_partitions = 8 : i32" in text


@pytest.mark.parametrize("groups", ["mesh_axes", "dense"])
def test_large_meshes(groups):
    mesh = Mesh([("pod", 16), ("data", 128), ("model", 32)])
    out, ops = Value(F32x8), []
    x = Value(F32x8)
    for i in range(50):
        axes = [("data",), ("pod", "data"), ("model",)][i % 3]
        ops.append(Op("all_reduce", [x], [out], {"axes": axes, "kind": "sum"}))
        x, out = out, Value(F32x8)
    module = Module(mesh, {"main": Function("main", Block([ops[0].operands[0]], ops, [x]))})
    exported = export_module(module, groups=groups)
    if groups == "mesh_axes":
        assert len(str(exported)) < 50 * 600
    else:
        assert len(mesh.cache["device_groups"]) == 3


def test_errors():
    relayout = device_module("relayout", {"cause": "x"}, (8,))
    with pytest.raises(SpmdError, match="expand the module"):
        export_text(relayout)
    with pytest.raises(SpmdError, match="unknown reduction 'mean'"):
        export_text(device_module("all_reduce", {"axes": ("a",), "kind": "mean"}, (8,)))
    with pytest.raises(SpmdError, match="needs `shift`, `pairs` or `target_axes`"):
        export_text(device_module("collective_permute", {"axes": ("a",)}, (8,)))
    with pytest.raises(SpmdError, match="not valid StableHLO"):
        export_text(device_module("all_gather", {"axes": ("a",), "dim": 0}, (9,)))
