"""Arguments that share an axis with others may lie on one that the program leaves idle."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.ir import parse
from spmd_compiler.ir.layout import Layout
from spmd_compiler.passes.search.idle_axes import on_idle_axes
from tests.variants import lowered


@pytest.mark.parametrize(
    ("layouts", "moved"),
    [
        (("{a,-}", "{a.b,-}"), {0: Layout((("c",), ()))}),
        (("{a,b}", "{-,a}"), {1: Layout(((), ("c",)))}),
        (("{a,-}", "{-,a}"), {}),  # on the same axes: nothing tells one from the other
        (("{a,-}", "{b,-}"), {}),  # no axis is shared
        (("{a,-}", "{a.c,-}"), {0: Layout((("b",), ()))}),
        (("{a,c}", "{a.b,-}"), {}),  # no axis is idle
        (("{d,-}", "{d.a,-}"), {}),  # none that is idle has the size of the one that is shared
    ],
)
def test_the_smallest_arguments_on_a_shared_axis_move(layouts, moved):
    rows = (32, 64) if layouts != ("{a,b}", "{-,a}") else (64, 32)
    args = ", ".join(
        f"%a{i}: f32[{n},64] {layout}" for i, (n, layout) in enumerate(zip(rows, layouts, strict=True))
    )
    mesh = "mesh {a=4, b=4, c=4, d=2}"
    module = parse(f"{mesh}\nfunc @main({args}) -> (f32[{rows[0]},64] {{-,-}}) {{\n  return %a0\n}}\n")
    assert on_idle_axes(module) == {module.main.body.args[i]: x for i, x in moved.items()}


def test_batch_and_weights_no_longer_compete():
    """The batch of a transformer block goes to the idle axis: half of the bytes that are sent without that."""
    assert lowered("block_2d_fwd_scan~4").comm_bytes() <= 3_600_000


def test_a_product_is_shared_over_an_axis_that_nothing_is_on():
    """Of two matrices on two axes a device takes what the third one leaves it, instead of gathering a panel of each."""
    assert lowered("matmul_2d_2d~many1", 5).comm_bytes() < 1_700_000 < 2 * 1536 * 384 * 4 * 3 / 4


def gradient(x, y, w):
    return w - jax.grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).sum())(w)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 virtual devices")
def test_gradients_are_reduced_in_parts():
    """ZeRO-1 with an axis to spare: what each device reduces is a part of what it did, and so is what it gathers."""
    mesh, layouts = spmd.create_mesh({"data": 4, "spare": 2}), (P("data"), P("data"), P())
    args = [
        np.random.default_rng(0).normal(size=s).astype(np.float32)
        for s in ((1024, 256), (1024, 512), (256, 512))
    ]
    step = spmd.spmd_jit(gradient, mesh=mesh, in_layouts=layouts, out_layouts=P("data"))
    low = step.lower(*args)
    assert any("spare" in c.axes for c in low.collectives())
    assert low.comm_bytes() < args[2].nbytes * 0.7  # a reduce-scatter over `data` alone sends 0.75
    np.testing.assert_allclose(step(*args), gradient(*args), rtol=1e-4, atol=1e-3)
    assert lowered("zero1_adam_train~many1", 5).comm_bytes() < 9_700_000
