"""Other layouts for a program: dims permuted, axes left out, added or swapped; the same change for equal layouts, so that
what belongs together (a parameter and its optimizer's state, a step's input and output) stays together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from .meshes import Axes, Renamed

Entry = tuple[str, ...]


@dataclass
class SpecMap:
    """swap: axes by other axes, everywhere. changed: what else befalls a layout, drawn when it is first met."""

    rng: Random
    axes: list[str]
    renamed: Renamed
    swap: dict[str, str]
    share: float  # of the layouts that are changed
    changed: dict[tuple[Entry, ...], tuple[Entry, ...]] = field(default_factory=dict)


def draw_specs(rng: Random, axes: Axes, renamed: Renamed) -> SpecMap:
    names = [name for name, _ in axes]
    swap = {name: name for name in names}
    if len(names) > 1 and rng.random() < 0.25:
        swap = dict(zip(names, rng.sample(names, len(names)), strict=True))
    return SpecMap(rng, names, renamed, swap, rng.choice((0.0, 0.0, 0.4, 0.9)))


def map_specs(change: SpecMap, spec: Sequence[Any], shape: tuple[int, ...], sizes: dict[str, int]) -> tuple:
    """The layout that takes a layout's place, for an array of this shape: what does not divide a dim is left out."""
    entries: list[Entry] = []
    for dim in range(len(shape)):
        e = spec[dim] if dim < len(spec) else None
        old = () if e is None else e if isinstance(e, tuple) else (e,)
        entries.append(tuple(change.swap[new] for a in old for new in change.renamed[a]))
    key = tuple(entries)
    if key not in change.changed:
        change.changed[key] = _permuted(change, key) if change.rng.random() < change.share else key
    out: list[Any] = []
    for size, names in zip(shape, change.changed[key], strict=True):
        while size % math.prod(sizes[a] for a in names):
            names = names[:-1]
        out.append(None if not names else names[0] if len(names) == 1 else names)
    while out and out[-1] is None:
        out.pop()
    return tuple(out)


def _permuted(change: SpecMap, entries: tuple[Entry, ...]) -> tuple[Entry, ...]:
    rng = change.rng
    new = list(entries)
    if not new:
        return entries
    kind = rng.choice(("permute", "permute", "drop", "add"))
    if kind == "permute":
        rng.shuffle(new)
    elif kind == "drop":
        at = rng.randrange(len(new))
        new[at] = new[at][:-1]
    else:
        free = [a for a in change.axes if all(a not in e for e in new)]
        if free:
            at = rng.randrange(len(new))
            new[at] = (*new[at], rng.choice(free))
    return tuple(new)
