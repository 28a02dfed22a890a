"""Orders of devices as mesh axes: what a list of device numbers says in terms of strides.

An *atom* (stride, size) is a digit of the device number: position `device // stride % size`. A mesh axis is
an atom, and so is a dim of a tile assignment, or a few of them, major to minor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import numpy as np

from .hlo_sharding import TileText
from .mesh import Mesh, merge_axes

Atom = tuple[int, int]


def decompose(ids: np.ndarray) -> list[tuple[Atom, ...]] | None:
    """The atoms of each dim of an array of device numbers; None if its order is no order of digits."""
    if ids.size == 0 or ids.flat[0] != 0:
        return None
    total = np.zeros((1,) * ids.ndim, np.int64)
    dims = []
    for d in range(ids.ndim):
        line = ids[(0,) * d + (slice(None),) + (0,) * (ids.ndim - d - 1)]
        atoms = _digits(line)
        if atoms is None:
            return None
        dims.append(atoms)
        total = total + line.reshape((1,) * d + (-1,) + (1,) * (ids.ndim - d - 1))
    return dims if np.array_equal(total, ids) else None


def _digits(line: np.ndarray) -> tuple[Atom, ...] | None:
    """A sequence that starts at 0 as a sum of digits times strides, major to minor."""
    n = len(line)
    if n == 1:
        return ()
    stride = int(line[1])
    if stride <= 0:
        return None
    linear = np.arange(n) * stride == line
    run = n if linear.all() else int(np.argmin(linear))
    while n % run or not (line.reshape(-1, run) == line[::run, None] + line[:run]).all():
        run -= 1
        if run < 2:
            return None
    major = _digits(line[::run])
    return None if major is None else (*major, (stride, run))


def tile_atoms(tiles: TileText) -> list[tuple[Atom, ...]] | None:
    """Atoms per tile dim, subgroups included; None if irregular."""
    if tiles.iota_shape:
        count = int(np.prod(tiles.iota_shape))
        flat = np.arange(count).reshape(tiles.iota_shape).transpose(tiles.iota_order)
    else:
        flat = np.array(tiles.ids)
    ids = flat.reshape(tiles.tiles)
    if tiles.subgroups and tiles.subgroups[-1] == "replicated":
        ids = np.sort(ids, axis=-1)  # replicas have no order
    return decompose(ids)


def axes_of(atoms: Iterable[Atom], mesh: Mesh) -> tuple[str, ...] | None:
    """The mesh axes, and pieces of axes, that atoms are; None if they cut across axes."""
    out: list[str] = []
    for stride, size in atoms:
        covered = 1
        for name, whole in mesh.axes:
            first, _ = mesh.stride_and_size(name)
            low, high = max(stride, first), min(stride * size, first * whole)
            if low >= high:
                continue
            if low % first or (first * whole) % high or high % low or low % stride or (stride * size) % high:
                return None
            piece = high // low
            covered *= piece
            out.append(name if piece == whole else f"{name}:({first * whole // high}){piece}")
        if covered != size:
            return None
    return merge_axes(mesh, tuple(out))


def common_mesh(devices: int, atoms: Iterable[Atom]) -> Mesh:
    """The coarsest mesh on which the atoms are axes; atoms that contradict earlier ones are left out."""
    bounds = [1, devices]
    for stride, size in atoms:
        trial = sorted({*bounds, stride, stride * size})
        if all(b % a == 0 for a, b in pairwise(trial)):
            bounds = trial
    sizes = [b // a for a, b in pairwise(sorted(bounds))]
    return Mesh([(f"d{i}", size) for i, size in enumerate(reversed(sizes))])


def ordered_mesh(axes: Sequence[tuple[str, int]], device_ids: Sequence[int]) -> Mesh | None:
    """The mesh whose row-major numbering is the device numbering: the same axes in another order, or None."""
    sizes = [size for _, size in axes]
    atoms = decompose(np.array(device_ids).reshape(sizes))
    if atoms is None or any(len(a) > 1 for a in atoms):
        return None
    strides = [a[0][0] if a else 0 for a in atoms]
    order = sorted(range(len(axes)), key=lambda i: -strides[i])
    return Mesh([axes[i] for i in order])
