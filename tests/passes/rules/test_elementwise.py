"""Which conversions pass partial sums on."""

import pytest

from spmd_compiler.ir.graph import Op, Value
from spmd_compiler.ir.types import TensorType
from spmd_compiler.passes.rules.elementwise import elementwise


@pytest.mark.parametrize(
    ("source", "target", "passes"),
    [
        ("f32", "f32", True),  # JAX writes such for a number of Python's that a loop carries
        ("bf16", "bf16", True),
        ("c64", "c64", True),
        ("bf16", "f32", True),
        ("f32", "bf16", False),  # each term would be rounded
        ("f32", "f64", True),
        ("i32", "i32", True),
        ("i32", "f32", False),
        ("i1", "i1", False),
    ],
)
def test_conversions_of_partial_sums(source: str, target: str, passes: bool):
    op = Op("convert", [Value(TensorType((4,), source))], [Value(TensorType((4,), target))])
    found = any(s.operands == s.results == ("sum",) for s in elementwise(op).strategies)
    assert found == passes
