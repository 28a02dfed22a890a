"""Least cost of variables that are 0 or 1, with costs of single ones and of pairs, as a minimum cut (Kolmogorov and Zabih
2004). SciPy finds it with the algorithm of Dinic (1970)."""

from __future__ import annotations

from math import inf

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_flow

SOURCE, SINK = 0, 1
MOST = 2**30 - 1  # a flow's: SciPy counts in 32 bits, and residuals are the sum of two
PRECISION = 1000  # costs are whole numbers: what is left of one must be nothing or something


class MinCut:
    """A variable is 1 on the sink's side. An edge's cost is due if its start is 0 and its end is 1."""

    def __init__(self) -> None:
        self._costs = [0.0, 0.0]  # of 1 rather than 0; by node, as are the edges
        self._starts: list[int] = []
        self._ends: list[int] = []
        self._capacities: list[float] = []

    def variable(self) -> int:
        self._costs.append(0.0)
        return len(self._costs) - 1

    def one(self, variable: int, cost: float) -> None:
        """Being 1 costs that, beside being 0."""
        self._costs[variable] += cost

    def ordered(self, low: int, high: int, cost: float) -> None:
        """`low` being 0 while `high` is 1 costs that."""
        self._starts.append(low)
        self._ends.append(high)
        self._capacities.append(cost)

    def never(self, low: int, high: int) -> None:
        """If `high` is 1, so is `low`."""
        self.ordered(low, high, inf)

    def solve(self) -> set[int]:
        """The variables that are 1. Those are not where both serve alike."""
        costs, nodes = np.array(self._costs), np.arange(len(self._costs))
        dear, gain = nodes[costs > 0], nodes[costs < 0]
        if not gain.size:
            return set()
        starts = np.concatenate((np.full(dear.size, SOURCE), gain, self._starts))
        ends = np.concatenate((dear, np.full(gain.size, SINK), self._ends))
        capacities = np.rint(PRECISION * np.concatenate((costs[dear], -costs[gain], self._capacities)))
        graph = csr_array(
            (capacities, (starts.astype(np.int32), ends.astype(np.int32))), shape=costs.shape * 2
        )
        finite = graph.data[graph.data < inf].sum()
        scale = min(1.0, (MOST - graph.nnz) / max(1.0, finite))
        graph.data = np.minimum(np.rint(scale * graph.data), MOST).astype(np.int32)
        most = graph.data[graph.indices == SINK].sum()
        found = maximum_flow(graph, SOURCE, SINK)
        if found.flow_value == most:
            return set()
        left = graph - found.flow
        left.eliminate_zeros()
        reach = breadth_first_order(left.T.tocsr(), SINK, return_predecessors=False)
        return {int(n) for n in reach if n > SINK}
