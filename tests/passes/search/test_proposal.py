"""Changes of an assignment: which stay, and how its states are told apart."""

import random

import pytest

from spmd_compiler.ir.optable import CONTROL_FLOW
from spmd_compiler.passes.cost import priced
from spmd_compiler.passes.pipeline import PREPARE
from spmd_compiler.passes.propagate import Propagate
from spmd_compiler.passes.search.axis_ways import FIXED
from spmd_compiler.passes.search.dynamic import View, improve
from spmd_compiler.passes.search.proposal import take
from spmd_compiler.tools.fuzz.generate import program


def forwarded(seed):
    """A random program under plain propagation, and the ops that may run in other ways."""
    module = priced(program(seed), None)
    for run in PREPARE:
        module = run(module)
    engine, _ = Propagate(sweeps=0).assigned(module)
    return engine, module, [op for op in engine.choices if op.name not in (*CONTROL_FLOW, *FIXED)]


@pytest.mark.parametrize("seed", range(40))
def test_a_change_stays_if_the_program_gets_cheaper(seed):
    """Though it is mostly refused without knowing what it costs."""
    engine, _, ops = forwarded(seed)
    rng = random.Random(seed)
    for op in rng.sample(ops, min(len(ops), 12)):
        for axis in engine.mesh.shape:
            now = engine.choices[op]
            for way in engine.book.rule(op).variants(op, now, axis, frozenset(), engine.mesh):
                if way.order and not any(x.blocks for x in (*way.demands, *way.results)):
                    before, present = engine.total(), engine.choices[op]
                    gain = take(engine, {op: way})
                    assert engine.total() == pytest.approx(before - gain, abs=1e-3)
                    if gain:
                        assert gain > 0
                        continue
                    assert engine.choices[op] is present
                    engine.change(op, way)
                    assert engine.total() >= before - 1e-5 * before - 1e-3
                    engine.change(op, present)


@pytest.mark.parametrize("seed", range(20))
def test_equal_states_have_one_number(seed):
    """Whichever way led there; others have others."""
    engine, module, _ = forwarded(seed)
    engine.moved()
    start = engine.state()
    improve(engine, module.main.body, (View.ALONE,), leap=True)
    engine.moved()
    changed = engine.choices != start.choices
    assert (engine.memory.state != start.number) == changed
    engine.restore(start)
    engine.moved()
    assert engine.memory.state == start.number
    for op, choice in list(engine.choices.items()):
        if op.name not in (*CONTROL_FLOW, *FIXED):
            engine.change(op, choice)
    engine.moved()
    assert engine.memory.state == start.number
