"""Least cost of variables that are 0 or 1, with costs of single ones and of pairs, as a minimum cut (Kolmogorov and Zabih
2004). A variable that is better one way whatever the others are is settled first; what is left of the graph, mostly nothing,
is cut by SciPy with the algorithm of Dinic (1970)."""

from __future__ import annotations

from math import inf

import numpy as np
from scipy.sparse import csr_array
from scipy.sparse.csgraph import maximum_flow

SOURCE, SINK = 0, 1
MOST = 2**30 - 1  # a flow's: SciPy counts in 32 bits, and residuals are the sum of two
PRECISION = 1000  # costs are whole numbers: what is left of one must be nothing or something


class MinCut:
    """A variable is 1 on the sink's side. An edge's cost is due if its start is 0 and its end is 1."""

    def __init__(self) -> None:
        self._costs: list[float] = []  # of 1 rather than 0
        self._ends: list[dict[int, float]] = []  # per variable the edges from it
        self._starts: list[dict[int, float]] = []  # and to it

    def variable(self) -> int:
        self._costs.append(0.0)
        self._ends.append({})
        self._starts.append({})
        return len(self._costs) - 1

    def one(self, variable: int, cost: float) -> None:
        """Being 1 costs that, beside being 0."""
        self._costs[variable] += cost

    def ordered(self, low: int, high: int, cost: float) -> None:
        """`low` being 0 while `high` is 1 costs that."""
        cost = self._ends[low].get(high, 0) + (cost if cost == inf else round(PRECISION * cost))
        self._ends[low][high] = self._starts[high][low] = cost

    def never(self, low: int, high: int) -> None:
        """If `high` is 1, so is `low`."""
        self.ordered(low, high, inf)

    def solve(self) -> list[bool]:
        """Per variable whether it is 1. Where both serve alike it is 0."""
        costs = [float(round(PRECISION * cost)) for cost in self._costs]
        ones = self._settled(costs)
        if len(ones) < len(costs):
            ones |= self._cut(costs, ones)
        return [ones[n] for n in range(len(costs))]

    def _settled(self, costs: list[float]) -> dict[int, bool]:
        """The variables that are better one way whatever the others are. `costs` then counts what the rest owes to them."""
        ones: dict[int, bool] = {}
        todo = dict.fromkeys(range(len(costs)))
        while todo:
            n, _ = todo.popitem()
            ends = {m: cost for m, cost in self._ends[n].items() if m not in ones}
            starts = {m: cost for m, cost in self._starts[n].items() if m not in ones}
            if costs[n] >= sum(ends.values()):
                ones[n] = False
                for m, cost in ends.items():
                    costs[m] += cost
            elif -costs[n] > sum(starts.values()):
                ones[n] = True
                for m, cost in starts.items():
                    costs[m] -= cost
            else:
                continue
            todo.update(dict.fromkeys((*ends, *starts)))
        return ones

    def _cut(self, costs: list[float], settled: dict[int, bool]) -> dict[int, bool]:
        """The variables that aren't settled."""
        place = {n: 2 + k for k, n in enumerate(n for n in range(len(costs)) if n not in settled)}
        edges: list[tuple[int, int, float]] = []
        for n, at in place.items():
            if costs[n]:
                edges.append((SOURCE, at, costs[n]) if costs[n] > 0 else (at, SINK, -costs[n]))
            edges += [(at, place[m], cost) for m, cost in self._ends[n].items() if m in place]
        starts, ends, values = zip(*edges, strict=True)
        capacities = np.array(values)
        scale = min(1.0, (MOST - len(edges)) / max(1.0, capacities[capacities < inf].sum()))
        capacities = np.minimum(np.round(scale * capacities), MOST).astype(np.int32)
        graph = csr_array((capacities, (starts, ends)), shape=(2 + len(place),) * 2)
        flow = maximum_flow(graph, SOURCE, SINK).flow.tocoo()
        used = dict(
            zip(zip(flow.row.tolist(), flow.col.tolist(), strict=True), flow.data.tolist(), strict=True)
        )
        before: dict[int, list[int]] = {}  # per end of an edge that has something left, its starts
        for n, m, capacity in zip(starts, ends, capacities.tolist(), strict=True):
            sent = used.get((n, m), 0)
            if sent < capacity:
                before.setdefault(m, []).append(n)
            if sent > 0:
                before.setdefault(n, []).append(m)
        ones, todo = {SINK}, [SINK]
        while todo:
            for n in before.get(todo.pop(), ()):
                if n not in ones:
                    ones.add(n)
                    todo.append(n)
        return {n: at in ones for n, at in place.items()}
