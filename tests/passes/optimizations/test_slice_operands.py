"""Slices of what is computed in passing are computed from slices."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.ir.verify import verify
from spmd_compiler.passes.optimizations.slice_operands import slice_operands
from spmd_compiler.tools.interpret import run_devices

X = np.random.default_rng(0).normal(size=(8, 16, 512)).astype(np.float32)


def norm(x):
    """Taken of all features; a device scales some of them."""
    shifted = x - x.mean(-1, keepdims=True)
    return shifted * jax.lax.rsqrt((shifted**2).mean(-1, keepdims=True) + 1e-5)


def looped(x):
    return jax.lax.fori_loop(0, 3, lambda _, y: norm(y) + x, x)


def step(function):
    if jax.device_count() < 8:
        pytest.skip("needs 8 virtual devices")
    mesh = spmd.create_mesh([("data", 4), ("model", 2)])
    return spmd.spmd_jit(function, mesh=mesh, in_layouts=P("data"), out_layouts=P("data", None, "model"))


@pytest.mark.parametrize("function", [norm, looped])
def test_same_results(function):
    np.testing.assert_allclose(step(function)(X), jax.jit(function)(X), rtol=2e-5, atol=2e-5)


def test_a_norm_keeps_nothing_whole():
    """Beside its argument and its result."""
    shard = X.nbytes / 4
    assert step(norm).lower(X).compile().memory_analysis().temp_size_in_bytes < shard / 8


TEXT = """mesh {a=2}
func @main(%x: f32[8,8] {-,-}, %y: f32[] {}) -> (f32[8,4] {-,-}, f32[8,8] {-,-}) {
  %0: i1[] = compare(%y, %y) comparison_direction="LE" compare_type="FLOAT"
  %1: f32[8,8] = tanh(%x)
  %2: f32[8,8] = select(%0, %x, %1)
  %3: f32[8,4] = slice(%2) start_indices=[0,2] limit_indices=[8,6] strides=[1,1]
  %4: f32[8,8] = negate(%2)
  %5: f32[8,8] = add(%4, %1)
  return %3, %5
}
"""


@pytest.mark.parametrize(
    ("old", "new", "sliced"),
    [
        ("", "", 2),
        ("%2: f32[8,8] = select(%0, %x, %1)", "%2: f32[8,8] = exponential(%x)", 1),  # costs something
        ("negate(%2)", "dot_general(%2, %x) contract=[1]x[0] batch=[]x[]", 1),  # reads it from memory
        ("add(%4, %1)", "add(%4, %2)", 1),  # two others read it
        ("add(%4, %1)", "add(%4, %4)", 1),  # what it is made of would have to stay
        ("return %3, %5", "return %3, %2", 1),
    ],
)
def test_where_it_is_worth_it(old, new, sliced):
    module, text = ir.parse(TEXT.replace(old, new)), TEXT.replace(old, new)
    assert slice_operands(module.main.body) is (sliced > 1)
    verify(module)
    assert [op.name for op in module.walk()].count("slice") == sliced
    args = [[X[0, :8, :8]] * 2, [np.float32(k) for k in (0, 1)]]
    for got, want in zip(run_devices(module, args), run_devices(ir.parse(text), args), strict=True):
        np.testing.assert_array_equal(got, want)
