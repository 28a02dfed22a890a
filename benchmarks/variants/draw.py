"""Draws a variant of a program: another mesh, other sizes of its arguments' dims, other layouts.

A size is replaced wherever it stands in the arguments' shapes, so that what fitted together still does; where the
program has the size written in its text it won't trace, and others are tried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import jax
import numpy as np

from benchmarks import zoo
from benchmarks.more import MORE

from .layouts import SpecMap, draw_specs, map_specs
from .meshes import Axes, draw_mesh

_FACTORS = ((1, 2), (1, 1), (1, 1), (3, 4), (3, 2), (2, 1))  # a size is multiplied by one of these
_LARGER = ((1, 1), (1, 1), (2, 1), (2, 1), (4, 1), (3, 2))  # for meshes of many devices
_TRIES = 12
_LARGEST = 2.0  # times the arguments' bytes of the original
_LARGEST_OF_MANY = 8.0
# What follows `~` in the name of a variant: the kind of its mesh, and a number.
ROUNDS = (*map(str, range(8)), "six0", "cube0", "many0", "six1", "many1")


@dataclass
class Variant:
    """A program like another. `what`: how it differs from the original."""

    name: str
    axes: Axes
    built: zoo.Built
    what: str


def names(limit: int | None = None, cases: Iterable[str] = zoo.CASES) -> list[str]:
    """`program~number` of the first `limit` variants, in turn of every program."""
    every = [f"{case}~{variant}" for variant in ROUNDS for case in cases]
    return every[:limit]


def kind_of(name: str) -> str:
    """The kind of a variant's mesh (`meshes.KINDS`)."""
    return name.split("~")[1].rstrip("0123456789")


def draw(name: str, seed: int) -> Variant:
    """The same variant for the same name and seed."""
    case_name, kind = name.split("~")[0], kind_of(name)
    rng = Random(f"{seed} {name}")
    case = zoo.CASES.get(case_name) or MORE[case_name]
    built = case.build()
    axes, renamed = draw_mesh(rng, case.mesh, kind)
    thirds = any(size % 3 == 0 for _, size in axes)
    factors, largest = (_LARGER, _LARGEST_OF_MANY) if kind == "many" else (_FACTORS, _LARGEST)
    for attempt in range(_TRIES):
        sizes = _draw_sizes(rng, built, thirds, factors, largest) if attempt < _TRIES - 1 else {}
        resized = replace(built, args=_resize(built.args, sizes))
        outs = _outputs(resized, axes)
        if outs is not None:
            break
    else:
        raise ValueError(f"{name}: the program does not trace")
    specs = draw_specs(rng, axes, renamed)
    described: dict[str, None] = {}
    changed = replace(
        resized,
        in_specs=_mapped(built.in_specs, resized.args, specs, axes, described),
        out_specs=None if built.out_specs is None else _mapped(built.out_specs, outs, specs, axes, described),
    )
    grown = [f"{a}→{b}" for a, b in sizes.items() if a != b]
    what = "; ".join(filter(None, [" ".join(grown), " ".join(described)]))
    return Variant(name, axes, changed, what)


def _draw_sizes(
    rng: Random, built: zoo.Built, thirds: bool, factors: Sequence[tuple[int, int]], largest: float
) -> dict[int, int]:
    """Another size for each size, by one of the factors. `thirds`: most become multiples of 3. `largest`: how often the
    arguments' bytes at most."""
    found = sorted({n for a in jax.tree.leaves(built.args) for n in a.shape if n >= 4})
    total = sum(a.nbytes for a in jax.tree.leaves(built.args))
    for _ in range(20):
        sizes = {}
        for n in found:
            up, down = rng.choice(factors)
            if thirds and rng.random() < 0.8:
                up, down = rng.choice(((3, 4), (3, 2)))
            sizes[n] = n * up // down
        changed = sum(
            a.itemsize * np.prod([sizes.get(n, n) for n in a.shape]) for a in jax.tree.leaves(built.args)
        )
        if changed <= largest * total:
            return sizes
    return {}


def _resize(args: tuple, sizes: dict[int, int]) -> tuple:
    """The arguments cut or continued periodically; indices stay below the size that they were drawn for."""
    found = sorted({n for a in jax.tree.leaves(args) for n in a.shape})

    def resized(a: np.ndarray) -> np.ndarray:
        for dim, n in enumerate(a.shape):
            if n in sizes:
                a = np.take(a, np.arange(sizes[n]), axis=dim, mode="wrap")
        if a.dtype == np.int32 and a.ndim and a.size:
            bound = next((n for n in found if n > a.max()), 0)
            if bound:
                a = a % np.int32(sizes.get(bound, bound))
        return a

    return jax.tree.map(resized, args)


def _outputs(built: zoo.Built, axes: Axes) -> Any:
    """The structs of the program's results; None if it does not trace."""
    try:
        return jax.eval_shape(lambda *args: built.fn(*args), *built.args)
    except (TypeError, ValueError, IndexError, ZeroDivisionError):
        return None


def _mapped(specs: Any, values: Any, change: SpecMap, axes: Axes, described: dict[str, None]) -> Any:
    """The layout of every leaf of `values` after the change, of a prefix tree of layouts; `described` gets the changes."""
    sizes = dict(axes)

    def leaf(spec: Any, value: Any) -> Any:
        if spec is None:
            return None
        new = map_specs(change, spec, tuple(value.shape), sizes)
        rank = len(value.shape)
        before, after = _show(spec, rank), _show(new, rank)
        if before != after:
            described[f"{before}→{after}"] = None
        return jax.sharding.PartitionSpec(*new)

    def subtree(spec: Any, tree: Any) -> Any:
        return jax.tree.map(lambda value: leaf(spec, value), tree)

    return jax.tree.map(
        subtree, specs, values, is_leaf=lambda s: s is None or isinstance(s, jax.sharding.PartitionSpec)
    )


def _show(spec: Sequence[Any], rank: int) -> str:
    entries = [*spec, *(None for _ in range(rank - len(spec)))]
    shown = ["-" if not e else ".".join(e) if isinstance(e, tuple) else e for e in entries]
    return "{" + ",".join(shown) + "}"
