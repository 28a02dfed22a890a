"""ott-jax: Sinkhorn's iterations between two clouds of points, and their gradient."""

from __future__ import annotations

import jax
import numpy as np
from ott.geometry import pointcloud
from ott.problems.linear import linear_problem
from ott.solvers.linear import sinkhorn

from . import Program

_RNG = np.random.RandomState(0)
_X, _Y = _RNG.randn(32, 3).astype(np.float32), _RNG.randn(24, 3).astype(np.float32) + 1


def _distance(x, y):
    problem = linear_problem.LinearProblem(pointcloud.PointCloud(x, y, epsilon=0.5))
    return sinkhorn.Sinkhorn(max_iterations=200)(problem)


def _solve():
    def run(x, y):
        out = _distance(x, y)
        return out.f, out.g, out.reg_ot_cost, out.matrix

    return run, (_X, _Y)


def _gradient():
    return jax.value_and_grad(lambda x, y: _distance(x, y).reg_ot_cost), (_X, _Y)


PROGRAMS = [
    Program("ott sinkhorn", _solve, ("data", "data"), ("data",)),
    Program("ott sinkhorn gradient", _gradient, ("data", "data"), ("data",)),
]
