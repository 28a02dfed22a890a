"""Mistakes in annotations: what is accepted afterwards must still be right, and what is not must be a clear error."""

from __future__ import annotations

import re
from random import Random

import spmd_compiler as spmd

from .annotate import STYLES
from .programs import draw_program

# The strings, which MLIR takes as they are; Shardy's own attributes it checks before we see them.
_STRING = re.compile(r'(?:mhlo\.sharding|xla\.sdy\.\w+) = "((?:[^"\\]|\\.)*)"')
_SIGNS = "{}[]<>(),=?:@#-Tp01239ax "


def with_mistake(rng: Random, text: str) -> str:
    """The text with a character or a number of one of its annotations dropped, changed, doubled or put in."""
    found = [m for m in _STRING.finditer(text) if m[1]]
    if not found:
        return text
    span = rng.choice(found)
    at = rng.randrange(span.start(1), span.end(1))
    kind = rng.randrange(5)
    if kind == 4:
        numbers = [n for n in re.finditer(r"\d+", span[1]) if not span[1][: n.start()].endswith("\\")]
        if numbers:
            number = rng.choice(numbers)
            start, end = span.start(1) + number.start(), span.start(1) + number.end()
            return text[:start] + str(rng.choice((0, 1, 2, 3, 5, 8, 100, 99999999))) + text[end:]
        kind = 0
    if "\\" in text[max(at - 2, 0) : at + 1]:  # not within an escaped character
        return text
    replacement = ("", rng.choice(_SIGNS), text[at] * 2, text[at] + rng.choice(_SIGNS))[kind]
    return text[:at] + replacement + text[at + 1 :]


def judge_mistakes(rng: Random, ops: int, count: int) -> str:
    """What is wrong with how modules with mistakes are taken: any exception but an SpmdError; "" if nothing is."""
    program = draw_program(rng, ops)
    text = STYLES[rng.choice(("round trip", "hlo", "named"))](rng, 0.6).module(program)
    for _ in range(count):
        broken = with_mistake(rng, text)
        try:
            spmd.from_stablehlo(broken)
        except spmd.SpmdError as error:
            if len(str(error)) < 20:
                return f"no help in {str(error)!r}\n{broken}"
        except Exception as error:
            return f"{error.__class__.__name__}: {error}\n{broken}"
    return ""
