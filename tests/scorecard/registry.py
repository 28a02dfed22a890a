"""The table of bugs, and what the program of one consists of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

HARNESS = (
    "jax test harness"  # in place of an issue: found by running JAX's own primitive harnesses under layouts
)


@dataclass(frozen=True)
class Program:
    """A program, its arguments and the specs of arguments and results.

    out_specs: a prefix tree of specs; None leaves a result to the partitioner. explicit: the specs are types of the
    traced values (axes of type Explicit). x64: 64-bit types are on. reference: what computes the right results, `fn` on
    one device without. tol: the error that is accepted, relative to a result's largest number; integers must be equal.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    in_specs: tuple[Any, ...]
    out_specs: Any = None
    explicit: bool = False
    x64: bool = False
    reference: Callable[..., Any] | None = None
    tol: float = 1e-5


@dataclass(frozen=True)
class Bug:
    """issues: `owner/repository#number`, or HARNESS. sent: bytes that a device of a lean program sends at most."""

    name: str
    issues: tuple[str, ...]
    what: str
    mesh: tuple[tuple[str, int], ...]
    sent: float
    build: Callable[[], Program]


BUGS: dict[str, Bug] = {}


def bug(
    *issues: str, what: str, sent: float, **mesh: int
) -> Callable[[Callable[[], Program]], Callable[[], Program]]:
    """Enters a function that builds a program in the table, on a mesh of these axes."""

    def enter(build: Callable[[], Program]) -> Callable[[], Program]:
        name = build.__name__
        BUGS[name] = Bug(name, issues, what, tuple(mesh.items()), sent, build)
        return build

    return enter


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randn(*shape).astype(np.float32)


def integers(high: int, *shape: int, seed: int = 0) -> np.ndarray:
    return np.random.RandomState(seed).randint(0, high, shape).astype(np.int32)
