"""The plain module in the StableHLO reference interpreter, the annotated one partitioned and run."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _stablehlo

import spmd_compiler as spmd
from spmd_compiler.ir.context import make_context

from .annotate import STYLES
from .programs import Body, draw_program
from .writer import Writer


def draw_arguments(rng: Random, program: Body) -> list[np.ndarray]:
    generator = np.random.default_rng(rng.getrandbits(32))
    return [
        generator.integers(-9, 9, t.shape).astype(np.int32)
        if t.dtype == "i32"
        else generator.uniform(-2, 2, t.shape).astype(np.float32)
        for t in program.args
    ]


def expected(plain: str, arguments: list[np.ndarray]) -> list[np.ndarray]:
    """What the module computes on one device."""
    context = make_context()
    with context, ir.Location.unknown():
        module = ir.Module.parse(plain)
        data = [ir.DenseElementsAttr.get(np.array(a, order="C"), shape=a.shape) for a in arguments]
        return [np.array(r) for r in _stablehlo.eval_module(module, data)]


def difference(got: np.ndarray, want: np.ndarray) -> str:
    """What is wrong with a result, or ""."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{got.dtype}{got.shape} instead of {want.dtype}{want.shape}"
    if want.dtype.kind != "f":
        return "" if np.array_equal(got, want) else "other integers"
    scale = 2e-4 * max(1.0, float(np.abs(want).max(initial=0)))
    return (
        ""
        if np.allclose(got, want, rtol=1e-4, atol=scale, equal_nan=True)
        else f"off by {np.abs(got - want).max()}"
    )


def check(plain: str, annotated: str, arguments: list[np.ndarray]) -> str:
    """Compares the partitioned module with the plain one: what differs, or ""."""
    want = expected(plain, arguments)
    lowered = spmd.from_stablehlo(annotated)
    got = [np.asarray(x) for x in lowered.compile()(*arguments)]
    wrong = [difference(g, w) for g, w in zip(got, want, strict=True)]
    return "; ".join(f"result {i}: {text}" for i, text in enumerate(wrong) if text)


class Verdict(NamedTuple):
    """`problem`: "" if the annotated module computes what the plain one does."""

    style: str
    plain: str
    annotated: str
    problem: str


def judge(rng: Random, ops: int, even: bool = False) -> Verdict:
    """Draws a program and its annotations, and compares."""
    program = draw_program(rng, ops)
    style = rng.choice(list(STYLES))
    share = rng.choice((0.1, 0.3, 0.6))
    plain, annotated = Writer().module(program), STYLES[style](rng, share, even).module(program)
    arguments = draw_arguments(rng, program)
    try:
        problem = check(plain, annotated, arguments)
    except Exception as error:
        problem = f"{error.__class__.__name__}: {error}"
    return Verdict(style, plain, annotated, problem)
