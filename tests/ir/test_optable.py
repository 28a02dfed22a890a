"""What the op table says of effects, arity and reducers."""

import jax
import jax.numpy as jnp
import pytest

from spmd_compiler.ir.graph import Block, Op, Value
from spmd_compiler.ir.importer import import_module
from spmd_compiler.ir.mesh import Mesh
from spmd_compiler.ir.optable import is_pure, may_merge, reducer_kind, terminator
from spmd_compiler.ir.types import TensorType

F32, I1 = TensorType((), "f32"), TensorType((), "i1")


def reducer(name, type=F32, order=(0, 1)):
    args, result = [Value(type), Value(type)], Value(type)
    return Block(args, [Op(name, [args[i] for i in order], [result])], [result])


@pytest.mark.parametrize(
    ("name", "type", "kind"),
    [
        ("add", F32, "sum"),
        ("multiply", F32, "mul"),
        ("maximum", F32, "max"),
        ("minimum", F32, "min"),
        ("or", I1, "or"),
        ("xor", I1, "xor"),
        ("add", I1, "or"),
        ("minimum", I1, "and"),
        ("subtract", F32, None),
    ],
)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_reducer_kind(name, type, kind, order):
    assert reducer_kind(reducer(name, type, order)) == kind


def test_other_reducers_have_no_kind():
    assert reducer_kind(reducer("add", order=(0, 0))) is None
    swapped = reducer("add")
    swapped.returns = [swapped.args[0]]
    assert reducer_kind(swapped) is None
    module = import_module(jax.jit(jnp.argmax).lower(jnp.ones(5)).compiler_ir(), Mesh([("x", 1)]))
    (reduce,) = (op for op in module.walk() if op.name == "reduce")
    assert reducer_kind(reduce.regions[0]) is None


def op(name, results=1, regions=(), **attrs):
    return Op(name, [], [Value(F32) for _ in range(results)], attrs, regions)


def test_effects():
    assert is_pure(op("add"))
    assert is_pure(op("chlo.top_k", 2))
    assert is_pure(op("custom_call", call_target_name="foo"))
    assert is_pure(op("all_reduce", axes=("x",), kind="sum"))
    assert not is_pure(op("custom_call", has_side_effect=True))
    assert not is_pure(op("rng"))
    assert not is_pure(op("call", callee="f"))
    assert not is_pure(op("sdy.sharding_group", 0))
    assert not is_pure(op("foo.unknown"))
    assert is_pure(op("while", regions=(reducer("add"),)))
    assert not is_pure(op("while", regions=(Block([], [op("outfeed")], []),)))


def test_barriers_may_go_but_not_merge():
    barrier = op("optimization_barrier")
    assert is_pure(barrier)
    assert not may_merge(barrier)
    assert may_merge(op("add"))


def test_tables_agree():
    assert terminator("while") == "stablehlo.return"
    assert terminator("manual_computation") == "sdy.return"
