"""chlo.ragged_dot, which JAX writes for GPUs and TPUs. The rule checker tries every strategy."""

import jax
import numpy as np
import pytest
from jax import lax

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.ir.importer import import_module
from spmd_compiler.ir.layout import Layout
from spmd_compiler.passes.pipeline import compile_module
from spmd_compiler.passes.report import collectives
from spmd_compiler.tools.fuzz.check import failure

ROWS, COLUMNS, INNER = Layout((("a",), ())), Layout(((), (), ("a",))), Layout(((), ("a",), ()))
WHOLE = {2: Layout.replicated(2), 3: Layout.replicated(3)}

GROUPED = """mesh {a=4}
func @main(%x: i32[12,8], %w: i32[3,8,4]) -> (i32[12,4]) {
  %s: i32[3] = constant() value=dense<int32[3]: SIZES>
  %y: i32[12,4] = chlo.ragged_dot(%x, %w, %s) lhs_batching_dimensions=[] rhs_batching_dimensions=[] lhs_contracting_dimensions=[1] rhs_contracting_dimensions=[1] lhs_ragged_dimensions=[0] rhs_group_dimensions=[0]
  return %y
}
"""
PAIRED = """mesh {a=4}
func @main(%x: i32[12,8], %y: i32[12,4]) -> (i32[3,8,4]) {
  %s: i32[3] = constant() value=dense<int32[3]: SIZES>
  %w: i32[3,8,4] = chlo.ragged_dot(%x, %y, %s) lhs_batching_dimensions=[] rhs_batching_dimensions=[] lhs_contracting_dimensions=[0] rhs_contracting_dimensions=[0] lhs_ragged_dimensions=[0] rhs_group_dimensions=[]
  return %w
}
"""


def program(text, sizes, *layouts):
    module = ir.parse(text.replace("SIZES", sizes))
    *args, result = layouts
    for value, layout in zip(module.main.body.args, args, strict=True):
        value.layout = layout
    module.main.result_attrs[0]["layout"] = result
    return module


def sent(module):
    return [(c.kind, c.bytes_per_device) for c in collectives(compile_module(module)["optimize"])]


@pytest.mark.parametrize("sizes", ["5 0 7", "1 2 3", "0 12 0"])
@pytest.mark.parametrize(
    ("text", "layouts", "bytes"),
    [
        (GROUPED, (ROWS, WHOLE[3], ROWS), 0),
        (GROUPED, (WHOLE[2], COLUMNS, Layout(((), ("a",)))), 0),
        (GROUPED, (Layout(((), ("a",))), INNER, WHOLE[2]), 2 * 3 / 4 * 12 * 4 * 4),
        # columns of x in exchange for its rows, and all of y
        (PAIRED, (ROWS, ROWS, INNER), 3 / 4 * 3 * 8 * 4 + 3 * 3 * 4 * 4),
        (PAIRED, (Layout(((), ("a",))), WHOLE[2], INNER), 0),
    ],
)
def test_numbers_and_bytes(text, layouts, bytes, sizes):
    module = program(text, sizes, *layouts)
    assert sum(n for _, n in sent(module)) == bytes
    assert not failure(module)


def test_what_jax_writes_for_gpus_is_sharded():
    """Rows on all devices, the weights whole: only their gradient is reduced."""
    mesh = spmd.create_mesh({"data": 8}, abstract=True)
    args = (
        jax.ShapeDtypeStruct((8192, 64), np.float32),
        jax.ShapeDtypeStruct((8, 64, 256), np.float32),
        jax.ShapeDtypeStruct((8,), np.int32),
    )

    def loss(x, w, sizes):
        return (lax.ragged_dot(x, w, sizes) ** 2).sum()

    text = jax.jit(jax.grad(loss, 1)).trace(*args).lower(lowering_platforms=("cuda",)).as_text()
    assert "chlo.ragged_dot" in text
    module = import_module(text, mesh)
    module.main.body.args[0].layout = Layout((("data",), ()))
    for value in module.main.body.args[1:]:
        value.layout = Layout.replicated(value.type.rank)
    module.main.result_attrs[0]["layout"] = Layout.replicated(3)
    assert sent(module) == [("all_reduce", 2 * 7 / 8 * args[1].size * 4)]
