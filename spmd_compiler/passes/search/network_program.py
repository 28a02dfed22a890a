"""A network of costs as an integer program.

Each value of a variable is a binary variable. A table between two variables costs what combinations are in use, as in a
transport problem. Where a tensor is wanted in several layouts, each is made from the one that it comes in, or from another
one that is made anyway.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from .linear_program import LinearProgram
from .network import SLACK, Network, Role, Spread
from .network_bound import Bound

Terms = tuple[int, ...]  # binary variables, of which one is 1 if something is so
Limit = tuple[
    Mapping[tuple[int, int], float], float
]  # what values of variables weigh, and the most for the sum


LARGE = 40_000  # variables of the integer program, from which on it is not worth trying
TABLES = (20_000, 60_000, 400_000)  # sizes of the tables of one bound after the other
CLOSED = 1e-4  # a gap that is none
JOINT = 4_000  # combinations of values; up to here each is a variable
PART = 0.6  # of the time that is left, for each bound


class Minimum(NamedTuple):
    """values: of all variables, as numbered at first. bound: the least cost is not below it."""

    values: list[int]
    bound: float


def minimise(network: Network, seconds: float, limits: Sequence[Limit] = ()) -> Minimum | None:
    """The best values that are found within some seconds; None if there are none. Without `limits` the network shrinks."""
    end = time.perf_counter() + seconds
    best = _Best(network)
    if not limits:
        network.shrink()
        best.offer({n: network.now(n, 0) for n in network.left()})
        for size in TABLES:
            now = time.perf_counter()
            if not network.left() or best.gap() < CLOSED or (now > end and size > TABLES[0]):
                break
            bound = Bound(network, size)
            bound.rise(now + PART * (end - now))
            best.bound = max(best.bound, bound.bound)
            best.offer(bound.guess())
            if best.gap() < CLOSED:
                break
            for n, dear in bound.too_dear(best.cost + SLACK).items():
                if dear.any() and not dear.all():
                    network.drop(n, dear)
            network.shrink()
    left, start = network.left(), best.values
    if not left:
        return Minimum(network.complete({}), network.offset)
    if limits or (best.gap() >= CLOSED and _size(network) <= LARGE):
        program = _Program(network, left, start)
        for sizes, most in limits:
            program.rows.row({program.terms[n][k]: x for (n, k), x in sizes.items()}, -float("inf"), most)
        found = program.rows.solve(max(1.0, end - time.perf_counter()))
        if found is not None:
            weights = {n: [found.values[t] for t in terms] for n, terms in program.terms.items()}
            best.offer({n: w.index(max(w)) for n, w in weights.items()}, limits)
            best.bound = max(best.bound, network.offset + found.bound)
    return None if best.values is None else Minimum(best.values, min(best.bound, best.cost))


class _Best:
    """The best values that were found, as numbered at first, and what they cost."""

    def __init__(self, network: Network):
        self.network, self.bound, self.cost = network, -math.inf, math.inf
        self.values: list[int] | None = None

    def gap(self) -> float:
        return 1 - self.bound / self.cost if self.cost > 0 else math.inf

    def offer(self, chosen: dict[int, int], limits: Sequence[Limit] = ()) -> None:
        chosen = chosen if limits else self.network.polish(chosen)
        cost = self.network.cost(chosen)
        if cost < self.cost:
            self.cost, self.values = cost, self.network.complete(chosen)


def _size(network: Network) -> int:
    """About how many variables the integer program has."""
    tables = sum([t.size for t in network.tables.values()])
    return tables + sum([2 * s.pairs() for s in network.spreads.values()])


class _Program:
    def __init__(self, network: Network, left: Sequence[int], start: Sequence[int] | None):
        self.rows = LinearProgram()
        self.terms = {
            n: tuple(
                self.rows.choice(network.costs[n].tolist(), network.now(n, 0 if start is None else start[n]))
            )
            for n in left
        }
        for variables, table in network.tables.items():
            self.table(variables, table)
        for spread in network.spreads.values():
            if spread.small(JOINT):
                self.table(spread.variables(), spread.table())
            else:
                self.spread(spread)

    def table(self, variables: tuple[int, ...], table: np.ndarray) -> None:
        """Equal slices of a table are one."""
        axes: list[dict[int, Terms]] = []
        for i, n in enumerate(variables):
            axes.append(_groups(np.moveaxis(table, i, 0), self.terms[n]))
        cells = {at: self.rows.variable(float(table[at])) for at in itertools.product(*axes)}
        for i, groups in enumerate(axes):
            for k, terms in groups.items():
                self.rows.equal([cell for at, cell in cells.items() if at[i] == k], terms)

    def spread(self, spread: Spread) -> None:
        """What is wanted is made directly, or from what is made directly, or once more from that."""
        cost, program = spread.costs, self.rows
        made, users = self.where(spread.made), [self.where(r) for r in spread.wanted]
        wanted = dict.fromkeys(x for wants in users for x in wants)
        fixed = len(made) == 1
        direct = {
            (p, d): program.variable(float(cost[p, d])) for d in wanted for p in made if p != d or not fixed
        }
        for (p, _), pair in direct.items():
            if not fixed:
                program.at_most([pair], made[p])
        sources = {d: [direct[p, d] for p in made if (p, d) in direct] for d in wanted}
        always = {d for d in wanted if not sources[d]}
        new = {d: self.sum(sources[d]) for d in wanted if d not in always}
        most = {d: max(cost[p, d] for p in made) for d in wanted}
        for level in range(1, min(len(users), 3)):
            onward: dict[int, list[int]] = {}
            for d, other in itertools.permutations(wanted, 2):
                if d in always or cost[other, d] >= most[d] - SLACK or (other in always and level > 1):
                    continue
                if other not in always and other not in new:
                    continue
                step = program.variable(float(cost[other, d]))
                if other not in always:
                    program.at_most([step], [new[other]])
                onward.setdefault(d, []).append(step)
            new = {d: self.sum(steps) for d, steps in onward.items()}
            for d, steps in onward.items():
                sources[d] += steps
        for d in wanted:
            for wants in users:
                if d in wants and d not in always:
                    program.at_least(sources[d], wants[d])

    def sum(self, variables: Sequence[int]) -> int:
        """A variable that is the sum of others."""
        if len(variables) == 1:
            return variables[0]
        total = self.rows.variable(0.0)
        self.rows.equal(variables, [total])
        return total

    def where(self, role: Role) -> dict[int, Terms | None]:
        """Per layout when it is so; None: always."""
        if len(set(role.layouts)) == 1:
            return {role.layouts[0]: None}
        terms, found = self.terms[role.variable], dict[int, Terms]()
        for term, layout in zip(terms, role.layouts, strict=True):
            found[layout] = (*found.get(layout, ()), term)
        return dict(found)


def _groups(table: np.ndarray, terms: Terms) -> dict[int, Terms]:
    """The terms by equal rows, each by the first of its rows."""
    first, found = dict[bytes, int](), dict[int, Terms]()
    for i, term in enumerate(terms):
        k = first.setdefault(table[i].tobytes(), i)
        found[k] = (*found.get(k, ()), term)
    return found
