"""A fixed share of `benchmarks.fuzz_stablehlo`: modules with random annotations compute what plain ones do."""

from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from benchmarks.modules.annotate import STYLES
from benchmarks.modules.check import difference, judge
from benchmarks.modules.mistakes import judge_mistakes, with_mistake
from benchmarks.modules.programs import draw_program
from tests.share import examples


@given(st.integers(0, 1 << 20))
@examples(60, derandomize=True, suppress_health_check=list(HealthCheck))
def test_annotated_modules_compute_what_plain_ones_do(seed):
    found = judge(Random(seed), 8)
    assert not found.problem, found.annotated


@given(st.integers(0, 1 << 20))
@examples(40, derandomize=True, suppress_health_check=list(HealthCheck))
def test_mistakes_in_annotations_are_clear_errors(seed):
    problem = judge_mistakes(Random(seed), 5, count=4)
    assert not problem, problem


def test_a_mistake_changes_one_place():
    text = STYLES["hlo"](Random(1), 0.9).module(draw_program(Random(1), 5))
    broken = {with_mistake(Random(seed), text) for seed in range(20)}
    assert len(broken) > 10
    assert all(abs(len(b) - len(text)) < 9 for b in broken)


@pytest.mark.parametrize("style", STYLES)
def test_what_is_written_is_annotated(style):
    rng = Random(5)
    text = STYLES[style](rng, 0.9).module(draw_program(rng, 12))
    marks = {
        "shardy": "#sdy.sharding<",
        "round trip": "xla.sdy.sharding",
        "hlo": "devices=[",
        "named": "{mesh[",
    }
    assert text.count(marks[style]) > 3


def test_differences_are_seen():
    x = np.arange(4, dtype=np.float32)
    assert not difference(x, x + 1e-6)
    assert difference(x, x + 0.5) == "off by 0.5"
    assert difference(x, x[:2]) == "float32(4,) instead of float32(2,)"
    assert difference(x.astype(np.int32), np.arange(1, 5, dtype=np.int32)) == "other integers"
