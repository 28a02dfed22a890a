"""Minimum cuts against trying everything."""

import itertools
import random

import pytest

from spmd_compiler.passes.min_cut import MinCut


@pytest.mark.parametrize("seed", range(60))
def test_as_cheap_as_the_best_of_all(seed):
    rng = random.Random(seed)
    n = rng.randrange(1, 8)
    cut = MinCut()
    variables = [cut.variable() for _ in range(n)]
    single = [rng.randrange(-9, 10) for _ in range(n)]
    pairs = {(i, j): rng.randrange(0, 9) for i in range(n) for j in range(n) if i != j and rng.random() < 0.5}
    never = [p for p in pairs if rng.random() < 0.2]
    for v, alone in zip(variables, single, strict=True):
        cut.one(v, alone)
    for (i, j), together in pairs.items():
        cut.ordered(variables[i], variables[j], together)
    for i, j in never:
        cut.never(variables[i], variables[j])

    def cost(values):
        if any(values[j] and not values[i] for i, j in never):
            return float("inf")
        alone = sum(c for c, x in zip(single, values, strict=True) if x)
        return alone + sum(c for (i, j), c in pairs.items() if values[j] and not values[i])

    ones = cut.solve()
    found = tuple(v in ones for v in variables)
    costs = {values: cost(values) for values in itertools.product((False, True), repeat=n)}
    assert cost(found) == min(costs.values())
    assert sum(found) == min(sum(x) for x, c in costs.items() if c == min(costs.values()))


def test_costs_may_be_added_up():
    cut = MinCut()
    a, b = cut.variable(), cut.variable()
    cut.one(a, 3)
    cut.one(a, -5)
    cut.one(b, 1.5)
    cut.ordered(b, a, 0.25)
    cut.ordered(b, a, 0.25)
    ones = cut.solve()
    assert ones == {a}


@pytest.mark.parametrize("scale", [1e6, 1e12])
def test_costs_of_any_size(scale):
    """A chain that follows its last variable: what it costs is no more than what all gain, or a little more."""
    for last, expected in ((-1.001, True), (-0.999, False)):
        cut = MinCut()
        chain = [cut.variable() for _ in range(20)]
        for low, high in itertools.pairwise(chain):
            cut.never(low, high)
            cut.one(low, scale / 19)
        cut.one(chain[-1], last * scale)
        assert cut.solve() == (set(chain) if expected else set())
