"""Other meshes for a program: other sizes of its axes, their order, an axis in several."""

from __future__ import annotations

from random import Random

Axes = list[tuple[str, int]]
Renamed = dict[str, tuple[str, ...]]  # what stands for an axis of the original in its layouts
_DEVICES = (8, 8, 8, 4, 6, 2)
# The sizes of the axes, by the kind of a variant; "" is any small mesh.
KINDS: dict[str, tuple[tuple[int, ...], ...]] = {
    "": (),
    "six": ((6,), (2, 3), (3, 2)),
    "cube": ((2, 2, 2),),
    "many": ((8, 8), (16, 4), (4, 16), (4, 4, 4)),
}
MOST = 64  # devices


def draw_mesh(rng: Random, original: Axes, kind: str = "") -> tuple[Axes, Renamed]:
    """A mesh of the kind, and how the original's layouts read on it. The kind "" has at most 8 devices and three axes."""
    return _of_sizes(rng, original, KINDS[kind]) if KINDS[kind] else _small(rng, original)


def _small(rng: Random, original: Axes) -> tuple[Axes, Renamed]:
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


def _of_sizes(rng: Random, original: Axes, shapes: tuple[tuple[int, ...], ...]) -> tuple[Axes, Renamed]:
    """Axes of the original may be cut: their pieces together stand for it, or the first of them alone. Where no shape has
    as many axes as the original, the last are left out."""
    most = min(len(original), max(map(len, shapes)))
    sizes = rng.choice([s for s in shapes if len(s) >= most])
    names = [name for name, _ in original[:most]]
    left_out = {name: () for name, _ in original[most:]}
    renamed: Renamed = {name: (name,) for name in names}
    for k in range(len(sizes) - len(names)):
        cut = rng.choice(list(renamed))
        piece = f"{cut}{k + 2}"
        names.append(piece)
        if rng.random() < 0.7:
            renamed[cut] = (*renamed[cut], piece)
    if rng.random() < 0.5:
        rng.shuffle(names)
    return list(zip(names, sizes, strict=True)), renamed | left_out


def _factorizations(n: int, count: int) -> list[tuple[int, ...]]:
    """The ways to write n as a product of `count` sizes, none of them 1."""
    if count == 1:
        return [(n,)] if n > 1 else []
    return [(d, *rest) for d in range(2, n) if n % d == 0 for rest in _factorizations(n // d, count - 1)]
