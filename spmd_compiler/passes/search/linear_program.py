"""A mixed integer linear program, built row by row, and HiGHS (Huangfu, Hall 2018) to solve it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ...errors import UnsupportedError

INFINITY = math.inf


class Solution(NamedTuple):
    values: Sequence[float]
    bound: float  # no values cost less


class LinearProgram:
    """Minimises the cost of variables of 0 or more under rows of linear constraints."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._choices: list[int] = []  # the binary variables
        self._first: list[int] = []  # of each choice the one that holds at the start
        self._rows: list[tuple[Mapping[int, float], float, float]] = []

    def variable(self, cost: float) -> int:
        self._costs.append(cost)
        return len(self._costs) - 1

    def choice(self, costs: Iterable[float], start: int = 0) -> list[int]:
        """Binary variables of which exactly one is 1; at the start that of the number `start`."""
        terms = [self.variable(cost) for cost in costs]
        self._choices += terms
        self._first.append(terms[start])
        self.row(dict.fromkeys(terms, 1.0), 1.0, 1.0)
        return terms

    def row(self, coefficients: Mapping[int, float], low: float, high: float) -> None:
        self._rows.append((coefficients, low, high))

    def equal(self, left: Iterable[int], right: Sequence[int] | None) -> None:
        """sum(left) = sum(right); None is 1."""
        self._compare(left, right, 0.0, 0.0)

    def at_least(self, left: Iterable[int], right: Sequence[int] | None) -> None:
        self._compare(left, right, 0.0, INFINITY)

    def at_most(self, left: Iterable[int], right: Sequence[int] | None) -> None:
        self._compare(left, right, -INFINITY, 0.0)

    def _compare(self, left: Iterable[int], right: Sequence[int] | None, low: float, high: float) -> None:
        coefficients = dict.fromkeys(left, 1.0)
        for term in right or ():
            coefficients[term] = coefficients.get(term, 0.0) - 1.0
        shift = 1.0 if right is None else 0.0
        self.row(coefficients, low + shift, high + shift)

    def solve(self, seconds: float) -> Solution | None:
        """The best that was found within the time; None if nothing was. Raises UnsupportedError without HiGHS."""
        try:
            import highspy
        except ImportError:
            raise UnsupportedError("search='ilp' needs HiGHS: pip install 'spmd_compiler[ilp]'") from None
        solver: Any = highspy.Highs()
        for option, value in (("output_flag", False), ("time_limit", float(seconds)), ("random_seed", 0)):
            solver.setOptionValue(option, value)
        solver.setOptionValue("mip_rel_gap", 1e-4)
        solver.passModel(self._model(highspy))
        ones = set(self._first)
        solver.setSolution(len(self._choices), self._choices, [float(c in ones) for c in self._choices])
        solver.run()
        info = solver.getInfo()
        if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
            return None
        return Solution(solver.getSolution().col_value, info.mip_dual_bound)

    def _model(self, highspy: Any) -> Any:
        n = len(self._costs)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = n, len(self._rows)
        lp.col_cost_, lp.col_lower_ = self._costs, [0.0] * n
        binary = set(self._choices)
        lp.col_upper_ = [1.0 if i in binary else INFINITY for i in range(n)]
        kinds = highspy.HighsVarType
        lp.integrality_ = [kinds.kInteger if i in binary else kinds.kContinuous for i in range(n)]
        lp.row_lower_ = [low for _, low, _ in self._rows]
        lp.row_upper_ = [high for _, _, high in self._rows]
        starts, index, value = [0], [], []
        for coefficients, _, _ in self._rows:
            index += coefficients
            value += coefficients.values()
            starts.append(len(index))
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_, lp.a_matrix_.index_, lp.a_matrix_.value_ = starts, index, value
        return lp
