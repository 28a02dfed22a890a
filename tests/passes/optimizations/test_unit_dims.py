"""Products over dims of one element, and what is computed with their results, are written without these dims."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.ir.verify import verify
from spmd_compiler.passes.optimizations.unit_dims import drop_unit_dims
from spmd_compiler.tools.fuzz.check import on_devices
from tests.share import examples


def attention(q, k, v):
    scores = jnp.einsum("bshk,bthk->bhst", q, k) / 8
    mask = jnp.arange(q.shape[1])[:, None] >= jnp.arange(k.shape[1])
    scores = jnp.where(mask, scores, -1e9)
    return jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(scores, -1), v)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 virtual devices")
@pytest.mark.parametrize("batch", [1, 3])
def test_attention_with_a_head_on_each_device(batch):
    mesh = spmd.create_mesh([("heads", 8)])
    layout = P(None, None, "heads")
    q, k, v = np.random.default_rng(0).normal(size=(3, batch, 64, 8, 16)).astype(np.float32)
    step = spmd.spmd_jit(attention, mesh=mesh, in_layouts=layout, out_layouts=layout)
    lowered = step.lower(q, k, v)
    np.testing.assert_allclose(lowered.compile()(q, k, v), attention(q, k, v), rtol=2e-5, atol=2e-5)
    ops = lowered.stages["optimize"].main.body.ops
    exponential = next(op for op in ops if op.name == "exponential")
    assert exponential.results[0].type.shape == tuple(n for n in (batch, 64, 64) if n > 1)


ONES_OFTEN = st.sampled_from([1, 1, 3, 4])


@examples(40)
@given(st.data())
def test_any_chain_behind_a_product(data):
    """Elementwise ops, among them with what is broadcast, sums, transposes, and products again."""
    b, h, s, k = data.draw(st.tuples(*[ONES_OFTEN] * 4))
    steps = data.draw(
        st.lists(
            st.sampled_from(["mask", "scale", "norm", "sum", "turn", "merge", "cut", "again"]), max_size=5
        )
    )

    def fun(x, y, z):
        made = jnp.einsum("bshk,bthk->bhst", x, y)
        for name in steps:
            if name == "mask":
                made = jnp.where(jnp.arange(made.shape[-1]) % 2 == 0, made, z[0, 0, 0, 0])
            elif name == "scale":
                made = made * z[:, :1, :1, :1]
            elif name == "norm":
                made = made - made.max(-1, keepdims=True)
            elif name == "sum":
                made = made + made.sum((0, 2), keepdims=True)
            elif name == "turn":
                made = made.transpose(0, 1, 3, 2)
            elif name == "merge":
                made = jnp.sin(made.reshape(-1)).reshape(made.shape)
            elif name == "cut":
                made = made + made[:, :, :1]
            else:
                made = jnp.einsum("bhst,bhut->bhsu", made, made)
        return made

    rng = np.random.default_rng(0)
    args = [
        rng.integers(-2, 3, shape).astype(np.float32) for shape in ((b, s, h, k), (b, s, h, k), (b, 1, 1, 1))
    ]
    mesh = spmd.create_mesh([("a", 2)], abstract=True)
    low = spmd.spmd_jit(fun, mesh=mesh, in_layouts=P(), out_layouts=P()).lower(*args)
    verify(low.stages["optimize"])
    (found,) = on_devices(low.stages, args)
    np.testing.assert_allclose(found, fun(*args), rtol=1e-5, atol=1e-5)


TEXT = """mesh {a=2}
func @main(%x: f32[1,4,8] {-,-,-}, %y: f32[1,8,4] {-,-,-}, %z: f32[4] {-}) -> (f32[1,4] {-,-}, f32[1,4,4] {-,-,-}) {
  %0: f32[1,4,4] = dot_general(%x, %y) contract=[2]x[1] batch=[0]x[0]
  %1: f32[1,4,4] = broadcast_in_dim(%z) broadcast_dimensions=[2]
  %2: f32[1,4,4] = add(%0, %1)
  %3: f32[] = constant() value=dense<float32[]: 0.0>
  %7: f32[1,4] = reduce(%2, %3) dimensions=[2] ({ (%4: f32[], %5: f32[])
    %6: f32[] = add(%4, %5)
    return %6
  })
  %8: f32[1,4,4] = all_reduce(%2) axes=["a"] kind="sum"
  return %7, %8
}
"""


def test_what_others_read_and_what_the_program_returns_has_its_dims():
    module = ir.parse(TEXT)
    drop_unit_dims(module.main.body)
    verify(module)
    shapes = {op.name: op.results[0].type.shape for op in module.main.body.ops if op.name != "reshape"}
    assert shapes["dot_general"] == shapes["add"] == (4, 4) and shapes["reduce"] == (4,)
    assert shapes["all_reduce"] == (1, 4, 4)
    assert [v.type.shape for v in module.main.body.returns] == [(1, 4), (1, 4, 4)]
