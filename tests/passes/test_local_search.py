"""Moves after the dynamic programming: what each finds that the decisions of one axis at a time don't."""

import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.passes import cost, exact, propagate
from spmd_compiler.passes.joint_moves import joint_moves
from spmd_compiler.passes.propagate import Propagate
from spmd_compiler.passes.simplify import Simplify

MESH = spmd.create_mesh({"a": 2, "b": 4})


def imported(function, args, layouts):
    step = spmd.spmd_jit(function, mesh=MESH, in_layouts=layouts)
    return Simplify()(cost.priced(ir.parse(step.lower(*args).as_text("import")), None))


def without_moves(module, monkeypatch):
    """The assignment that the dynamic programming finds alone."""
    with monkeypatch.context() as patch:
        patch.setattr(propagate, "local_search", lambda engine, body: None)
        return Propagate().assigned(module)[0]


def lookup(table, ids):
    return table[ids]


LOOKUP = np.zeros((4096, 256), np.float32), np.arange(2048, dtype=np.int32).reshape(16, 128)


def test_both_axes_of_a_lookup_move_onto_its_features_together(monkeypatch):
    """Moving one of them alone costs as much as it saves."""
    module = imported(lookup, LOOKUP, (P("b"), P("a")))
    engine = without_moves(module, monkeypatch)
    before = engine.total()
    gain = joint_moves(engine)
    assert gain > 0.1 * before
    assert engine.total() == pytest.approx(before - gain)
    exact.solve(engine, module.main.body, 20)
    assert Propagate().assigned(module)[0].total() == pytest.approx(engine.total(), rel=1e-3)


def test_the_moved_lookup_is_right():
    table = np.random.RandomState(0).randn(4096, 256).astype(np.float32)
    step = spmd.spmd_jit(lookup, mesh=MESH, in_layouts=(P("b"), P("a")))
    np.testing.assert_array_equal(step(table, LOOKUP[1]), lookup(table, LOOKUP[1]))


def test_nothing_moves_where_nothing_is_sent(monkeypatch):
    module = imported(lambda x, w: x @ w, (np.zeros((8, 8)), np.zeros((8, 8))), (P("a"), P(None, "b")))
    engine = without_moves(module, monkeypatch)
    choices = dict(engine.choices)
    assert joint_moves(engine) == 0
    assert engine.choices == choices
