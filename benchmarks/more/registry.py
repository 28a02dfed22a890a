"""The table of these programs, and how they are entered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.zoo.common import W, rng
from benchmarks.zoo.registry import Built, Case, case

MORE: dict[str, Case] = {}
Axes = Sequence[tuple[str, int]]
ABC = [("a", 2), ("b", 2), ("c", 2)]
MANUAL = "manual"  # the group of programs that know their mesh: they have no variants on others


def more(name: str, mesh: Axes, group: str = "more") -> Callable:
    """Enters a function `mesh sizes -> Built`."""
    return case(name, mesh, group, table=MORE)


def program(
    name: str,
    mesh: Axes,
    fn: Callable[..., Any],
    args: Callable[[Any], tuple],
    specs: tuple,
    outs: Any = None,
    tol: float = 2e-4,
    group: str = "more",
) -> None:
    """Enters a program by its function, what makes its arguments of random numbers, and its layouts."""
    more(name, mesh, group)(lambda m: Built(fn, args(rng()), specs, outs, tol=tol))


def shifted(name: str, mesh: Axes, source: Any, target: Any, shape=(1024, 1024), fn=None) -> None:
    """Enters a change of layout, beside a little work or `fn`."""
    program(name, mesh, fn or (lambda x: x * 2), lambda r: (W(r, *shape, scale=1),), (source,), target)
