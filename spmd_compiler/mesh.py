"""The public mesh: the IR's named axes, with JAX devices (or none: an abstract mesh compiles, but does not run)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from .errors import MeshError
from .ir import mesh as ir_mesh


class Mesh(ir_mesh.Mesh):
    """Named axes over devices, row-major. `devices` is None for an abstract mesh."""

    __slots__ = ("_jax", "devices")

    def __init__(
        self, axes: Iterable[tuple[str, int]] | Mapping[str, int], devices: Sequence[Any] | None = None
    ):
        try:
            super().__init__(axes)
        except ValueError as error:
            raise MeshError(str(error)) from None
        self.devices = None if devices is None else tuple(devices)
        self._jax: Any = None
        if self.devices is not None:
            if len(self.devices) != self.size:
                raise MeshError(
                    f"{self!r} has {self.size} positions, but {len(self.devices)} devices are given: "
                    "make the product of the sizes equal to the number of devices"
                )
            kinds = {d.platform for d in self.devices}
            if len(kinds) > 1:
                raise MeshError(f"one mesh can't mix devices of different kinds: {', '.join(sorted(kinds))}")

    @property
    def is_abstract(self) -> bool:
        return self.devices is None

    @classmethod
    def from_jax(cls, mesh: Any) -> Mesh:
        """From `jax.sharding.Mesh` or `AbstractMesh`."""
        axes = list(mesh.shape.items())
        if isinstance(mesh, jax.sharding.Mesh):
            return cls(axes, list(mesh.devices.flat))
        return cls(axes)

    def to_jax(self) -> Any:
        """`jax.sharding.Mesh`, or `AbstractMesh` if there are no devices."""
        if self._jax is None:
            names, sizes = self.axis_names, tuple(self.shape.values())
            if self.devices is None:
                self._jax = jax.sharding.AbstractMesh(sizes, names)
            else:
                self._jax = jax.sharding.Mesh(np.array(self.devices, dtype=object).reshape(sizes), names)
        return self._jax

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Mesh) and self.devices != other.devices:
            return False
        return super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()


def create_mesh(
    axes: Iterable[tuple[str, int]] | Mapping[str, int],
    devices: Sequence[Any] | None = None,
    *,
    abstract: bool = False,
) -> Mesh:
    """A mesh over `devices` (default: all), or an abstract one of any size. Raises MeshError if the sizes don't fit."""
    if abstract:
        return Mesh(axes)
    return Mesh(axes, list(devices) if devices is not None else jax.devices())


_current: list[Mesh] = []


@contextmanager
def default_mesh(mesh: Mesh) -> Any:
    """Within it, `spmd_jit` functions and DTensor calls that are given no mesh use this one."""
    _current.append(mesh)
    try:
        yield mesh
    finally:
        _current.pop()


def get_default_mesh() -> Mesh | None:
    return _current[-1] if _current else None
