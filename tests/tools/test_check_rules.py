"""The rule checker: a share of it, its page, and that it finds a wrong rule."""

from pathlib import Path

import pytest

from spmd_compiler.passes.rules import table
from spmd_compiler.passes.rules.base import factored, numbered, shape_of
from spmd_compiler.tools.check_rules.__main__ import main
from spmd_compiler.tools.check_rules.cases import cases
from spmd_compiler.tools.check_rules.judge import judge

PAGE = Path(__file__).parents[2] / "docs" / "ops.md"
# tested with the passes that make them
MADE_BY_PASSES = {"splice", "dynamic_roll", "padded_select_and_scatter"}


@pytest.mark.parametrize("op", sorted(table.TABLE))
def test_every_strategy_is_right(op):
    found = [judge(module) for module in cases(op, 1)]
    assert not [text for v in found for text in v.incorrect]
    if op not in MADE_BY_PASSES | NO_KIND:
        assert found


NO_KIND = {
    "rng_bit_generator",
    "sharding_constraint",
    "enter_manual",
    "leave_manual",
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "all_to_all",
    "collective_permute",
    "collective_broadcast",
}  # those of manual regions: tests/passes/test_open_regions.py


def test_it_finds_what_is_wrong_and_what_is_missing(monkeypatch):
    def wrong(op):
        shape = shape_of(op.operands[0])
        return factored([numbered(shape)], [numbered(shape)], shape, lambda b, op, args: b.local(op, args))

    def none(op):
        rank = len(shape_of(op.operands[0]))
        return factored([(None,) * rank], [(None,) * rank], (), lambda b, op, args: b.local(op, args))

    monkeypatch.setitem(table.TABLE, "reverse", wrong)
    assert any(judge(module).incorrect for module in cases("reverse", 4))
    monkeypatch.setitem(table.TABLE, "transpose", none)
    assert any(judge(module).missing for module in cases("transpose", 4))


def test_page(tmp_path):
    assert main(["--docs", str(tmp_path / "ops.md")]) == 0
    assert (tmp_path / "ops.md").read_text() == PAGE.read_text(), "run spmd-check-rules --docs docs/ops.md"


def test_command(capsys):
    assert main(["abs", "--cases", "1"]) == 0
    assert "0 incorrect" in capsys.readouterr().out
