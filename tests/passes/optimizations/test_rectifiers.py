"""Rectified values that take the place of what they are made of, and slices that are made when they are read, on CPUs."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.passes.optimize import Optimize
from tests.variants import lowered as variant

MESH = spmd.create_mesh({"a": 8})


def loss(ws, x, rectify=jax.nn.relu):
    for w in ws:
        x = rectify(x @ w)
    return (x * x).sum()


def mlp(rectify):
    return jax.grad(functools.partial(loss, rectify=rectify))


def masked_first(x):
    """A rectifier of which the mask is made before the result that would answer it."""

    @jax.custom_vjp
    def floored(x):
        return jnp.maximum(x, 0)

    floored.defvjp(lambda x: ((x > 0), floored(x))[::-1], lambda mask, g: (jnp.where(mask, g, 0),))
    return floored(x)


def below(x):
    """The smaller one of it and 0, by rules of its own."""

    @jax.custom_jvp
    def smaller(x):
        return jnp.minimum(x, 0)

    smaller.defjvp(lambda x, t: (smaller(*x), jnp.where(jax.lax.gt(jnp.zeros_like(*x), *x), t[0], 0)))
    return smaller(x)


def arguments(dtype=np.float32, rows=2048, width=32, layers=4):
    rng = np.random.default_rng(0)
    ws = [rng.normal(size=(width, width), scale=width**-0.5).astype(dtype) for _ in range(layers)]
    x = rng.normal(size=(rows, width)).astype(dtype)
    return ws, x


def lowered(fun, ws, x):
    return spmd.spmd_jit(fun, mesh=MESH, in_layouts=(P(), P("a"))).lower(ws, x)


def calls(program):
    ops = program.stages["optimize"].main.body.walk()
    return [op.attrs["callee"].partition("_")[0] for op in ops if op.name == "call"]


@pytest.mark.parametrize("rectify", [jax.nn.relu, below])
@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.float64])
def test_rectified_values_are_kept_instead(rectify, dtype):
    with jax.enable_x64(dtype == np.float64):
        ws, x = arguments(dtype)
        program = lowered(mlp(rectify), ws, x)
        assert calls(program) == ["rectified"] * 3
        assert "inlineable" in program.stablehlo()
        compiled = program.compile()
        for got, want in zip(compiled(ws, x), jax.jit(mlp(rectify))(ws, x), strict=True):
            scale = np.abs(np.asarray(want, np.float64)).max()
            tolerance = 0.05 if dtype == jnp.bfloat16 else 1e-4
            np.testing.assert_allclose(
                *(np.asarray(v, np.float64) / scale for v in (got, want)), atol=tolerance
            )


def test_that_takes_less_memory():
    ws, x = arguments()
    fun = mlp(jax.nn.relu)
    replicated, rows = (jax.sharding.NamedSharding(MESH.to_jax(), spec) for spec in (P(), P("a")))
    beside = jax.jit(fun, in_shardings=(replicated, rows)).lower(ws, x).compile().memory_analysis()
    ours = lowered(fun, ws, x).compile().memory_analysis()
    assert ours.temp_size_in_bytes < 0.8 * beside.temp_size_in_bytes


def test_not_a_number_is_masked_as_before():
    ws, x = arguments()
    x[5] = np.nan
    fun = jax.grad(lambda x, ws: loss(ws, x))
    got = spmd.spmd_jit(fun, mesh=MESH, in_layouts=(P("a"), P()))(x, ws)
    np.testing.assert_allclose(got, jax.jit(fun)(x, ws), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("rectify", [jax.nn.gelu, jnp.tanh, masked_first, lambda x: jnp.maximum(x, x * 0.1)])
def test_others_stay(rectify):
    assert calls(lowered(mlp(rectify), *arguments())) == []


def test_without_products_or_without_gradients_there_is_nothing_to_spare():
    ws, x = arguments()
    assert calls(lowered(loss, ws, x)) == []
    assert calls(lowered(jax.grad(lambda w, x: (jax.nn.relu(x * w) ** 2).sum()), x[0], x)) == []


def test_other_platforms_get_no_calls():
    program = variant("fsdp_mlp_train", abstract=False)
    assert "rectified" in calls(program)
    module = Optimize(platform="gpu")(program.stages["expand"])
    assert not any(op.name == "call" for op in module.walk())


def test_microbatches_are_sliced_again_for_gradients():
    program = variant("grad_accum_fsdp_train", abstract=False)
    assert calls(program) == ["rectified", "after"]
    slices = [op for op in program.stages["optimize"].walk() if op.name == "dynamic_slice"]
    assert len(slices) == 3
    (call,) = (
        op
        for op in program.stages["optimize"].main.body.walk()
        if op.attrs.get("callee", "").startswith("after")
    )
    assert call.results[0] in slices[-1].operands
