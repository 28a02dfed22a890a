"""The order of a program's ops: collectives behind which there is work start early, in no more memory."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.ir.mesh import Mesh
from spmd_compiler.ir.verify import verify
from spmd_compiler.passes.estimate import peak_bytes
from spmd_compiler.passes.hardware import PRESETS
from spmd_compiler.passes.optimizations.schedule import order_for_overlap
from spmd_compiler.passes.timeline import Timeline
from spmd_compiler.tools.interpret import run_devices

UNIT = spmd.Hardware("unit", {"default": 1.0}, 1e9, 1.0, 0.0, 8e9)  # an operation, or a byte sent, per second


def names(module):
    return [op.name for op in module.main.body.ops]


def seconds(module, hardware=UNIT):
    return Timeline(module.mesh, hardware, as_written=True).block(module.main.body).total


LATE = """mesh {a=2}
func @main(%x: f32[100], %y: f32[5]) -> (f32[100], f32[10]) {
  %0: f32[100] = add(%x, %x)
  %1: f32[10] = all_gather(%y) axes=["a"] dim=0
  %2: f32[10] = negate(%1)
  %3: f32[100] = multiply(%0, %x)
  return %3, %2
}
"""


def test_collectives_start_early_and_their_users_wait():
    module = ir.parse(LATE)
    assert seconds(module) == pytest.approx(230)  # 20 bytes are sent while nothing is computed
    order_for_overlap(module.main.body, module.mesh, UNIT)
    assert names(module)[0] == "all_gather" and names(module)[-1] != "all_gather"
    assert seconds(module) == pytest.approx(210)


def test_not_on_the_model_of_a_cpu():
    module = ir.parse(LATE)
    order_for_overlap(module.main.body, module.mesh, PRESETS["cpu"])
    assert str(module) == str(ir.parse(LATE))


# an early all-gather of 4,000 bytes would lie beside the 4,000 of %0
FULL = """mesh {a=2}
func @main(%x: f32[1], %y: f32[500]) -> (f32[]) {
  %0: f32[1000] = broadcast_in_dim(%x) broadcast_dimensions=[0]
  %1: f32[1000] = reverse(%0) dimensions=[0]
  %2: f32[1] = slice(%1) start_indices=[0] limit_indices=[1] strides=[1]
  %3: f32[1000] = all_gather(%y) axes=["a"] dim=0
  %4: f32[1] = slice(%3) start_indices=[0] limit_indices=[1] strides=[1]
  %5: f32[1] = add(%2, %4)
  %6: f32[] = reshape(%5)
  return %6
}
"""


def test_the_peak_of_memory_stays():
    module = ir.parse(FULL)
    before, peak = seconds(module), peak_bytes(module.main.body, set())
    order_for_overlap(module.main.body, module.mesh, UNIT)
    assert peak_bytes(module.main.body, set()) <= peak and seconds(module) <= before
    assert names(module).index("all_gather") > names(module).index("reverse")


def generated(seed):
    """Ops that read values at random, some of which are sent."""
    rng = random.Random(seed)
    values = ["%x0", "%x1"]
    lines = ["mesh {a=2, b=2}", "func @main(%x0: f32[6], %x1: f32[6]) -> (f32[6], f32[6]) {"]
    for i in range(rng.randint(5, 40)):
        a, b = (rng.choice(values[-8:]) for _ in range(2))
        text = rng.choice(
            (
                f"add({a}, {b})",
                f"subtract({a}, {b})",
                f"negate({a})",
                f'all_reduce({a}) axes=["a"] kind="max"',
                f'collective_permute({a}) axes=["b"] shift=1 wrap=true',
            )
        )
        lines.append(f"  %v{i}: f32[6] = {text}")
        values.append(f"%v{i}")
    returned = f"  return {values[-1]}, {rng.choice(values[2:])}"
    return ir.parse("\n".join([*lines, returned, "}"]) + "\n")


@pytest.mark.parametrize("seed", range(40))
def test_generated(seed):
    module, ordered, again = (generated(seed) for _ in range(3))
    for one in (ordered, again):
        order_for_overlap(one.main.body, one.mesh, UNIT)
    verify(ordered)
    assert str(ordered) == str(again)
    assert sorted(names(ordered)) == sorted(names(module))
    assert seconds(ordered) <= seconds(module)
    for donated in (set(), set(ordered.main.body.args)):
        given = set(module.main.body.args) if donated else set()
        assert peak_bytes(ordered.main.body, donated) <= peak_bytes(module.main.body, given)
    rng = np.random.default_rng(seed)
    args = [[rng.integers(-9, 9, 6).astype(np.float32) for _ in range(4)] for _ in range(2)]
    for got, want in zip(run_devices(ordered, args), run_devices(module, args), strict=True):
        np.testing.assert_array_equal(got, want)


def test_gradients_are_reduced_behind_the_backward_pass():
    """Data parallel: what a layer's gradient sends goes while the layers below are computed."""

    def loss(weights, x):
        for w in weights:
            x = jnp.tanh(x @ w)
        return (x**2).sum()

    mesh = spmd.create_mesh({"data": 8}, abstract=True)
    shapes = [jax.ShapeDtypeStruct((1024, 1024), np.float32)] * 6
    batch = jax.ShapeDtypeStruct((32768, 1024), np.float32)
    step = spmd.spmd_jit(
        jax.grad(loss),
        mesh=mesh,
        in_layouts=(P(), P("data")),
        out_layouts=P(),
        options=spmd.Options(hardware="h100-nvlink"),
    )
    module = step.lower(shapes, batch).stages["optimize"]
    result = Timeline(Mesh(module.mesh.axes), PRESETS["h100-nvlink"], as_written=True).block(module.main.body)
    exposed = result.total - result.compute
    assert exposed < result.communication / 3
