"""Least cost of variables that are 0 or 1, with costs of single ones and of pairs, as a minimum cut (Boykov, Veksler and
Zabih 2001; Kolmogorov and Zabih 2004), found by blocking flows (Dinic 1970)."""

from __future__ import annotations

import math
from collections import deque

NOTHING = 1e-6  # of a capacity that is left
SOURCE, SINK = 0, 1


class MinCut:
    """A variable is 1 on the sink's side."""

    def __init__(self) -> None:
        self.heads: list[int] = []  # per edge; its reverse is the next one, or the one before
        self.left: list[float] = []  # capacity
        self.edges: list[list[int]] = [[], []]  # per node
        self.costs: list[float] = [0.0, 0.0]  # of 1 rather than 0

    def variable(self) -> int:
        self.edges.append([])
        self.costs.append(0.0)
        return len(self.edges) - 1

    def one(self, variable: int, cost: float) -> None:
        """Being 1 costs that, beside being 0."""
        self.costs[variable] += cost

    def ordered(self, low: int, high: int, cost: float) -> None:
        """`low` being 0 while `high` is 1 costs that."""
        if cost > NOTHING:
            for a, b, capacity in ((low, high, cost), (high, low, 0.0)):
                self.edges[a].append(len(self.heads))
                self.heads.append(b)
                self.left.append(capacity)

    def never(self, low: int, high: int) -> None:
        """If `high` is 1, so is `low`."""
        self.ordered(low, high, math.inf)

    def solve(self) -> list[bool]:
        """Per variable, by the numbers that `variable` gave, whether it is 1. Where both serve alike it is 0."""
        for n, cost in enumerate(self.costs):
            self.ordered(*((SOURCE, n, cost) if cost > 0 else (n, SINK, -cost)))
        while (levels := self._levels())[SINK] >= 0:
            unused = [0] * len(self.edges)
            while self._augment(levels, unused):
                pass
        # what still reaches the sink has to be 1; all else may be 0
        ones = [False] * len(self.edges)
        ones[SINK] = True
        todo = [SINK]
        while todo:
            for e in self.edges[todo.pop()]:
                n = self.heads[e]
                if not ones[n] and self.left[e ^ 1] > NOTHING:
                    ones[n] = True
                    todo.append(n)
        return ones

    def _levels(self) -> list[int]:
        """How far from the source each node is, over edges with capacity left; -1: out of reach."""
        levels = [-1] * len(self.edges)
        levels[SOURCE] = 0
        todo = deque([SOURCE])
        while todo:
            n = todo.popleft()
            for e in self.edges[n]:
                m = self.heads[e]
                if levels[m] < 0 and self.left[e] > NOTHING:
                    levels[m] = levels[n] + 1
                    todo.append(m)
        return levels

    def _augment(self, levels: list[int], unused: list[int]) -> bool:
        """Sends flow along one path of rising levels; `unused`: per node the first edge that may still lead on."""
        path, n = list[int](), SOURCE
        while n != SINK:
            edges, k = self.edges[n], unused[n]
            while k < len(edges):
                e = edges[k]
                if self.left[e] > NOTHING and levels[self.heads[e]] == levels[n] + 1:
                    break
                k += 1
            unused[n] = k
            if k < len(edges):
                path.append(edges[k])
                n = self.heads[edges[k]]
            elif not path:
                return False
            else:
                n = self.heads[path.pop() ^ 1]
                unused[n] += 1
        flow = min([self.left[e] for e in path])
        for e in path:
            self.left[e] -= flow
            self.left[e ^ 1] += flow
        return True
