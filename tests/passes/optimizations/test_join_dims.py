"""Gathers, and reduce-scatters, along several dims are one."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.ir.graph import Block, Function, Module, Value
from spmd_compiler.ir.layout import Layout
from spmd_compiler.ir.types import TensorType
from spmd_compiler.ir.verify import verify
from spmd_compiler.passes.emit.builder import Builder
from spmd_compiler.passes.optimizations.join_dims import GATHERS, HUGE, LARGE, join_dims
from spmd_compiler.tools.interpret import run_devices
from tests.share import examples

MESH = ir.Mesh([("a", 2), ("b", 3), ("c", 2)])
PIECES = ir.Mesh([("a", 4), ("b", 3)])
AXES = st.sampled_from(
    [
        (MESH, ["a", "b"]),
        (MESH, ["c", "b", "a"]),
        (MESH, ["b", "a", "c"]),
        (PIECES, ["a:(1)2", "a:(2)2"]),
        (PIECES, ["a:(2)2", "b", "a:(1)2"]),
    ]
)


def in_turn(name, mesh, axes, dims, shape):
    """Collectives over one axis after the other, each along a dim."""
    x = Value(TensorType(shape, "i32"), Layout.replicated(len(shape)))
    block = Block([x], [], [])
    b, y = Builder(mesh, block), x
    for axis, dim in zip(axes, dims, strict=False):
        y = (
            b.all_gather(y, (axis,), dim)
            if name == "all_gather"
            else b.reduce_scatter(y, (axis,), dim, "sum")
        )
    block.returns = [y]
    y.layout = Layout.replicated(len(shape))
    return Module(mesh, {"main": Function("main", block, True, [{}], [{}])}, "chain", {})


@given(
    st.sampled_from(["all_gather", "reduce_scatter"]),
    AXES,
    st.lists(st.integers(0, 2), min_size=3, max_size=3),
    st.sampled_from([(12, 12, 12), (12, 24, 36)]),
    st.sampled_from([0, LARGE, HUGE]),
)
@examples(40)
def test_they_give_the_same(name, axes, dims, shape, large):
    mesh, axes = axes
    data = np.random.RandomState(0).randint(-9, 9, (mesh.size, *shape)).astype(np.int32)
    before, after = (in_turn(name, mesh, axes, dims, shape) for _ in range(2))
    whole = after.main.body.returns[0].type.nbytes
    join_dims(after.main.body, mesh, large=large)
    verify(after)
    sends = [(op.name, bool(op.attrs["dim"])) for op in after.walk() if "axes" in op.attrs]
    dims = dims[: len(axes)]
    apart = name == "all_gather" and whole >= large and 0 in dims and any(dims)
    assert [x for x, _ in sends] == [name] * (1 + apart)
    assert not any(later for _, later in sends)
    want, got = (run_devices(module, [list(data)])[0] for module in (before, after))
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def of(text, **how):
    module = ir.parse(text)
    join_dims(module.main.body, module.mesh, **how)
    verify(module)
    return [(op.name, op.attrs["axes"]) for op in module.walk() if "axes" in op.attrs]


READ_BETWEEN = """mesh {a=2, b=2}
func @main(%x: f32[4,4] {-,-}) -> (f32[8,8] {-,-}, f32[8,4] {-,-}) {
  %0: f32[8,4] = all_gather(%x) axes=["a"] dim=0
  %1: f32[8,8] = all_gather(%0) axes=["b"] dim=1
  return %1, %0
}
"""
OF_SEVERAL_KINDS = """mesh {a=2, b=2}
func @main(%x: f32[4,4] {-,-}) -> (f32[2,4] {-,-}) {
  %0: f32[2,4] = reduce_scatter(%x) axes=["a"] dim=0 kind="sum"
  %1: f32[2,2] = reduce_scatter(%0) axes=["b"] dim=1 kind="max"
  %2: f32[2,4] = all_gather(%1) axes=["b"] dim=1
  return %2
}
"""


OVER_ONE_AXIS = """mesh {a=2}
func @main(%x: f32[4,4] {-,-}) -> (f32[8,8] {-,-}) {
  %0: f32[8,4] = all_gather(%x) axes=["a"] dim=0
  %1: f32[8,8] = all_gather(%0) axes=["a"] dim=1
  return %1
}
"""


@pytest.mark.parametrize("text", [READ_BETWEEN, OF_SEVERAL_KINDS, OVER_ONE_AXIS])
def test_others_stay(text):
    assert of(text) == [(op.name, op.attrs["axes"]) for op in ir.parse(text).walk() if "axes" in op.attrs]


BESIDE = """mesh {{a=2, b=2}}
func @main(%x: f32[4,4] {{-,-}}, %y: f32[4,4] {{-,-}}) -> (f32[8,8] {{-,-}}, {result}) {{
  %0: f32[8,4] = all_gather(%x) axes=["a"] dim=0
  %1: f32[8,8] = all_gather(%0) axes=["b"] dim=1
  %2: f32[8,4] = all_gather(%y) axes=["a"] dim=0
  {more}
  return %1, {last}
}}
"""
ALIKE = BESIDE.format(
    result="f32[8,8] {-,-}", more='%3: f32[8,8] = all_gather(%2) axes=["b"] dim=1', last="%3"
)
PARTLY = BESIDE.format(result="f32[8,4] {-,-}", more="", last="%2")


def test_before_they_are_combined_only_what_has_the_same_partners():
    """Another gather over one of the axes would go with the first of the two."""
    both = ("all_gather", ("b", "a"))
    assert of(ALIKE, alone=True) == [both, both]
    assert len(of(PARTLY, alone=True)) == 3
    assert of(PARTLY) == [both, ("all_gather", ("a",))]
    assert of(ALIKE, names=GATHERS) == [both, both]


@pytest.mark.parametrize("shape", [(16, 24), (13, 10)], ids=str)
def test_relayouts(shape):
    mesh = spmd.create_mesh([("a", 4), ("b", 2)])
    x = np.random.RandomState(0).rand(*shape).astype(np.float32)
    y = np.random.RandomState(1).rand(*shape).astype(np.float32)
    step = spmd.spmd_jit(lambda x, y: (x * 2, jnp.sin(y)), mesh=mesh, in_layouts=P("a", "b"), out_layouts=P())
    for got, want in zip(step(x, y), (x * 2, np.sin(y)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-6)
    if shape == (16, 24):
        assert [c.kind for c in step.lower(x, y).collectives()] == ["all_gather"]
