"""How far rounding may carry the results of a program: it runs again and again, a little disturbed wherever it rounds.

Monte Carlo arithmetic (Parker, 1997): the operands and results of ops that round change by a few units in the last
place. What then differs from run to run is as uncertain as the differences are large: small ones where a program is well
conditioned, large ones after a cancellation, another number altogether where a comparison goes the other way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from ...ir.graph import Module, Op
from ..interpret import run

_ACCUMULATE = frozenset(
    [
        "cholesky",
        "convolution",
        "custom_call",
        "dot_general",
        "fft",
        "reduce",
        "reduce_window",
        "scatter",
        "select_and_scatter",
        "triangular_solve",
    ]
)
# Ops that never round.
EXACT = frozenset(
    [
        "abs",
        "and",
        "bitcast_convert",
        "broadcast_in_dim",
        "ceil",
        "chlo.conj",
        "chlo.top_k",
        "clamp",
        "compare",
        "complex",
        "concatenate",
        "dynamic_slice",
        "dynamic_update_slice",
        "floor",
        "gather",
        "imag",
        "iota",
        "is_finite",
        "map",
        "maximum",
        "minimum",
        "negate",
        "not",
        "or",
        "pad",
        "real",
        "remainder",
        "reshape",
        "reverse",
        "round_nearest_afz",
        "round_nearest_even",
        "select",
        "sign",
        "slice",
        "sort",
        "transpose",
        "xor",
    ]
)
_UNITS = 4.0  # in the last place
_RUNS = (6, 40)  # the second number where the first finds a difference
_TOO_MUCH = 0.01  # a spread, relative to the size of a value, beyond which it says nothing
_MANTISSA = {"float32": 23, "float64": 52}
_NOT_FINITE = np.array([np.nan, np.inf, -np.inf])


def epsilon(dtype: np.dtype) -> float:
    """The unit in the last place of 1, in the type that an element or its parts have; 0 for integers."""
    if dtype.kind in "iub":
        return 0.0
    return {"bfloat16": 2.0**-7, "float16": 2.0**-10}.get(
        dtype.name,
        2.0**-23 if dtype.name in ("float32", "complex64") else 2.0**-52 if dtype.kind in "fc" else 2.0**-2,
    )


def _rounds(op: Op) -> bool:
    """Of a reduction: whether what it combines with does."""
    if op.regions and op.name != "sort":
        return not all(inner.name in EXACT for region in op.regions for inner in region.ops)
    return op.name not in EXACT


class _Disturbance:
    """What an op computes, disturbed."""

    def __init__(self, seed: int):
        self.state = np.random.RandomState(seed)

    def __call__(
        self, op: Op, args: list[np.ndarray], compute: Callable[[list[np.ndarray]], list[np.ndarray]]
    ) -> list[np.ndarray]:
        if not _rounds(op):
            return compute(args)
        terms = 1.0
        if op.name in _ACCUMULATE:
            # Errors of long sums grow with their number of terms, at most linearly.
            terms = max(1.0, max(a.size for a in args) / 8)
            args = [self.shaken(a, np.sqrt(terms)) for a in args]
        if op.name == "reduce_precision":
            terms = 2.0 ** (_MANTISSA[args[0].dtype.name] - op.attrs["mantissa_bits"])
        return [self.shaken(x, terms) for x in compute(args)]

    def shaken(self, x: np.ndarray, times: float) -> np.ndarray:
        unit = epsilon(x.dtype) * _UNITS * times
        if not unit:
            return x
        if x.dtype.kind == "c":
            parts = [self.shaken(part, times) for part in (x.real, x.imag)]
            return np.stack(parts, -1).view(x.dtype)[..., 0]
        wide = x.astype(np.float64)
        with np.errstate(all="ignore"):
            wide = wide * (1 + self.state.uniform(-unit, unit, x.shape))
            lost = ~np.isfinite(wide)
            if lost.any():
                wide = np.where(lost, self.state.choice(_NOT_FINITE, x.shape), wide)
            return np.asarray(wide).astype(x.dtype)


class Account(NamedTuple):
    """Elements of results: how many differ, agree, are too uncertain to tell, or have no finite number to compare."""

    differ: int = 0
    agree: int = 0
    uncertain: int = 0
    not_finite: int = 0

    def plus(self, other: Account) -> Account:
        return Account(*(a + b for a, b in zip(self, other, strict=True)))


class Rounding:
    """The results of a module, with as many disturbed ones as it takes to judge others."""

    def __init__(
        self, module: Module, args: Sequence[np.ndarray], want: Sequence[np.ndarray], tolerance: float
    ):
        """tolerance: units in the last place that any two results may differ by."""
        self.module, self.args, self.want, self.tolerance = module, args, want, tolerance
        self.runs: list[list[np.ndarray]] = []

    def judge(self, i: int, got: np.ndarray) -> Account:
        """Of result `i` computed otherwise."""
        near = self._near(self.want[i], got)
        account = Account(agree=near.size)
        for runs in _RUNS:
            if account.agree == near.size and near.all():
                break
            self._run(runs)
            account = self._with_runs(i, got, near)
            if not account.differ:
                break
        return account

    def _near(self, want: np.ndarray, got: np.ndarray) -> np.ndarray:
        same = (want == got) | ((want != want) & (got != got))
        unit = epsilon(want.dtype) * self.tolerance
        if not unit:
            return same
        kind = np.complex128 if want.dtype.kind == "c" else np.float64
        with np.errstate(all="ignore"):
            a, b = want.astype(kind), got.astype(kind)
            return same | (np.abs(a - b) <= unit * np.minimum(np.abs(a), np.abs(b)))

    def _with_runs(self, i: int, got: np.ndarray, near: np.ndarray) -> Account:
        want, runs = self.want[i], [r[i] for r in self.runs]
        if not epsilon(want.dtype):
            doubt = np.any([r != want for r in runs], axis=0) & ~near
            return Account(int((~near & ~doubt).sum()), int(near.sum()), int(doubt.sum()), 0)
        kind = np.complex128 if want.dtype.kind == "c" else np.float64
        exact, found = want.astype(kind), got.astype(kind)
        stack = np.stack([r.astype(kind) for r in runs])
        with np.errstate(all="ignore"):
            finite = np.isfinite(exact) & np.isfinite(stack).all(0)
            spread, size = np.abs(stack - exact).max(0), np.abs(stack).max(0)
            unit = epsilon(want.dtype)
            doubt = finite & ~near & (spread > max(_TOO_MUCH, 4 * _UNITS * unit) * size)
            inside = np.abs(found - exact) <= 4 * spread + self.tolerance * unit * size
            differ = finite & ~near & ~doubt & ~inside
        lost = ~finite & ~near
        counts = [int(x.sum()) for x in (differ, doubt, lost)]
        return Account(counts[0], want.size - sum(counts), counts[1], counts[2])

    def _run(self, count: int) -> None:
        while len(self.runs) < count:
            around = _Disturbance(len(self.runs))
            self.runs.append([r.copy() for r in run(self.module, self.args, around)])
