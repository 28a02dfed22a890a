"""Which devices talk to which: the groups and pairs of a collective over mesh axes, as arrays and as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from .mesh import Mesh, parse_axis

Axes = tuple[str, ...]


def strides(mesh: Mesh, axes: Axes) -> list[tuple[int, int, int]]:
    """Per axis (stride, size, weight): a device's row-major position on `axes` is the sum of
    `device // stride % size * weight`. Axes of size 1 are left out, and
    neighbours that lie together in the mesh joined."""
    out: list[tuple[int, int]] = []
    for axis in axes:
        stride, size = mesh.stride_and_size(axis)
        if size == 1:
            continue
        if out and out[-1][0] == stride * size:
            out[-1] = (stride, out[-1][1] * size)
        else:
            out.append((stride, size))
    weighted, weight = [], 1
    for stride, size in reversed(out):
        weighted.append((stride, size, weight))
        weight *= size
    return weighted[::-1]


def positions(mesh: Mesh, axes: Axes) -> np.ndarray:
    """int64[devices]: every device's row-major position on `axes`."""
    devices = np.arange(mesh.size)
    out = np.zeros_like(devices)
    for stride, size, weight in strides(mesh, axes):
        out += devices // stride % size * weight
    return out


def _offsets(mesh: Mesh, axes: Axes, index: np.ndarray) -> np.ndarray:
    """What a position on `axes` adds to the number of a device."""
    out = np.zeros_like(index)
    for stride, size, weight in strides(mesh, axes):
        out += index // weight % size * stride
    return out


def device_groups(mesh: Mesh, axes: Axes) -> np.ndarray:
    """int64[groups, size]: the devices that differ on `axes` only, each group in the order of `axes`."""
    cache = mesh.cache.setdefault("device_groups", {})
    hit = cache.get(axes)
    if hit is None:
        index = positions(mesh, axes)
        first = np.arange(mesh.size) - _offsets(mesh, axes, index)
        order = np.lexsort((index, first))
        hit = cache[axes] = order.reshape(-1, mesh.axes_size(axes))
    return hit


def shift_pairs(mesh: Mesh, axes: Axes, shift: int, wrap: bool) -> np.ndarray:
    """int64[pairs, 2]: every device and the one `shift` further along `axes`; without `wrap` those beyond the
    end neither send nor receive."""
    cache = mesh.cache.setdefault("shift_pairs", {})
    hit = cache.get((axes, shift, wrap))
    if hit is None:
        size, devices = mesh.axes_size(axes), np.arange(mesh.size)
        index = positions(mesh, axes)
        target = index + shift
        inside = np.ones_like(target, bool) if wrap else (target >= 0) & (target < size)
        target = devices - _offsets(mesh, axes, index) + _offsets(mesh, axes, target % size)
        hit = cache[(axes, shift, wrap)] = np.stack([devices, target], 1)[inside]
    return hit


def transfer_pairs(mesh: Mesh, axes: Axes, target_axes: Axes) -> np.ndarray:
    """int64[devices, 2]: the device at position k on `axes` sends to the one at position k on `target_axes`,
    which are pieces of the same axes in another order."""
    cache = mesh.cache.setdefault("transfer_pairs", {})
    hit = cache.get((axes, target_axes))
    if hit is None:
        devices, index = np.arange(mesh.size), positions(mesh, axes)
        rest = devices - _offsets(mesh, axes, index)
        hit = cache[(axes, target_axes)] = np.stack([devices, rest + _offsets(mesh, target_axes, index)], 1)
    return hit


def permute_pairs(mesh: Mesh, attrs: Mapping[str, Any]) -> np.ndarray:
    """int64[pairs, 2]: (sender, receiver) of a collective_permute with these attributes. Raises KeyError if they don't say
    who sends to whom."""
    axes = attrs["axes"]
    if "target_axes" in attrs:
        return transfer_pairs(mesh, axes, attrs["target_axes"])
    if "shift" in attrs:
        return shift_pairs(mesh, axes, attrs["shift"], attrs.get("wrap", False))
    return listed_pairs(mesh, axes, attrs["pairs"])


def listed_pairs(mesh: Mesh, axes: Axes, pairs: tuple[tuple[int, int], ...]) -> np.ndarray:
    """int64[pairs, 2]: for each (sender, receiver), given by position on `axes`, all devices at these positions."""
    cache = mesh.cache.setdefault("listed_pairs", {})
    hit = cache.get((axes, pairs))
    if hit is None:
        index = positions(mesh, axes)
        target = np.full(mesh.axes_size(axes), -1)
        target[[a for a, _ in pairs]] = [b for _, b in pairs]
        sends = np.flatnonzero(target[index] >= 0)
        here = index[sends]
        there = sends - _offsets(mesh, axes, here) + _offsets(mesh, axes, target[here])
        hit = cache[(axes, pairs)] = np.stack([sends, there], 1)
    return hit


def mesh_axes_text(mesh: Mesh, axes: Iterable[str]) -> str:
    """The groups of a collective over `axes`, in a form as short for many devices as for few."""
    cache = mesh.cache.setdefault("mesh_axes_text", {})
    names = tuple(axes)
    hit = cache.get(names)
    if hit is None:
        sizes = ", ".join(f'#stablehlo.mesh_axis<name = "{n}", size = {s}>' for n, s in mesh.axes)
        refs = ", ".join(map(_axis_ref, names))
        mesh_text = f"#stablehlo.mesh<axes = [{sizes}]>"
        hit = cache[names] = f"#stablehlo.replica_group_mesh_axes<mesh = {mesh_text}, axes = [{refs}]>"
    return hit


def _axis_ref(axis: str) -> str:
    name, before, size = parse_axis(axis)
    piece = "" if size is None else f", sub_axis_info = ({before}){size}"
    return f'#stablehlo.axis_ref<name = "{name}"{piece}>'
