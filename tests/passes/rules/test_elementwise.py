"""Which elementwise ops pass partial sums on."""

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.ir.graph import Dense, Op, Value
from spmd_compiler.ir.types import TensorType
from spmd_compiler.passes.rules.elementwise import divide, elementwise


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


@pytest.mark.parametrize(
    ("divisor", "passes"), [(8.0, True), (0.0, False), (float("inf"), False), (None, False)]
)
def test_sums_that_are_divided(divisor, passes):
    """Terms of a sum, divided by zero, are infinite with either sign: their sum would be NaN."""
    x, y = Value(TensorType((4,), "f32")), Value(TensorType((4,), "f32"))
    scalars = {} if divisor is None else {y: Dense(np.array(divisor, np.float32), splat=True)}
    rule = divide(Op("divide", [x, y], [Value(TensorType((4,), "f32"))]), scalars)
    assert any(s.operands[0] == "sum" and s.results == ("sum",) for s in rule.strategies) == passes


def test_a_sum_over_devices_may_be_divided_by_zero():
    if jax.device_count() < 2:
        pytest.skip("needs virtual devices")
    mesh = spmd.create_mesh({"a": 2}, devices=jax.devices()[:2])

    def fun(x, w, n):
        return ((x @ w) / n).sum(0)

    x, w = np.array([[-1, 3]], np.float32), np.ones((2, 2), np.float32)
    step = spmd.spmd_jit(fun, mesh=mesh, in_layouts=(P(None, "a"), P("a"), P()))
    np.testing.assert_array_equal(step(x, w, np.zeros(2, np.float32)), np.full(2, np.inf))
