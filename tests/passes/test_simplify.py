"""Branches that are known to be taken stand in the program itself."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.passes.simplify import Simplify

BRANCHES = """mesh {{a=2}}
func @main(%x: f32[4] {{-}}) -> (f32[4] {{-}}) {{
  %0: i32[] = constant() value=dense<int32[]: {index}>
  %4: f32[4] = case(%0) ({{ ()
    %1: f32[4] = negate(%x)
    return %1
  }}, {{ ()
    %2: f32[4] = sine(%x)
    return %2
  }}, {{ ()
    return %x
  }})
  return %4
}}
"""


@pytest.mark.parametrize(("index", "names"), [(0, ["negate"]), (1, ["sine"]), (2, []), (7, []), (-1, [])])
def test_a_constant_takes_a_branch(index, names):
    module = Simplify()(ir.parse(BRANCHES.format(index=index)))
    assert [op.name for op in module.walk()] == names


@pytest.mark.parametrize("index", [-3, 0, 1, 9])
def test_as_jax_takes_them(index):
    mesh = spmd.create_mesh({"a": 2}, abstract=True)

    def fun(x):
        x = lax.switch(index, [jnp.sin, jnp.cos, lambda x: x.sum() + x], x)
        return lax.cond(index > 0, jnp.negative, lambda x: lax.cond(index < 0, jnp.exp, jnp.tanh, x), x)

    x = jax.ShapeDtypeStruct((8,), np.float32)
    lowered = spmd.spmd_jit(fun, mesh=mesh, in_layouts=P("a")).lower(x)
    names = {op.name for op in ir.parse(lowered.as_text("propagate")).walk()}
    assert "case" not in names
    assert ("sine" in names, "cosine" in names, "reduce" in names) == (index <= 0, index == 1, index > 1)
    assert ("exponential" in names, "tanh" in names, "negate" in names) == (index < 0, index == 0, index > 0)


def test_what_data_tells_stays_a_branch():
    text = BRANCHES.format(index=0).replace("%x: f32[4] {-}", "%x: f32[4] {-}, %0: i32[] {}")
    text = "\n".join(line for line in text.splitlines() if "constant" not in line)
    assert [op.name for op in Simplify()(ir.parse(text)).walk()].count("case") == 1


def test_what_has_the_type_already_is_not_converted():
    text = """mesh {a=2}
func @main(%x: f32[4] {-}) -> (f32[4] {-}) {
  %0: f32[4] = convert(%x)
  %1: f64[4] = convert(%0)
  %2: f32[4] = convert(%1)
  return %2
}
"""
    module = Simplify()(ir.parse(text))
    assert [op.name for op in module.walk()] == ["convert", "convert"]


def test_an_index_by_a_truth_value():
    """2, as a truth value, is 1."""
    text = (
        BRANCHES.format(index=2)
        .replace("case(%0)", "case(%9)")
        .replace("  %4:", "  %8: i1[] = convert(%0)\n  %9: i32[] = convert(%8)\n  %4:")
    )
    assert "sine" in str(Simplify()(ir.parse(text)))
