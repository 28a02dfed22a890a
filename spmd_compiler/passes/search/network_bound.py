"""How little a network of costs may cost at least, and which values cost too much for any optimum.

Costs move between tables and variables, which changes no sum, so that the least entries of all add up to ever more: that sum
is a lower bound (sequential reweighted message passing, Kolmogorov 2015). The variables' values in which it comes together
are a good guess at the optimum.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import numpy as np

from .network import Network

RISE, STILL = 1e-5, 3  # sweeps go on unless some in a row raise the bound by less than this part of it


class _Axis(NamedTuple):
    """A variable of a table. group: per value of the variable the row of the table; members: their order by groups, and
    where each group begins."""

    variable: int
    group: np.ndarray
    order: np.ndarray
    starts: np.ndarray

    @classmethod
    def of(cls, variable: int, group: np.ndarray) -> _Axis:
        order = np.argsort(group, kind="stable")
        return cls(variable, group, order, np.flatnonzero(np.diff(group[order], prepend=-1)))

    def least(self, costs: np.ndarray) -> np.ndarray:
        """Per group the least cost of its values."""
        return np.minimum.reduceat(costs[self.order], self.starts)


class _Factor:
    """A table over groups of some variables' values: those that make no difference in it."""

    def __init__(self, variables: tuple[int, ...], table: np.ndarray, rank: dict[int, int]):
        axes: list[_Axis] = []
        for i, n in enumerate(variables):
            rows = np.moveaxis(table, i, 0).reshape(table.shape[i], -1)
            _, first, group = np.unique(rows, axis=0, return_index=True, return_inverse=True)
            table = table.take(first, i)
            axes.append(_Axis.of(n, group.reshape(-1)))
        self.axes, self.table = axes, np.array(table)
        ranks = [rank[n] for n in variables]
        self.first, self.last = min(ranks), max(ranks)


class _Place(NamedTuple):
    """A variable in a table."""

    factor: _Factor
    axis: _Axis
    others: tuple[int, ...]
    shape: tuple[int, ...]


class Bound:
    """bound: what the network costs at least. size: of the tables that are made of its spreads. Made anew when the network
    changes."""

    def __init__(self, network: Network, size: int):
        self.network, self.bound = network, -np.inf
        self.order = network.left()
        self.rank = {n: i for i, n in enumerate(self.order)}
        self.offset = network.offset
        self.costs = {n: network.costs[n].copy() for n in self.order}
        self.factors: list[_Factor] = []
        for pair, table in network.tables.items():
            self._add(pair, table)
        for spread in network.spreads.values():
            for part in spread.bounds(size):
                self._add(part.variables(), part.table())
        self.at: dict[int, list[_Place]] = {n: [] for n in self.order}
        for f in self.factors:
            for i, axis in enumerate(f.axes):
                others = tuple([j for j in range(len(f.axes)) if j != i])
                shape = tuple([-1 if j == i else 1 for j in range(len(f.axes))])
                self.at[axis.variable].append(_Place(f, axis, others, shape))

    def _add(self, variables: tuple[int, ...], table: np.ndarray) -> None:
        if not variables:
            self.offset += float(table)
        elif len(variables) == 1:
            self.costs[variables[0]] += table
        else:
            self.factors.append(_Factor(variables, table, self.rank))

    def rise(self, until: float) -> None:
        """Sweeps over the variables, forth and back, as long as the bound rises, once or till a time of `perf_counter`."""
        rises = 0
        while self.order and rises < STILL:
            self._sweep(self.order, True)
            self._sweep(self.order[::-1], False)
            bound = self.sum()
            rises = rises + 1 if bound - self.bound < RISE * abs(bound) else 0
            self.bound = max(self.bound, bound)
            if time.perf_counter() > until:
                break

    def sum(self) -> float:
        least = sum([float(c.min()) for c in self.costs.values()])
        return self.offset + least + sum([float(f.table.min()) for f in self.factors])

    def _sweep(self, order: list[int], forth: bool) -> None:
        for n in order:
            at, rank = self.at[n], self.rank[n]
            total = self._collect(n)
            if not at:
                continue
            ahead = [p for p in at if (p.factor.last > rank if forth else p.factor.first < rank)]
            behind = len([p for p in at if (p.factor.first < rank if forth else p.factor.last > rank)])
            share = total / max(len(ahead), behind)
            for p in ahead:
                given = p.axis.least(share)
                p.factor.table += given.reshape(p.shape)
                total = total - given[p.axis.group]
            self.costs[n] = total

    def _collect(self, n: int) -> np.ndarray:
        """Brings to a variable all that its values cost at least elsewhere."""
        total = self.costs[n]
        for p in self.at[n]:
            least = p.factor.table.min(p.others)
            p.factor.table -= least.reshape(p.shape)
            total = total + least[p.axis.group]
        self.costs[n] = total
        return total

    def guess(self) -> dict[int, int]:
        """Values, as numbered now: one variable after another takes what suits those before it."""
        found: dict[int, int] = {}
        for n in self.order:
            total = self.costs[n]
            for p in self.at[n]:
                at: list[int | slice] = []
                for x in p.factor.axes:
                    k = None if x is p.axis else found.get(x.variable)
                    at.append(slice(None) if k is None else int(x.group[k]))
                table = p.factor.table[tuple(at)]
                open_axes = [x for x, k in zip(p.factor.axes, at, strict=True) if isinstance(k, slice)]
                least = table.min(tuple([i for i, x in enumerate(open_axes) if x is not p.axis]))
                total = total + least[p.axis.group]
            found[n] = int(total.argmin())
        return found

    def too_dear(self, most: float) -> dict[int, np.ndarray]:
        """Per variable the values in which every solution costs more than `most`."""
        found: dict[int, np.ndarray] = {}
        whole = self.sum()
        for n in self.order:
            rest = whole - self._least(n)
            total = self._collect(n)
            whole = rest + self._least(n)
            found[n] = whole + total - total.min() > most
        return found

    def _least(self, n: int) -> float:
        """Of a variable and the tables that it is in."""
        return float(self.costs[n].min()) + sum([float(p.factor.table.min()) for p in self.at[n]])
