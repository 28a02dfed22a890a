"""Arguments that share an axis with others may lie on one that the program leaves idle."""

import pytest

from spmd_compiler.ir import parse
from spmd_compiler.ir.layout import Layout
from spmd_compiler.passes.idle_axes import on_idle_axes
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
