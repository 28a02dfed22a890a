"""export ∘ import of a global module is the same program: the same text, the same results where it runs."""

import copy
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxlib.mlir import ir

from spmd_compiler.ir.context import make_context, parse_stablehlo
from spmd_compiler.ir.exporter import export_module, export_text
from spmd_compiler.ir.importer import import_module
from spmd_compiler.ir.mesh import Mesh

MESH = Mesh([("x", 2)])
X = np.linspace(-2, 3, 24, dtype=np.float32).reshape(4, 6)


def mlp_step(params, x):
    def loss(params):
        h = jax.nn.relu(x @ params["w"] + params["b"])
        return jnp.mean((h - 1) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def loops(x):
    total, ys = jax.lax.scan(lambda c, r: (c + r.sum(), c * r), 0.0, x)
    n = jax.lax.while_loop(lambda i: i[0] < total, lambda i: (i[0] + x[3, 5], i[1] * 2), (0.0, x))
    return ys, n


def branches(x):
    picked = jax.lax.switch(jnp.int32(x[0, 0]) + 3, [lambda a: a, jnp.sin, lambda a: a @ a.T @ a], x)
    return picked, jax.lax.cond(x.sum() > 0, lambda: x * 2, lambda: x - 1)


def gathers(x):
    index = jnp.array([3, 0, 2])
    picked = jnp.take_along_axis(x, jnp.argsort(x, axis=1), axis=1)
    return (
        x[index],
        x.at[index, 1].add(2.0),
        x.at[:, index].max(0.5),
        picked,
        jax.lax.dynamic_slice(x, (1, 2), (2, 2)),
    )


def reductions(x):
    pooled = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (2, 2), (1, 2), "SAME")
    grad = jax.grad(lambda a: jax.lax.reduce_window(a, -jnp.inf, jax.lax.max, (2, 2), (2, 2), "VALID").sum())(
        x
    )
    return jnp.argmax(x, 1), x.max(0), x.prod(1), jnp.cumsum(x, 1), (x > 0).all(), pooled, grad


def sorting(x):
    return jnp.sort(x), jax.lax.top_k(x, 3), jax.lax.sort((x, -x), num_keys=1), jnp.median(x)


def randomness(x):
    key = jax.random.key(3)
    bits = jax.lax.rng_bit_generator(jnp.arange(4, dtype=jnp.uint32), (5,))
    return jax.random.normal(key, x.shape) + x, jax.random.permutation(key, 5), bits


def linear_algebra(x):
    spd = x @ x.T + 5 * jnp.eye(4)
    return (
        jnp.linalg.cholesky(spd),
        jnp.linalg.solve(spd, x),
        jnp.linalg.qr(x),
        jnp.fft.fft(x),
        jnp.linalg.eigh(spd),
    )


def convolutions(x):
    image, kernel = x.reshape(1, 4, 6, 1), jnp.ones((3, 3, 1, 2))
    return jax.grad(
        lambda k: jax.lax.conv_general_dilated(
            image, k, (2, 1), "SAME", rhs_dilation=(1, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
        ).sum()
    )(kernel)


def special_functions(x):
    y = jnp.abs(x) + 0.5
    return [
        f(y)
        for f in (jax.scipy.special.erfinv, jax.scipy.special.digamma, jax.lax.lgamma, jnp.arccosh, jnp.tan)
    ]


def small_types(x):
    packed = x.astype(jnp.int4), x.astype(jnp.bfloat16) * 1.5, x.astype(jnp.float8_e4m3fn), x > 0
    return *packed, (x + 1j).astype(jnp.complex64) * (2 - 1j), jax.lax.bitcast_convert_type(x, jnp.uint32) ^ 7


def dense_constants(x):
    table = np.arange(3000, dtype=np.float32).reshape(500, 6)
    flags = np.arange(24).reshape(4, 6) % 3 == 0
    half = np.arange(24).reshape(4, 6).astype(jnp.bfloat16)
    waves = np.exp(1j * np.arange(300)).astype(np.complex64)
    return x @ table.T, jnp.where(flags, x, half), waves


def nested_calls(x):
    inner = jax.jit(lambda a: jnp.tanh(a) @ a.T)
    return (
        jax.checkpoint(inner)(x),
        jax.vmap(lambda r: inner(r[None]))(x),
        jax.lax.optimization_barrier((x, x + 1)),
    )


def composites(x):
    named = jax.lax.composite(lambda a, *, level: a * level, name="my.scale", version=2)
    return named(x, level=np.float32(2.0))


PROGRAMS = [
    loops,
    branches,
    gathers,
    reductions,
    sorting,
    randomness,
    linear_algebra,
    convolutions,
    special_functions,
    small_types,
    dense_constants,
    nested_calls,
    composites,
]


def with_module(lowered, module):
    """The lowered computation, with another module in place of its own."""
    computation = copy.copy(lowered._lowering)
    computation._hlo, computation._executable = module, None
    out = copy.copy(lowered)
    out._lowering = computation
    return out


def same_bytes(expected, actual):
    for a, b in zip(jax.tree.leaves(expected), jax.tree.leaves(actual), strict=True):
        a, b = np.asarray(a), np.asarray(b)
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert a.tobytes() == b.tobytes()


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_same_program(program):
    lowered = jax.jit(program).lower(X)
    original: Any = lowered.compiler_ir()
    expected_text = str(original)
    exported = export_module(import_module(original, MESH), context=original.context)
    assert str(exported) == expected_text
    same_bytes(lowered.compile()(X), with_module(lowered, exported).compile()(X))


def test_train_step_with_donation():
    params = {"w": jnp.ones((6, 5)), "b": jnp.zeros(5)}
    lowered = jax.jit(mlp_step, donate_argnums=0).lower(params, X)
    original: Any = lowered.compiler_ir()
    exported = export_module(import_module(original, MESH), context=original.context)
    assert str(exported) == str(original)
    assert str(exported).count("tf.aliasing_output") == 2
    expected = jax.jit(mlp_step)(params, X)
    same_bytes(expected, with_module(lowered, exported).compile()(params, X))
    assert params["w"].is_deleted()


def test_user_shardings_and_shard_map_survive():
    mesh = jax.sharding.AbstractMesh((2, 1), ("a", "b"), axis_types=(jax.sharding.AxisType.Auto,) * 2)

    def f(x):
        return jax.lax.psum(x, "a"), jax.lax.all_gather(x, ("b", "a"), tiled=True), jax.lax.axis_index("a")

    spec = jax.P("a", "b")
    mapped = jax.shard_map(
        f, mesh=mesh, in_specs=spec, out_specs=(spec, jax.P(None, None), jax.P()), check_vma=False
    )
    original = (
        jax.jit(mapped).trace(jax.ShapeDtypeStruct((4, 6), jnp.float32)).lower(lowering_platforms=("cpu",))
    )
    module = original.compiler_ir()
    assert "sdy.manual_computation" in str(module)
    assert str(export_module(import_module(module, MESH))) == str(module)


def test_text_and_module_import_alike():
    module = jax.jit(reductions).lower(X).compiler_ir()
    assert export_text(import_module(str(module), MESH)) == export_text(import_module(module, MESH))


def test_every_attribute_of_a_custom_call():
    text = r"""
module @custom attributes {mhlo.num_partitions = 1 : i32} {
  func.func public @main(%arg0: tensor<4xf32> {jax.buffer_donor = true, mhlo.memory_kind = "pinned_host"}) -> (tensor<4xf32> {mhlo.sharding = "{replicated}"}) {
    %0 = stablehlo.custom_call @target(%arg0) {api_version = 4 : i32, backend_config = {a = 1 : i64, b = "x"}, called_computations = [@helper], mhlo.frontend_attributes = {k = "v"}, operand_layouts = [dense<0> : tensor<1xindex>], output_operand_aliases = [#stablehlo.output_operand_alias<output_tuple_indices = [], operand_index = 0, operand_tuple_indices = []>], result_layouts = [dense<0> : tensor<1xindex>]} : (tensor<4xf32>) -> tensor<4xf32>
    %1 = stablehlo.custom_call @serialized(%0) {backend_config = "\FF\00\22"} : (tensor<4xf32>) -> tensor<4xf32>
    return %1 : tensor<4xf32>
  }
  func.func private @helper(%arg0: tensor<f32>) -> tensor<f32> attributes {no_inline} {
    return %arg0 : tensor<f32>
  }
}
"""
    assert export_text(import_module(text, MESH)).strip() == text.strip()


def test_operations_of_other_dialects_and_odd_attributes():
    text = """
module @other {
  func.func public @main(%arg0: tensor<4xf32>, %arg1: !stablehlo.token) -> (tensor<4xf32>, !stablehlo.token) {
    %values, %indices = chlo.top_k(%arg0, k = 2) : tensor<4xf32> -> (tensor<2xf32>, tensor<2xi32>)
    %0 = stablehlo.exponential %arg0 {result_accuracy = #stablehlo.result_accuracy<ulps = 10, mode = #stablehlo.result_accuracy_mode<TOLERANCE>>} : tensor<4xf32>
    %1 = stablehlo.pad %0, %cst, low = [1], high = [-1], interior = [0] : (tensor<4xf32>, tensor<f32>) -> tensor<4xf32>
    %2 = sdy.propagation_barrier %1 allowed_direction=NONE : tensor<4xf32>
    %3:2 = "stablehlo.infeed"(%arg1) <{infeed_config = "feed"}> : (!stablehlo.token) -> (tensor<4xf32>, !stablehlo.token)
    %4 = "stablehlo.outfeed"(%3#0, %3#1) <{outfeed_config = ""}> : (tensor<4xf32>, !stablehlo.token) -> !stablehlo.token
    return %2, %4 : tensor<4xf32>, !stablehlo.token
  }
}
"""
    text = text.replace(
        "    %0 = stable",
        "    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>\n    %0 = stable",
        1,
    )
    canonical = str(parse_stablehlo(text))
    assert export_text(import_module(text, MESH)).strip() == canonical.strip()


def test_locations_reach_the_output():
    def f(x):
        return jnp.sin(x) * 2

    module = import_module(jax.jit(f).lower(X).compiler_ir(), MESH)
    text = export_text(module, locations=True)
    line = f.__code__.co_firstlineno + 1
    assert f'"{__file__}":{line}:' in text
    assert '"jit(f)/mul"' in text
    again = import_module(text, MESH)
    assert [op.loc for op in again.walk()] == [op.loc for op in module.walk()]


def test_export_into_a_given_context():
    context = make_context()
    module = import_module(jax.jit(sorting).lower(X).compiler_ir(), MESH)
    out = export_module(module, context=context)
    assert isinstance(out, ir.Module)
    assert out.context == context
