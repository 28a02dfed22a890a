"""Permutes of what was permuted become one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.ir.verify import verify
from spmd_compiler.passes.optimizations.compose_permutes import compose_permutes
from spmd_compiler.tools.interpret import run_devices

X = np.arange(16 * 16 * 4, dtype=np.float32).reshape(16, 16, 4)


def loop(x):
    return jax.lax.fori_loop(0, 3, lambda i, y: jnp.flip(y, (0, 1)) + i, x)


@pytest.mark.parametrize(
    ("fun", "sent"),
    [
        (lambda x: jnp.flip(x, (0, 1)), 1),
        (lambda x: jnp.roll(x, (4, -8), (0, 1)), 1),
        (lambda x: jnp.flip(jnp.fft.fftshift(x, (0, 1)), (0, 1)), 1),
        (lambda x: jnp.roll(x, (1, 8), (0, 1)), 2),  # a halo is no block
        (loop, 1),
    ],
)
def test_one_message_along_two_axes(fun, sent):
    if jax.device_count() < 8:
        pytest.skip("needs 8 virtual devices")
    mesh = spmd.create_mesh([("a", 4), ("b", 2)])
    lowered = spmd.spmd_jit(fun, mesh=mesh, in_layouts=P("a", "b"), out_layouts=P("a", "b")).lower(X)
    np.testing.assert_array_equal(lowered.compile()(X), jax.jit(fun)(X))
    assert [c.kind for c in lowered.collectives()] == ["collective_permute"] * sent


def test_blocks_that_stay_go_along():
    """Of three blocks along a dim that is turned round, the middle one stays."""
    if jax.device_count() < 6:
        pytest.skip("needs 6 virtual devices")
    mesh = spmd.create_mesh([("a", 3), ("b", 2)], devices=jax.devices()[:6])
    step = spmd.spmd_jit(jnp.flip, mesh=mesh, in_layouts=P("a", "b"), out_layouts=P("a", "b"))
    x = np.arange(9 * 4 * 5, dtype=np.float32).reshape(9, 4, 5)
    lowered = step.lower(x)
    np.testing.assert_array_equal(lowered.compile()(x), np.flip(x))
    assert [c.kind for c in lowered.collectives()] == ["collective_permute"]


SHIFTS = """mesh {a=4, b=2}
func @main(%x: f32[2,3]) -> (f32[3,2], f32[2,3]) {
  %0: f32[2,3] = collective_permute(%x) axes=["a"] shift=1 wrap=false
  %1: f32[3,2] = transpose(%0) permutation=[1,0]
  %2: f32[3,2] = collective_permute(%1) axes=["b","a"] pairs=[[0,3],[2,5],[4,1]]
  %3: f32[2,3] = collective_permute(%x) axes=["b"] shift=1 wrap=true
  %4: f32[2,3] = negate(%3)
  %5: f32[2,3] = collective_permute(%4) axes=["b"] shift=1 wrap=true
  return %2, %5
}
"""


def test_who_gets_nothing_gets_zeros():
    before, after = ir.parse(SHIFTS), ir.parse(SHIFTS)
    compose_permutes(after.main.body, after.mesh)
    verify(after)
    assert sum(op.name == "collective_permute" for op in after.walk()) == 3  # not those around what computes
    blocks = list(np.random.default_rng(0).normal(size=(8, 2, 3)).astype(np.float32))
    for want, got in zip(run_devices(before, [blocks]), run_devices(after, [blocks]), strict=True):
        np.testing.assert_array_equal(got, want)
