"""Every program of the scorecard is right and lean here. What Shardy and GSPMD do is in `docs/scorecard.md`."""

import pytest

from benchmarks import hlo

from .registry import BUGS
from .running import Case, switched_on


@pytest.mark.parametrize("name", BUGS)
def test_right_and_lean(name):
    bug = BUGS[name]
    program = bug.build()
    with switched_on(program):
        case = Case(bug, program)
        compiled = case.ours()
        assert case.error(compiled(*case.args)) <= program.tol
        assert hlo.report(compiled)["rs_bytes"] <= bug.sent + 0.5
