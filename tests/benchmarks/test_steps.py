"""The table of steps beside Shardy's: both parts are measured, and the slowest come first."""

from benchmarks import steps


def test_both_step_in_turn():
    ratios = steps.measure("roll_blocks", 1)
    assert ratios is not None
    assert ratios.step > 0
    assert ratios.compile > 0
    assert ratios.sent <= ratios.theirs


def test_slowest_first():
    quick, slow = steps.Ratios(0.5, 1.0, 0.5, 10.0, 20.0), steps.Ratios(2.0, 1.0, 0.5, 10.0, 20.0)
    text = steps.report({"quick": quick, "slow": slow}, ["failed"])
    assert text.index("| slow |") < text.index("| quick |")
    assert "step x 1.00, above 1.05 in 1" in text
    assert "not timed: failed" in text
