"""Other meshes for a program: other sizes of its axes, their order, an axis in two."""

from __future__ import annotations

from random import Random

Axes = list[tuple[str, int]]
Renamed = dict[str, tuple[str, ...]]  # what stands for an axis of the original in its layouts
_DEVICES = (8, 8, 8, 4, 6, 2)


def draw_mesh(rng: Random, original: Axes) -> tuple[Axes, Renamed]:
    """A mesh of at most 8 devices and three axes, and how the original's layouts read on it."""
    axes = list(original)
    renamed: Renamed = {name: (name,) for name, _ in axes}
    if len(axes) < 3 and rng.random() < 0.35:
        at = rng.randrange(len(axes))
        name = axes[at][0]
        other = name + "2"
        axes.insert(at + rng.randint(0, 1), (other, 0))
        renamed[name] = rng.choice(((name, other), (other, name), (name,), (name, other)))
    if len(axes) > 1 and rng.random() < 0.3:
        rng.shuffle(axes)
    if axes == original and rng.random() < 0.3:
        return axes, renamed  # the original's sizes
    devices = rng.choice([n for n in _DEVICES if len(_factorizations(n, len(axes))) > 0])
    sizes = rng.choice(_factorizations(devices, len(axes)))
    return [(name, size) for (name, _), size in zip(axes, sizes, strict=True)], renamed


def _factorizations(n: int, count: int) -> list[tuple[int, ...]]:
    """The ways to write n as a product of `count` sizes, none of them 1."""
    if count == 1:
        return [(n,)] if n > 1 else []
    return [(d, *rest) for d in range(2, n) if n % d == 0 for rest in _factorizations(n // d, count - 1)]
