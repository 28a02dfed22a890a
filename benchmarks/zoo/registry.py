"""The table of programs, and what one program consists of."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

FREE = None  # an output that is left to the partitioner
# Meshes of the programs that have no model behind them.
A8 = [("a", 8)]
AB = [("a", 4), ("b", 2)]
CASES: dict[str, Case] = {}
_hint_mesh: list[Mesh] = []


@dataclass
class Built:
    """A program, its arguments, and the specs of its inputs.

    `out_specs`: None leaves every output to the partitioner; else a prefix tree of specs and FREE (train
    steps: the state leaves as it came). `good`: bytes that a device sends in a standard good program, `why`
    says how they come about; `best`: a better figure that is also realisable. `tol`: the relative error
    against one device that is accepted.
    """

    fn: Callable[..., Any]
    args: tuple
    in_specs: tuple
    out_specs: Any = None
    good: float = 0.0
    best: float | None = None
    why: str = ""
    tol: float = 2e-4


@dataclass
class Case:
    name: str
    mesh: list[tuple[str, int]]
    group: str
    build: Callable[[], Built]
    train: bool = False


def case(
    name: str,
    mesh: Sequence[tuple[str, int]],
    group: str,
    train: bool = False,
    table: dict[str, Case] = CASES,
) -> Callable:
    """Enters a function `mesh sizes -> Built` in a table."""

    def enter(make: Callable[[dict[str, int]], Built]) -> Callable[[dict[str, int]], Built]:
        def build() -> Built:
            built = make(dict(mesh))
            built.args = jax.tree.map(np.asarray, built.args)
            return built

        table[name] = Case(name, list(mesh), group, build, train)
        return make

    return enter


def names(patterns: Sequence[str] | None = None, cases: Iterable[str] = CASES) -> list[str]:
    """The programs whose names match one of the shell patterns; all of them without patterns."""
    return [n for n in cases if not patterns or any(fnmatch.fnmatch(n, p) for p in patterns)]


@contextmanager
def hints_on(mesh: Mesh) -> Iterator[None]:
    """While inside, `hint` constrains values to `mesh`; outside, on one device, it does nothing."""
    _hint_mesh.append(mesh)
    try:
        yield
    finally:
        _hint_mesh.pop()


def hint_mesh() -> Mesh | None:
    """The mesh that values are constrained to now."""
    return _hint_mesh[-1] if _hint_mesh else None


def hint(x: jax.Array, *spec: str | tuple[str, ...] | None) -> jax.Array:
    """A user's activation constraint; only the programs named `*_hint` have them."""
    if not _hint_mesh:
        return x
    return lax.with_sharding_constraint(x, NamedSharding(_hint_mesh[-1], P(*spec)))
