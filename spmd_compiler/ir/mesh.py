"""The device mesh as the IR sees it: named axes with sizes, and no devices.

An *axis* is a name, or a piece of one: `a:(2)4` is the sub-axis of `a` whose size is 4 and that has 2 slower-varying
positions of `a` before it (the notation of Shardy's sub-axes). Devices are numbered row-major over the axes.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Iterable, Mapping
from typing import Any

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
_SUB = re.compile(r"(.+):\((\d+)\)(\d+)\Z")


class Mesh:
    """Named axes, major to minor. `Mesh([("batch", 4), ("model", 2)])`; equality is by axes and sizes."""

    __slots__ = ("_coords", "_sizes", "axes", "cache", "local_types", "shape", "size")

    def __init__(self, axes: Iterable[tuple[str, int]] | Mapping[str, int]):
        try:
            given = [(name, size) for name, size in (axes.items() if isinstance(axes, Mapping) else axes)]
        except (TypeError, ValueError):
            raise ValueError(f"mesh axes {axes!r}: give pairs of a name and a size, or a dict") from None
        for name, size in given:
            if not hasattr(size, "__index__"):
                raise ValueError(f"mesh axis {name!r} has size {size!r}, which is no integer")
        pairs = tuple((name, operator.index(size)) for name, size in given)
        names = [n for n, _ in pairs]
        for name, size in pairs:
            if not isinstance(name, str) or not _NAME.match(name):
                raise ValueError(
                    f"mesh axis {name!r}: a name is letters, digits and _, not starting with a digit"
                )
            if size < 1:
                raise ValueError(f"mesh axis {name!r} has size {size}; sizes are at least 1")
            if names.count(name) > 1:
                raise ValueError(f"mesh axis {name!r} is given twice; each axis has its own name")
        self.axes: tuple[tuple[str, int], ...] = pairs
        self.shape: dict[str, int] = dict(pairs)
        self.size = math.prod(s for _, s in pairs)
        self._sizes: dict[tuple[str, ...], int] = {(): 1}
        self._coords: dict[str, tuple[int, int]] = {}
        self.local_types: dict[Any, Any] = {}  # what `layout.local_type` found
        self.cache: dict = {}  # memo tables of passes that are valid for this mesh only

    @property
    def axis_names(self) -> tuple[str, ...]:
        return tuple(self.shape)

    def axis_size(self, axis: str) -> int:
        """Size of an axis or sub-axis; KeyError if the mesh has no such axis."""
        size = self.shape.get(axis)
        return size if size is not None else self.stride_and_size(axis)[1]

    def axes_size(self, axes: Iterable[str]) -> int:
        """The product of their sizes."""
        axes = tuple(axes)
        hit = self._sizes.get(axes)
        if hit is None:
            hit = self._sizes[axes] = math.prod(map(self.axis_size, axes))
        return hit

    def stride_and_size(self, axis: str) -> tuple[int, int]:
        """(stride, size): a device's position on `axis` is `device // stride % size`."""
        hit = self._coords.get(axis)
        if hit is None:
            name, pre, size = parse_axis(axis)
            stride = 1
            for n, s in reversed(self.axes):
                if n == name:
                    break
                stride *= s
            else:
                raise KeyError(axis)
            full = self.shape[name]
            if size is None:
                size = full
            elif full % (pre * size):
                raise KeyError(axis)
            hit = self._coords[axis] = (stride * (full // (pre * size)), size)
        return hit

    def __contains__(self, axis: str) -> bool:
        try:
            self.stride_and_size(axis)
        except KeyError:
            return False
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and self.axes == other.axes

    def __hash__(self) -> int:
        return hash(self.axes)

    def __repr__(self) -> str:
        return "mesh {" + ", ".join(f"{n}={s}" for n, s in self.axes) + "}"


def parse_axis(axis: str) -> tuple[str, int, int | None]:
    """`a:(2)4` -> ("a", 2, 4); a whole axis -> ("a", 1, None)."""
    m = _SUB.match(axis)
    return (m[1], int(m[2]), int(m[3])) if m else (axis, 1, None)


def renamed_axis(axis: str, names: Mapping[str, str]) -> str:
    """An axis, or a piece of one, by the axis' new name, if it has one."""
    name, colon, piece = axis.partition(":")
    return names.get(name, name) + colon + piece


def split_axis(mesh: Mesh, axis: str, major: int) -> tuple[str, str]:
    """Cuts an axis into a major piece of size `major` and the rest; `major` divides its size."""
    size = mesh.axis_size(axis)
    if size % major or major in (1, size):
        raise ValueError(f"axis {axis} of size {size} can't be split at {major}")
    return piece_of(mesh, axis, 1, major), piece_of(mesh, axis, major, size // major)


def piece_of(mesh: Mesh, axis: str, before: int, size: int) -> str:
    """The piece of an axis, or of a piece, that has this size, and `before` slower-varying positions of it before it."""
    name, pre, _ = parse_axis(axis)
    return axis if size == mesh.axis_size(axis) else f"{name}:({pre * before}){size}"


def merge_axes(mesh: Mesh, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Joins neighbouring pieces of one axis: ("a:(1)2", "a:(2)2") -> ("a",) if a has size 4."""
    if not any(":" in a for a in axes):
        return axes
    out: list[str] = []
    for axis in axes:
        name, pre, size = parse_axis(axis)
        if out and size is not None:
            last, last_pre, last_size = parse_axis(out[-1])
            if last == name and last_size is not None and last_pre * last_size == pre:
                pre, size = last_pre, last_size * size
                out.pop()
        out.append(name if size is None or size == mesh.shape[name] else f"{name}:({pre}){size}")
    return tuple(out)
