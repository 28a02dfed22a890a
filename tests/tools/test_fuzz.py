"""The fuzzer: a fixed share of its programs, the programs that once failed, and how it makes a failure small."""

from pathlib import Path

import pytest

from spmd_compiler import ir
from spmd_compiler.passes.rules import table
from spmd_compiler.passes.rules.base import factored, numbered, shape_of
from spmd_compiler.tools.fuzz.__main__ import main
from spmd_compiler.tools.fuzz.check import failure
from spmd_compiler.tools.fuzz.generate import program
from spmd_compiler.tools.fuzz.shrink import shrink

ONCE_FAILED = sorted((Path(__file__).parents[1] / "golden" / "fuzz").glob("*.spmd"))


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "rounding"])
@pytest.mark.parametrize("first", range(0, 200, 40))
def test_programs(first, exact):
    for seed in range(first, first + 40):
        assert not failure(program(seed, exact)), f"seed {seed}"


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


def test_command(capsys):
    assert main(["--seed", "0", "--programs", "5"]) == 0
    assert "5 programs from seed 0 on, 0 failed" in capsys.readouterr().out
