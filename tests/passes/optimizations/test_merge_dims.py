"""Dims that are summed over together become one, between the reshapes that make and end them."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.ir.clone import clone_block
from spmd_compiler.ir.verify import verify
from spmd_compiler.passes.optimizations.merge_dims import merge_dims
from spmd_compiler.tools.interpret import run_devices
from tests.share import examples

MESH = spmd.create_mesh([("a", 2)], abstract=True)


def merged(fun, *args):
    """The program with its dims merged, and what it gives."""
    module = spmd.spmd_jit(fun, mesh=MESH, in_layouts=P(), out_layouts=P()).lower(*args).stages["expand"]
    body = clone_block(module.main.body)
    merge_dims(body)
    module = module.with_body(body)
    verify(module)
    ((result, _),) = run_devices(module, [[x] * MESH.size for x in args])
    return module, result


def shapes(module, name):
    return [op.results[0].type.shape for op in module.walk() if op.name == name]


def in_windows(x, w):
    """Attention within the quarters of an image."""
    batch, size, _, features = x.shape
    cut = x.reshape(batch, 2, size // 2, 2, size // 2, features).transpose(0, 1, 3, 2, 4, 5)
    q, k, v = jnp.split(cut @ w, 3, -1)
    scores = jnp.einsum("buvhwc,buvijc->buvhwij", q, k)
    weights = jnp.exp(scores - scores.max((-2, -1), keepdims=True))
    weights = weights / weights.sum((-2, -1), keepdims=True)
    made = jnp.einsum("buvhwij,buvijc->buvhwc", weights, v)
    return made.transpose(0, 1, 3, 2, 4, 5).reshape(x.shape)


def test_attention_in_windows():
    """One transpose brings their rows and columns together, one takes them apart."""
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 8, 8, 4)).astype(np.float32), rng.normal(size=(4, 12)).astype(np.float32)
    module, result = merged(in_windows, x, w)
    np.testing.assert_allclose(result, in_windows(x, w), rtol=1e-5, atol=1e-5)
    assert shapes(module, "exponential") == [(12, 16, 16)]


@examples(60)
@given(st.data())
def test_any_chain_between_reshapes(data):
    sizes = data.draw(st.tuples(*[st.integers(1, 3)] * 5))
    b, s, t, u, k = sizes
    steps = data.draw(
        st.lists(
            st.sampled_from(
                ["bias", "row", "scale", "norm", "turn", "swap", "cut", "again", "table", "count"]
            ),
            max_size=5,
        )
    )

    def fun(x, y, z):
        x, y = x.reshape(b, s, t, k), y.reshape(b, t, u, k)
        made = jnp.einsum("bstk,bvuk->bstvu", x, y)
        for name in steps:
            last = made.shape[-2:]
            if name == "bias":
                made = made + z
            elif name == "row":
                made = made * z[: last[-1]]
            elif name == "scale":
                made = jnp.where(made > 1, made, z[0])
            elif name == "norm":
                made = made - made.max((-2, -1), keepdims=True)
            elif name == "turn":
                made = made.transpose(0, 3, 4, 1, 2)
            elif name == "swap":
                made = made.swapaxes(2, 3)
            elif name == "cut":
                made = made[:, :1]
            elif name == "again":
                made = jnp.einsum("bstvu,bstwu->bstvw", made, made)
            elif name == "table":
                made = made + np.arange(last[0] * last[1], dtype=np.float32).reshape(last)
            else:
                made = made + jnp.arange(last[1])
        return made.sum((-2, -1)).reshape(-1), made.reshape(-1)

    rng = np.random.default_rng(0)
    args = [rng.integers(-2, 3, n).astype(np.float32) for n in (b * s * t * k, b * t * u * k, 3)]
    args[2] = args[2][[0] if "bias" in steps else ...]
    wants = fun(*args)
    for i, want in enumerate(wants):
        _, result = merged(lambda *args: fun(*args)[i], *args)  # noqa: B023
        np.testing.assert_allclose(result, want, rtol=1e-5, atol=1e-5)


TEXT = """mesh {a=2}
func @main(%x: f32[4,2,3] {-,-,-}, %y: f32[24] {-}) -> (f32[4] {-}) {
  %0: f32[4,2,3] = reshape(%y)
  %1: f32[4,2,3] = ADDED
  %2: f32[] = constant() value=dense<float32[]: 0.0>
  %6: f32[4] = reduce(%1, %2) dimensions=[DIMS] ({ (%3: f32[], %4: f32[])
    %5: f32[] = add(%3, %4)
    return %5
  })
  %7: f32[4] {-} = add(%6, %6)
  return %7
}
"""


@pytest.mark.parametrize(
    "added, dims, shape",
    [
        ("negate(%0)", "1,2", (4, 6)),
        ("negate(%0)", "2,1", (4, 6)),
        ("add(%0, %x)", "1,2", (4, 2, 3)),
        ('all_reduce(%0) axes=["a"] kind="sum"', "1,2", (4, 2, 3)),
    ],
)
def test_what_else_reads_them_keeps_dims(added, dims, shape):
    module = ir.parse(TEXT.replace("ADDED", added).replace("DIMS", dims))
    merge_dims(module.main.body)
    verify(module)
    assert module.main.body.ops[1].results[0].type.shape == shape
