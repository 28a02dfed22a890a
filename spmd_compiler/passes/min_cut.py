"""Least cost of variables that are 0 or 1, with costs of single ones and of pairs, as a minimum cut (Kolmogorov and Zabih
2004), found by networkx with the algorithm of Boykov and Kolmogorov (2004)."""

from __future__ import annotations

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

SOURCE, SINK = -1, -2
PRECISION = 1000  # capacities are whole numbers: what is left of one must be nothing or something


class MinCut:
    """A variable is 1 on the sink's side."""

    def __init__(self) -> None:
        self.graph = nx.DiGraph()
        self.graph.add_nodes_from((SOURCE, SINK))
        self.costs: list[float] = []  # of 1 rather than 0

    def variable(self) -> int:
        self.costs.append(0.0)
        self.graph.add_node(len(self.costs) - 1)
        return len(self.costs) - 1

    def one(self, variable: int, cost: float) -> None:
        """Being 1 costs that, beside being 0."""
        self.costs[variable] += cost

    def ordered(self, low: int, high: int, cost: float) -> None:
        """`low` being 0 while `high` is 1 costs that."""
        capacity, edge = round(PRECISION * cost), self.graph.get_edge_data(low, high)
        if edge is None:
            self.graph.add_edge(low, high, capacity=capacity)
        elif "capacity" in edge:
            edge["capacity"] += capacity

    def never(self, low: int, high: int) -> None:
        """If `high` is 1, so is `low`."""
        self.graph.add_edge(low, high)
        self.graph[low][high].pop("capacity", None)  # an edge without one can't be cut

    def solve(self) -> list[bool]:
        """Per variable whether it is 1. Where both serve alike it is 0."""
        for n, cost in enumerate(self.costs):
            if cost:
                self.ordered(*((SOURCE, n, cost) if cost > 0 else (n, SINK, -cost)))
        _, (_, ones) = nx.minimum_cut(self.graph, SOURCE, SINK, flow_func=boykov_kolmogorov)
        return [n in ones for n in range(len(self.costs))]
