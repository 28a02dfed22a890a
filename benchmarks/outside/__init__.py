"""Programs that nobody here wrote: models and solvers of public JAX libraries.

A program builds (function, arguments) and says which of its arguments are parameters, and which are data. Layouts are made
from that alone: the data's first dim over `data`; of each parameter the last dim that divides over `model`; of images the
rows over `model` too.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import PartitionSpec

MESH = (("data", 4), ("model", 2))
LIBRARIES = ("keras", "flax", "haiku", "equinox", "numpyro", "diffrax", "ott", "jraph")


@dataclass(frozen=True)
class Program:
    """`build() -> (function, arguments)`. roles: per argument "params", "data" or "other"."""

    name: str
    build: Callable[[], tuple[Callable[..., Any], tuple[Any, ...]]]
    roles: tuple[str, ...]
    layouts: tuple[str, ...] = ("data", "model")


def programs(library: str) -> list[Program]:
    """Those of one library. Raises ImportError if it isn't installed."""
    return importlib.import_module(f"benchmarks.outside.{library}_programs").PROGRAMS


def in_layouts(kind: str, program: Program, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The layouts of `kind` ("data", "model" or "spatial") for a program's arguments."""
    return tuple(
        jax.tree.map(lambda x, role=role: _spec(kind, role, np.shape(x)), arg)
        for role, arg in zip(program.roles, args, strict=True)
    )


def _spec(kind: str, role: str, shape: tuple[int, ...]) -> PartitionSpec | None:
    if role == "data" and shape:
        rows = "model" if kind == "spatial" and len(shape) >= 3 else None
        return PartitionSpec("data", rows) if rows else PartitionSpec("data")
    if role == "params" and kind == "model":
        cut = [d for d, n in enumerate(shape) if n % 2 == 0 and n >= 8]
        if cut:
            return PartitionSpec(*(["model" if d == cut[-1] else None for d in range(len(shape))]))
    return PartitionSpec()
