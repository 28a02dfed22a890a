"""The fuzzer: a fixed share of its programs, the programs that once failed, and how it makes a failure small."""

from pathlib import Path

import numpy as np
import pytest

from spmd_compiler import ir
from spmd_compiler.passes.rules import table
from spmd_compiler.passes.rules.base import factored, numbered, shape_of
from spmd_compiler.tools.fuzz.__main__ import TIGHT, main
from spmd_compiler.tools.fuzz.check import failure
from spmd_compiler.tools.fuzz.coverage import UNREACHED, Coverage, known_ops
from spmd_compiler.tools.fuzz.generate import arguments, program
from spmd_compiler.tools.fuzz.outside import Outside, Reference
from spmd_compiler.tools.fuzz.rounding import Rounding
from spmd_compiler.tools.fuzz.shrink import shrink
from spmd_compiler.tools.interpret import run

ONCE_FAILED = sorted((Path(__file__).parents[1] / "golden" / "fuzz").glob("*.spmd"))


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "rounding"])
@pytest.mark.parametrize("first", range(0, 36, 12))
def test_programs(first, exact):
    for seed in range(first, first + 12):
        memory = None if seed % TIGHT else 0
        assert not failure(program(seed, exact), memory=memory), f"seed {seed}"


@pytest.mark.parametrize("path", ONCE_FAILED, ids=lambda p: p.stem)
def test_what_once_failed(path):
    assert not failure(ir.parse(path.read_text()))


def test_a_failure_becomes_small(monkeypatch):
    """A wrong rule, that reverses each block by itself, is found, and little but the reverse is left of the program."""

    def wrong(op):
        dims = numbered(shape_of(op.operands[0]))
        return factored([dims], [dims], shape_of(op.operands[0]), lambda b, op, args: b.local(op, args))

    monkeypatch.setitem(table.TABLE, "reverse", wrong)
    module = next(m for m in map(program, range(1000)) if failure(m))
    small = shrink(module)
    assert failure(small)
    assert [op.name for op in small.main.body.ops].count("reverse") == 1
    assert len(small.main.body.ops) <= 4, str(small)


def test_mistakes_in_programs_that_round(monkeypatch):
    """An expansion that is off by more than rounding is found."""

    def wrong(op):
        dims, shape = numbered(shape_of(op.result)), shape_of(op.result)
        return factored([dims], [dims], shape, lambda b, op, args: [b.op("chlo.atan", args, args[0].type)])

    text = """mesh {a=2}
func @main(%x: f32[8,4] {a,-}) -> (f32[8,4] {a,-}) {
  %0: f32[8,4] = chlo.asinh(%x)
  return %0
}
"""
    assert not failure(ir.parse(text))
    monkeypatch.setitem(table.TABLE, "chlo.asinh", wrong)
    assert failure(ir.parse(text)) == "result 0: 32 of 32 elements differ"


def test_what_rounding_explains():
    """Elements near a cancellation are uncertain, others not."""
    text = """mesh {a=2}
func @main(%x: f32[64] {a}) -> (f32[], f32[64]) {
  %0: f32[] = constant() value=dense<float32[]: 0.5>
  %4: f32[] = reduce(%x, %0) dimensions=[0] ({ (%1: f32[], %2: f32[])
    %3: f32[] = add(%1, %2)
    return %3
  })
  %5: f32[] = subtract(%4, %4)
  %6: f32[64] = sine(%x)
  return %5, %6
}
"""
    module = ir.parse(text)
    args = arguments(module)
    want = run(module, args)
    rounding = Rounding(module, args, want, 64.0)
    assert rounding.judge(1, want[1] * np.float32(1.01)).differ == 64
    assert rounding.judge(1, want[1] * np.float32(1 + 1e-6)).agree == 64
    assert (
        rounding.judge(0, want[0] + np.float32(1e-9)).differ == 1
    )  # the same number twice cancels without error
    assert rounding.judge(1, np.full(64, np.nan, np.float32)).differ == 64


def test_every_op_is_reached():
    coverage = Coverage()
    for seed in range(800):
        coverage.add(program(seed, exact=seed % 2 == 0))
    assert not coverage.missing
    assert not set(UNREACHED) & set(coverage.programs)
    assert set(UNREACHED) <= known_ops()


def test_others_agree():
    outside = Outside()
    for seed in (2, 5, 6):
        assert not outside.failure(program(seed))
        assert not outside.failure(program(seed, False))
    outside.close()


SELECTS = """mesh {a=2}
func @main(%x: f32[13,9] {a,-}, %s: f32[5,10] {-,-}) -> (f32[13,9]) {
  %3: f32[] = constant() value=dense<float32[]: 2.0>
  %10: f32[13,9] = select_and_scatter(%x, %s, %3) window_dimensions=[2,2] window_strides=[3,1] padding=[[1,1],[1,1]] ({ (%4: f32[], %5: f32[])
    %6: i1[] = compare(%4, %5) comparison_direction="GE" compare_type="FLOAT"
    return %6
  }, { (%7: f32[], %8: f32[])
    %9: f32[] = add(%7, %8)
    return %9
  })
  return %10
}
"""  # the elements are small integers: many are equal


@pytest.mark.parametrize("direction", ["GE", "LT"])
def test_the_reference_judges_selections(direction):
    """By itself it adds the init with every source. Of equal elements a window selects by its order; XLA's CPU backend takes
    the elements of padded windows in another one."""
    module = ir.parse(SELECTS.replace("GE", direction))
    args = arguments(module)
    want, reference = run(module, args), Reference()
    (got,) = reference.run(module, args)
    np.testing.assert_allclose(got, want[0], rtol=1e-5)
    reference.close()
    outside = Outside()
    assert not outside.failure(module)
    assert outside.refused == 0
    outside.close()


def test_command(capsys):
    assert main(["--seed", "0", "--programs", "5"]) == 0
    assert "5 programs from seed 0 on, 0 failed" in capsys.readouterr().out
