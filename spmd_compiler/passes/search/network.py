"""A network of costs: variables with some values each, and costs that depend on the values of one or several of them.

Before an integer program is made of it, it shrinks, and the least cost stays the same: equal terms are added up, a
variable with two neighbours or less gives way to a table between these (bucket elimination, Dechter 1999), and a value that
another one replaces without loss is dropped (dominance, as in Desmet et al. 1992).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import numpy as np

SIZE = 250_000  # entries of the largest table that is made
SLACK = 1e-6  # by which costs may differ that count as equal


class Role(NamedTuple):
    """Which layout a variable's values mean for a tensor, as numbers; of no variable (-1), the one that it has."""

    variable: int
    layouts: tuple[int, ...]


class Spread(NamedTuple):
    """A tensor that comes in one layout and is wanted in several; `costs[a, b]` brings it from a to b. What is wanted
    may be made from what is wanted elsewhere."""

    costs: np.ndarray
    made: Role
    wanted: tuple[Role, ...]

    def variables(self) -> tuple[int, ...]:
        return tuple(sorted({r.variable for r in (self.made, *self.wanted)} - {-1}))

    def small(self, size: int = SIZE) -> bool:
        """Whether all combinations may be written down."""
        variables = self.variables()
        sizes = {r.variable: len(r.layouts) for r in (self.made, *self.wanted)}
        return len(self.wanted) <= 3 and math.prod(sizes[n] for n in variables) <= size

    def table(self) -> np.ndarray:
        """The cost for all values of the variables, of a small one: the best order in which to make what is wanted."""
        variables = self.variables()

        def spread(role: Role) -> np.ndarray:
            shape = [1] * len(variables)
            if role.variable >= 0:
                shape[variables.index(role.variable)] = len(role.layouts)
            return np.array(role.layouts).reshape(shape)

        made, wanted = spread(self.made), [spread(r) for r in self.wanted]
        best: np.ndarray | None = None
        for order in itertools.permutations(wanted):
            have, total = [made], np.zeros(())
            for target in order:
                total = total + np.minimum.reduce([self.costs[x, target] for x in np.broadcast_arrays(*have)])
                have.append(target)
            best = total if best is None else np.minimum(best, total)
        assert best is not None
        shape = {r.variable: len(r.layouts) for r in (self.made, *self.wanted)}
        return np.broadcast_to(best, [shape[n] for n in variables])

    def pairs(self) -> int:
        """In how many ways a layout may be made from another."""
        wanted = len({x for role in self.wanted for x in role.layouts})
        return wanted * (wanted + len(set(self.made.layouts)))

    def dearest(self) -> float:
        """The most that a user may pay alone."""
        wanted = sorted({x for role in self.wanted for x in role.layouts})
        return float(self.costs[np.ix_(sorted(set(self.made.layouts)), wanted)].max())

    def parts(self) -> list[Spread]:
        """Per user a share of what it would pay alone: together at most what they pay."""
        share = self.costs / len(self.wanted)
        return [Spread(share, self.made, (role,)) for role in self.wanted]

    def bounds(self, size: int) -> list[Spread]:
        """Spreads with tables of some size that cost together at most what this one costs: users two by two, or alone."""
        if self.small(size):
            return [self]
        n = len(self.wanted)
        pairs = [(self.wanted[i], self.wanted[(i + 1) % n]) for i in range(n if n > 2 else 0)]
        parts = [Spread(self.costs / n, self.made, pair) for pair in pairs]
        return parts if parts and all(p.small(size) for p in parts) else self.parts()

    def at(self, chosen: Mapping[int, int]) -> Spread:
        """With the values that some variables have."""

        def fixed(role: Role) -> Role:
            k = chosen.get(role.variable)
            return role if k is None else Role(-1, (role.layouts[k],))

        return Spread(self.costs, fixed(self.made), tuple(dict.fromkeys(fixed(r) for r in self.wanted)))

    def keep(self, variable: int, kept: np.ndarray) -> Spread:
        """Without some values of a variable."""

        def cut(role: Role) -> Role:
            if role.variable != variable:
                return role
            return Role(variable, tuple([role.layouts[k] for k in kept]))

        return Spread(self.costs, cut(self.made), tuple(dict.fromkeys(cut(r) for r in self.wanted)))


class Step(NamedTuple):
    """An eliminated variable: its best values (as numbered at first), by those of its neighbours."""

    variable: int
    neighbours: tuple[int, ...]
    best: np.ndarray
    alive: tuple[np.ndarray, ...]  # the neighbours' values at the time


class Network:
    """costs: per variable what each of its values costs by itself. alive: the numbers of its values that are left."""

    def __init__(self) -> None:
        self.offset = 0.0
        self.costs: list[np.ndarray] = []
        self.alive: list[np.ndarray] = []
        self.tables: dict[tuple[int, ...], np.ndarray] = {}  # by two variables
        self.spreads: dict[int, Spread] = {}
        self._small: dict[int, np.ndarray] = {}  # the tables of spreads
        self._near: list[set[int]] = []  # per variable its spreads
        self._pairs: list[set[tuple[int, ...]]] = []
        self._instead: list[list[int]] = []  # per variable and value what replaces it
        self._steps: list[Step] = []
        self._gone: set[int] = set()

    # ------------------------------------------------------------------------------------------ making
    def variable(self, costs: Iterable[float]) -> int:
        array = np.array(list(costs), float)
        self.costs.append(array)
        self.alive.append(np.arange(len(array)))
        self._near.append(set())
        self._pairs.append(set())
        self._instead.append(list(range(len(array))))
        return len(self.costs) - 1

    def spread(self, spread: Spread) -> None:
        number = len(self.spreads)
        variables = spread.variables()
        if len(variables) <= 2 and spread.small():
            self._add(variables, spread.table())
            return
        self.spreads[number] = spread
        for n in variables:
            self._near[n].add(number)

    def _add(self, variables: tuple[int, ...], table: np.ndarray) -> None:
        if not variables:
            self.offset += float(table)
        elif len(variables) == 1:
            self.costs[variables[0]] = self.costs[variables[0]] + table
        else:
            old = self.tables.get(variables)
            self.tables[variables] = table if old is None else old + table
            for n in variables:
                self._pairs[n].add(variables)

    # ------------------------------------------------------------------------------------------ shrinking
    def shrink(self) -> None:
        """Drops values and variables as long as that is possible."""
        todo = dict.fromkeys(range(len(self.costs)))
        while todo:
            n = next(iter(todo))
            del todo[n]
            if n in self._gone:
                continue
            around = self._around(n)
            if self._eliminate(n) or self._dominate(n):
                todo.update(dict.fromkeys(x for x in (n, *around) if x not in self._gone))

    def left(self) -> list[int]:
        return [n for n in range(len(self.costs)) if n not in self._gone]

    def _around(self, n: int) -> set[int]:
        found = {x for pair in self._pairs[n] for x in pair}
        for s in self._near[n]:
            found.update(self.spreads[s].variables())
        return found - {n}

    def _factors(self, n: int) -> list[tuple[tuple[int, ...], np.ndarray]] | None:
        """All costs that depend on a variable and others, as tables; None if some are too large."""
        found = [(pair, self.tables[pair]) for pair in self._pairs[n]]
        for s in self._near[n]:
            spread = self.spreads[s]
            if s not in self._small:
                if not spread.small():
                    return None
                self._small[s] = spread.table()
            found.append((spread.variables(), self._small[s]))
        return found

    def _eliminate(self, n: int) -> bool:
        around = tuple(sorted(self._around(n)))
        size = np.prod([len(self.costs[x]) for x in (n, *around)])
        if len(around) > 2 or size > SIZE:
            return False
        factors = self._factors(n)
        if factors is None:
            return False
        axes = (n, *around)
        total = self.costs[n].reshape(-1, *[1] * len(around))
        for variables, table in factors:
            total = total + _aligned(table, variables, axes)
        total = np.broadcast_to(total, [len(self.costs[x]) for x in axes])
        best = total.argmin(0)
        self._steps.append(Step(n, around, self.alive[n][best], tuple(self.alive[x] for x in around)))
        self._gone.add(n)
        for pair in list(self._pairs[n]):
            del self.tables[pair]
            for x in pair:
                self._pairs[x].discard(pair)
        for s in list(self._near[n]):
            for x in self.spreads[s].variables():
                self._near[x].discard(s)
            del self.spreads[s]
            self._small.pop(s, None)
        self._add(around, total.min(0))
        return True

    def _dominate(self, n: int) -> bool:
        """Drops the values of a variable that another one replaces at no cost, whatever the other variables are."""
        count = len(self.costs[n])
        if count == 1:
            return False
        more = self.costs[n][:, None] - self.costs[n][None, :]  # [a, b]: by how much a is dearer than b
        for pair in self._pairs[n]:
            more = more + _worst(np.moveaxis(self.tables[pair], pair.index(n), 0))
        for s in self._near[n]:
            more = more + self._worst_in(s, n)
        kept = list(range(count))
        for b in reversed(range(count)):
            others = [a for a in kept if a != b and more[a, b] <= SLACK]
            if others:
                kept.remove(b)
                self._replace(n, int(self.alive[n][b]), int(self.alive[n][others[0]]))
        if len(kept) == count:
            return False
        self._keep(n, np.array(kept))
        return True

    def _worst_in(self, s: int, n: int) -> np.ndarray:
        """By how much a spread may at most get dearer if a variable has one value instead of another."""
        spread = self.spreads[s]
        if s not in self._small and spread.small():
            self._small[s] = spread.table()
        if s in self._small and self._small[s].size * len(self.costs[n]) <= 40 * SIZE:
            return _worst(np.moveaxis(self._small[s], spread.variables().index(n), 0))
        more = np.zeros((len(self.costs[n]),) * 2)
        for role in spread.wanted:
            if role.variable == n:
                x = np.array(role.layouts)
                more += spread.costs[x[None, :], x[:, None]]
        if spread.made.variable == n:
            x = np.array(spread.made.layouts)
            more += len(spread.wanted) * spread.costs[x[:, None], x[None, :]]
        return more

    def _replace(self, n: int, old: int, new: int) -> None:
        self._instead[n] = [new if x == old else x for x in self._instead[n]]

    def _keep(self, n: int, kept: np.ndarray) -> None:
        self.costs[n], self.alive[n] = self.costs[n][kept], self.alive[n][kept]
        for pair in self._pairs[n]:
            self.tables[pair] = self.tables[pair].take(kept, pair.index(n))
        for s in self._near[n]:
            if s in self._small:
                self._small[s] = self._small[s].take(kept, self.spreads[s].variables().index(n))
            self.spreads[s] = self.spreads[s].keep(n, kept)

    # ------------------------------------------------------------------------------------------ answers
    def drop(self, n: int, dear: np.ndarray) -> None:
        """Without some of the values that a variable has now."""
        self._keep(n, np.flatnonzero(~dear))

    def now(self, n: int, value: int) -> int:
        """Where a value, as numbered at first, is among those that are left; the first one if it is none of them."""
        at = np.flatnonzero(self.alive[n] == self._instead[n][value])
        return int(at[0]) if len(at) else 0

    def cost(self, chosen: Mapping[int, int]) -> float:
        """Of values of all variables that are left, as numbered now."""
        total = self.offset + sum([float(self.costs[n][k]) for n, k in chosen.items()])
        total += sum([float(t[chosen[a], chosen[b]]) for (a, b), t in self.tables.items()])
        return total + sum([float(s.at(chosen).table()) for s in self.spreads.values()])

    def polish(self, chosen: dict[int, int]) -> dict[int, int]:
        """Changes one value after another as long as that pays."""
        chosen, todo = dict(chosen), dict.fromkeys(chosen)
        while todo:
            n = next(iter(todo))
            del todo[n]
            rest = {m: k for m, k in chosen.items() if m != n}
            costs = self.costs[n]
            for a, b in self._pairs[n]:
                costs = costs + (self.tables[a, b][:, chosen[b]] if a == n else self.tables[a, b][chosen[a]])
            for s in self._near[n]:
                costs = costs + self.spreads[s].at(rest).table()
            best = int(costs.argmin())
            if costs[best] < costs[chosen[n]] - SLACK:
                chosen[n] = best
                todo.update(dict.fromkeys(self._around(n)))
        return chosen

    def complete(self, chosen: Mapping[int, int]) -> list[int]:
        """All variables' values, as numbered at first, from those (among what is left) of the variables that are left."""
        values = {n: int(self.alive[n][k]) for n, k in chosen.items()}
        for step in reversed(self._steps):
            at = [
                int(np.flatnonzero(x == values[m])[0])
                for m, x in zip(step.neighbours, step.alive, strict=True)
            ]
            values[step.variable] = int(step.best[tuple(at)])
        return [values[n] for n in range(len(self.costs))]


def _aligned(table: np.ndarray, variables: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    """A table with one dim per variable of `axes`."""
    order = sorted(range(len(variables)), key=lambda i: axes.index(variables[i]))
    sizes = dict(zip(variables, table.shape, strict=True))
    return table.transpose(order).reshape([sizes.get(n, 1) for n in axes])


def _worst(table: np.ndarray) -> np.ndarray:
    """[a, b]: by how much row a is dearer than row b at most."""
    flat = table.reshape(len(table), -1)
    return np.stack([(row - flat).max(1) for row in flat])
