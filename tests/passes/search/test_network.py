"""Networks of costs: what shrinking, bounds and the integer program say, against all combinations of values."""

import itertools
import math
import time

import numpy as np
import pytest

from spmd_compiler.passes.search.network import Network, Role, Spread
from spmd_compiler.passes.search.network_bound import Bound
from spmd_compiler.passes.search.network_program import minimise

SIZES = (3, 2, 3, 2, 1, 3, 2)
LAYOUTS = 5


def metric(rng):
    """Costs between layouts; a detour is never cheaper."""
    costs = rng.integers(0, 20, (LAYOUTS, LAYOUTS)).astype(float)
    np.fill_diagonal(costs, 0)
    for k in range(LAYOUTS):
        costs = np.minimum(costs, costs[:, k : k + 1] + costs[k])
    return costs


def drawn(seed):
    """A random network, and the same as the list of what it is made of."""
    rng = np.random.default_rng(seed)
    costs = [rng.integers(0, 12, n).astype(float) for n in SIZES]
    spreads = []
    for k in (1, 1, 1, 1, 2, 2, 3, 3):
        picked = rng.choice(len(SIZES), k + 1, replace=False)
        roles = [Role(int(n), tuple(int(x) for x in rng.integers(0, LAYOUTS, SIZES[n]))) for n in picked]
        if rng.integers(4) == 0:
            roles[0] = Role(-1, (int(rng.integers(LAYOUTS)),))
        spreads.append(Spread(metric(rng), roles[0], tuple(roles[1:])))
    network = Network()
    for c in costs:
        network.variable(c)
    for spread in spreads:
        network.spread(spread)
    return network, costs, spreads


def price(values, costs, spreads):
    total = sum(c[k] for c, k in zip(costs, values, strict=True))
    return total + sum(float(s.at(dict(enumerate(values))).table()) for s in spreads)


def least(costs, spreads):
    return min(price(v, costs, spreads) for v in itertools.product(*(range(n) for n in SIZES)))


@pytest.mark.parametrize("seed", range(12))
def test_minimum(seed):
    network, costs, spreads = drawn(seed)
    found = minimise(network, 20)
    assert found is not None
    want = least(costs, spreads)
    assert price(found.values, costs, spreads) == pytest.approx(want, abs=1e-3)
    assert found.bound == pytest.approx(want, rel=2e-4)


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("size", [1, 40, 10_000])
def test_bound(seed, size):
    """It is never above the least cost, and what it drops is in no optimum."""
    network, costs, spreads = drawn(100 + seed)
    want = least(costs, spreads)
    if seed % 2:
        network.shrink()
    bound = Bound(network, size)
    bound.rise(time.perf_counter() + 5)
    assert bound.bound <= want + 1e-6 if network.left() else network.offset == pytest.approx(want)
    guess = network.polish(bound.guess())
    assert network.cost(guess) == pytest.approx(price(network.complete(guess), costs, spreads))
    for n, dear in bound.too_dear(want + 1e-6).items():
        assert not dear.all()
        network.drop(n, dear)
    left = network.left()
    found = min(
        network.cost(dict(zip(left, values, strict=True)))
        for values in itertools.product(*(range(len(network.costs[n])) for n in left))
    )
    assert found == pytest.approx(want)


def test_dominance_follows_replacements():
    network = Network()
    a, b, c, d = (network.variable(x) for x in ([3, 0, 3], [0, 0], [0, 5], [0, 0]))
    metric = np.array([[0.0, 1], [1, 0]])
    for pair in itertools.combinations((b, c, d), 2):
        network.spread(Spread(9 * metric, Role(pair[0], (0, 1)), (Role(pair[1], (0, 1)),)))
    for n in (b, c, d):  # four variables around each other: none is eliminated at once
        network.spread(Spread(metric, Role(a, (0, 0, 0)), (Role(n, (0, 1)),)))
    network.shrink()
    assert network.complete({n: network.now(n, 0) for n in network.left()})[a] == 1
    assert math.isclose(network.offset, 0)
