"""The best of two assignments, op by op."""

import pytest

from spmd_compiler.ir import parse
from spmd_compiler.passes.cost import priced
from spmd_compiler.passes.pipeline import PREPARE
from spmd_compiler.passes.propagate import Propagate
from spmd_compiler.passes.search.dynamic import View, improve
from spmd_compiler.passes.search.fusion_moves import take_from
from spmd_compiler.passes.search.traffic import Traffic
from spmd_compiler.tools.fuzz.generate import program

CHAIN = """  %{0}0: f32[64,256] = dot_general(%{0}, %{0}w) contract=[1]x[0] batch=[]x[]
  %{0}1: f32[64,256] = tanh(%{0}0)
  %{0}2: f32[64,64] = dot_general(%{0}1, %{0}v) contract=[1]x[0] batch=[]x[]
"""
ARGUMENTS = "%{0}: f32[64,64] {{a,-}}, %{0}w: f32[64,256] {{-,a}}, %{0}v: f32[256,64] {{a,-}}"
TWO = f"""mesh {{a=4}}
func @main({ARGUMENTS.format("x")}, {ARGUMENTS.format("y")}) -> (f32[64,64] {{a,-}}, f32[64,64] {{a,-}}) {{
{CHAIN.format("x")}{CHAIN.format("y")}  return %x2, %y2
}}
"""


def test_each_part_from_where_it_is_better():
    """One assignment repeats all work of the first chain, another one that of the second."""
    module = parse(TWO)
    engine, _ = Propagate().assigned(module)
    good, best, ops = engine.state(), engine.total(), module.main.body.ops
    worse = []
    for chain in (ops[:3], ops[3:]):
        engine.restore(good)
        for op in chain:
            repeated = engine.book.rule(op).way((), (), op.operands, op.results, engine.mesh)
            assert repeated is not None
            engine.change(op, repeated)
        worse.append(engine.state())
    before = engine.total()
    assert before > 1.5 * best
    gain = take_from(engine, worse[0])
    assert engine.total() == pytest.approx(before - gain) == pytest.approx(best)
    assert engine.choices == good.choices


@pytest.mark.parametrize("seed", range(30))
def test_generated(seed):
    """The mixture costs as little as the better one at least, and what is said to be gained is."""
    module = priced(program(seed), None)
    for run in PREPARE:
        module = run(module)
    engine, _ = Propagate(sweeps=0).assigned(module)
    start, states = engine.state(), []
    for views, leap in (((View.PRESENT,), False), ((View.ALONE,), True), ((View.SHARED,), False)):
        engine.restore(start)
        improve(engine, module.main.body, views, leap)
        states.append(engine.state())
    engine.restore(states[0])
    traffic = Traffic(engine.mesh, engine.book)
    for other in states[1:]:
        before, sent = engine.total(), traffic.sent(engine)
        gain = take_from(engine, other, traffic)
        assert gain >= 0 and engine.total() == pytest.approx(before - gain)
        assert traffic.sent(engine) <= sent + 1e-6
