"""The judge: what the devices compute together is what the global program computes."""

from __future__ import annotations

import numpy as np

from ...ir.graph import Module
from ...ir.text import print_module
from ...ir.verify import verify
from ...passes.pipeline import compile_module
from ..interpret import cut, join, run, run_devices
from .generate import arguments


def failure(module: Module, seed: int = 0) -> str:
    """ "" if the compiled module agrees with the global one bit by bit, else what is wrong: the kind of error first."""
    args = arguments(module, seed)
    try:
        verify(module)
        want = run(module, args)
    except Exception as error:
        return f"generator: {type(error).__name__}: {error}"
    if any(not np.isfinite(np.asarray(w, np.complex128)).all() for w in want):
        return ""  # what is left of rounding shows there
    try:
        stages = compile_module(module)
    except Exception as error:
        return f"compile: {type(error).__name__}: {error}"
    body, mesh = stages["propagate"].main.body, module.mesh
    try:
        shards = [
            cut(a, v.layout, mesh) for a, v in zip(args, body.args, strict=True) if v.layout is not None
        ]
        got = run_devices(stages["optimize"], shards)
        whole = [
            join(g, v.layout, v.type.shape, mesh) for g, v in zip(got, body.returns, strict=True) if v.layout
        ]
    except Exception as error:
        return f"run: {type(error).__name__}: {error}"
    for i, (w, g) in enumerate(zip(want, whole, strict=True)):
        if w.shape != g.shape or w.dtype != g.dtype:
            return f"result {i}: {g.dtype}{g.shape}, not {w.dtype}{w.shape}"
        if not np.array_equal(w, g):
            return f"result {i}: {np.sum(w != g)} of {w.size} elements differ"
    return ""


def kind(text: str) -> str:
    """What two failures share that have one cause, most likely."""
    head = text.split(":")[0]
    return "result" if head.startswith("result") else ":".join(text.split(":")[:2])[:60]


def text_of(module: Module) -> str:
    return print_module(module)
