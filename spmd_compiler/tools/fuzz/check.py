"""The judge: what the devices compute together is what the global program computes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from ...ir.graph import Module
from ...ir.verify import verify
from ...passes.pipeline import Target, compile_module
from ..interpret import cut, join, run, run_devices
from .generate import arguments, is_exact
from .rounding import Account, Rounding


class Verdict(NamedTuple):
    """`text`: "" if all agree, else what is wrong, the kind of error first. `account`: of the elements compared."""

    text: str = ""
    account: Account = Account()


def failure(module: Module, seed: int = 0, memory: float | None = None) -> str:
    """ "" if the compiled module agrees with the global one, else what is wrong; see `judge`."""
    return judge(module, seed, memory).text


def judge(module: Module, seed: int = 0, memory: float | None = None) -> Verdict:
    """Compares the results of the compiled module with those of the global one: bit by bit if nothing in it rounds.
    `seed`: of the arguments. `memory`: bytes of a device that it is compiled for; with 0 all that can be is gathered again."""
    args = arguments(module, seed)
    try:
        verify(module)
        want = run(module, args)
    except Exception as error:
        return Verdict(f"generator: {type(error).__name__}: {error}")
    try:
        stages = compile_module(module, target=Target(memory=memory))
    except Exception as error:
        return Verdict(f"compile: {type(error).__name__}: {error}")
    try:
        got = on_devices(stages, args)
    except Exception as error:
        return Verdict(f"run: {type(error).__name__}: {error}")
    return compare(module, args, want, got)


def on_devices(stages: Mapping[str, Module], args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """What the devices of a compiled program compute together, of whole arguments."""
    body, mesh = stages["propagate"].main.body, stages["propagate"].mesh
    shards = [cut(a, v.layout, mesh) for a, v in zip(args, body.args, strict=True) if v.layout is not None]
    out = run_devices(stages["optimize"], shards)
    return [join(g, v.layout, v.type.shape, mesh) for g, v in zip(out, body.returns, strict=True) if v.layout]


def compare(
    module: Module,
    args: Sequence[np.ndarray],
    want: Sequence[np.ndarray],
    got: Sequence[np.ndarray],
    tolerance: float = 64.0,
) -> Verdict:
    """`want`: what the interpreter computes; `tolerance`: units in the last place by which anything may differ."""
    rounding = Rounding(module, args, want, tolerance)
    exact, total = is_exact(module), Account()
    for i, (w, g) in enumerate(zip(want, got, strict=True)):
        if w.shape != g.shape or w.dtype != g.dtype:
            return Verdict(f"result {i}: {g.dtype}{g.shape}, not {w.dtype}{w.shape}")
        account = _bits(w, g) if exact else rounding.judge(i, g)
        if account.differ:
            return Verdict(f"result {i}: {account.differ} of {w.size} elements differ", account)
        total = total.plus(account)
    return Verdict("", total)


def _bits(want: np.ndarray, got: np.ndarray) -> Account:
    """What is left of sums without a number shows in other ways: NaN here, infinity there."""
    same = (want == got) | ((want != want) & (got != got))
    with np.errstate(all="ignore"):
        lost = ~same & ~np.isfinite(want.astype(np.complex128))
    return Account(int((~same & ~lost).sum()), int(same.sum()), 0, int(lost.sum()))


def kind(text: str) -> str:
    """What two failures share that have one cause, most likely."""
    head = text.split(":")[0]
    return "result" if head.startswith("result") else ":".join(text.split(":")[:2])[:60]
