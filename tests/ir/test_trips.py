"""How often loops run: what is known, and what is only reckoned."""

import pytest

from spmd_compiler import ir
from spmd_compiler.ir.trips import integers_in, known_length, trip_count

LOOP = """mesh {{a=2}}
func @main(%n: i32[]) -> (i32[]) {{
  %0: i32[] = constant() value=dense<int32[]: {start}>
  %9: i32[] = while({begin}) ({{ (%1: i32[])
    %2: i32[] = constant() value=dense<int32[]: {bound}>
    %3: i1[] = compare({test}) compare_type="SIGNED" comparison_direction="{direction}"
    return %3
  }}, {{ (%4: i32[])
    %5: i32[] = constant() value=dense<int32[]: {step}>
    %6: i32[] = {update}
    return %6
  }})
  return %9
}}
"""


def lengths(direction, bound, step, start=0, begin="%0", test="%1, %2", update="add(%4, %5)"):
    """What is reckoned of a loop by itself and in its block, and what is known."""
    text = LOOP.format(
        start=start, begin=begin, test=test, direction=direction, bound=bound, step=step, update=update
    )
    block = ir.parse(text).main.body
    (loop,) = [op for op in block.ops if op.name == "while"]
    known = integers_in(block)
    return trip_count(loop), trip_count(loop, known), known_length(loop, known)


def run(direction, bound, step, start):
    """How often the loop runs; None if more than a thousand times."""
    holds = {"LT": int.__lt__, "LE": int.__le__, "GT": int.__gt__, "GE": int.__ge__, "NE": int.__ne__}
    i, times = start, 0
    while holds[direction](i, bound):
        i, times = i + step, times + 1
        if times > 1000:
            return None
    return times


@pytest.mark.parametrize("direction", ["LT", "LE", "GT", "GE", "NE"])
def test_lengths_are_those_of_the_loop(direction):
    for bound in (-7, 0, 3, 10):
        for step in (-3, -1, 1, 2):
            for start in (-4, 0, 3, 10, 11):
                if (wanted := run(direction, bound, step, start)) is None or wanted:
                    assert lengths(direction, bound, step, start)[1:] == (wanted, wanted)
                else:  # it doesn't begin, whichever way it would count
                    assert lengths(direction, bound, step, start)[2] in (0, None)


def test_the_bound_may_come_first_and_the_step_be_taken_off():
    assert lengths("GT", 10, 1, test="%2, %1")[2] == 10
    assert lengths("GT", 0, 2, 10, update="subtract(%4, %5)")[2] == 5
    assert lengths("LT", 10, 1, update="subtract(%5, %4)")[2] is None


def test_a_loop_from_an_argument_has_no_known_length():
    assert lengths("LT", 10, 1, begin="%n") == (10, 10, None)
