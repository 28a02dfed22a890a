"""All-to-alls as programs for CPUs have them: from slices that XLA compiles once."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.ir.exporter import export_module
from spmd_compiler.ir.graph import Block, Function, Module, Op, Value
from spmd_compiler.ir.mesh import Mesh
from spmd_compiler.ir.types import TensorType


def exchange(shape, split, concat, n):
    """A module of one all-to-all over n devices."""
    size = list(shape)
    size[split] //= n
    size[concat] *= n
    x, y = Value(TensorType(shape, "f32")), Value(TensorType(tuple(size), "f32"))
    op = Op(
        "all_to_all", [x], [y], {"axes": ("a",), "split_dim": split, "concat_dim": concat, "cause": "test"}
    )
    return Module(Mesh([("a", n)]), {"main": Function("main", Block([x], [op], [y]))})


def test_only_where_it_helps():
    assert "dynamic_slice" in str(export_module(exchange((8, 8), 0, 1, 4), slices=True))
    for text in (
        export_module(exchange((8, 8), 0, 1, 4)),
        export_module(exchange((8, 8), 0, 1, 2), slices=True),
        export_module(exchange((0, 8), 0, 1, 4), slices=True),
    ):
        assert "dynamic_slice" not in str(text)


@pytest.mark.parametrize(
    ("shape", "source", "target"),
    [
        ((64, 48), P("a"), P(None, "a")),
        ((24, 8), P(None, "a"), P("a")),
        ((3, 16, 5, 8), P(None, None, None, "a"), P(None, "a")),
        ((8, 13), P("a"), P(None, "a")),  # cut unevenly
    ],
)
def test_xla_compiles_equal_slices(shape, source, target):
    """Kernels that XLA shares have equal texts, but for names."""
    if jax.device_count() < 8:
        pytest.skip("needs 8 virtual devices")
    mesh = spmd.create_mesh([("a", 8)])
    cut = spmd.Layout([*target, *(None,) * (len(shape) - len(target))], mesh)
    step = spmd.spmd_jit(lambda x: spmd.relayout(x, cut) + 1, mesh=mesh, in_layouts=(source,))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    lowered = step.lower(x)
    exchanges = [c.kind for c in lowered.collectives()].count("all_to_all")
    compiled = lowered.compile()
    np.testing.assert_array_equal(compiled(x), x + 1)
    kernels = re.findall(r"^%?(?:fused|wrapped)[^\n]*\{\n(.*?)^\}", compiled.as_text(), re.M | re.S)
    sliced = [re.sub(r"metadata=\{[^}]*\}|%[\w.-]+", "", k) for k in kernels if "dynamic-slice(" in k]
    assert len(sliced) == 8 * exchanges and 0 < len(set(sliced)) <= 2 * exchanges
