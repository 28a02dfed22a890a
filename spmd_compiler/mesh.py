"""The public mesh: the IR's named axes, with JAX devices (or none: an abstract mesh compiles, but does not run)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractDevice, AbstractMesh, AxisType

from . import compat, compat_executables
from .errors import MeshError
from .ir import mesh as ir_mesh
from .passes.pipeline import Target


class Mesh(ir_mesh.Mesh):
    """Named axes over devices, row-major. `devices` is None for an abstract mesh; `abstract_device` says what devices it
    stands for, so that programs for it have their kernels. The devices of a topology from `jax.experimental.topologies`
    need not be there: programs compile for them, and don't run. `axis_types`: JAX's, that a mesh came with, if it is one on
    which types of arrays tell how they lie (`jax.make_mesh`): results lie on that, while programs are traced on axes of type
    Auto. Meshes that differ in these alone are equal.

    Raises MeshError for a repeated or malformed axis, for a number of devices that is not the product of the sizes,
    for a device given twice, and for devices of several kinds.
    """

    __slots__ = ("_abstract", "_auto", "_jax", "abstract_device", "axis_types", "devices")

    def __init__(
        self,
        axes: Iterable[tuple[str, int]] | Mapping[str, int],
        devices: Sequence[Any] | None = None,
        abstract_device: AbstractDevice | None = None,
        axis_types: tuple[AxisType, ...] | None = None,
    ):
        try:
            super().__init__(axes)
        except (ValueError, TypeError) as error:
            raise MeshError(str(error)) from None
        self.devices = None if devices is None else tuple(devices)
        self.abstract_device = abstract_device
        self.axis_types = axis_types if axis_types and AxisType.Explicit in axis_types else None
        self._jax: Any = None
        self._auto: Any = None
        self._abstract: Any = None
        if self.devices is not None:
            self._check_devices(self.devices)

    def _check_devices(self, devices: tuple[Any, ...]) -> None:
        if len(devices) != self.size:
            raise MeshError(
                f"{self!r} has {self.size} positions, but there are {len(devices)} devices: "
                "make the product of the sizes equal to the number of devices, or pass devices="
            )
        if len(set(devices)) != len(devices):
            raise MeshError(f"{self!r}: a device is given twice; each position has its own device")
        kinds = {f"{d.platform} {d.device_kind}" for d in devices}
        if len(kinds) > 1:
            raise MeshError(f"one mesh can't mix devices of different kinds: {', '.join(sorted(kinds))}")

    def __copy__(self) -> Mesh:
        return self

    def __deepcopy__(self, memo: Any) -> Mesh:
        """Itself, as JAX's: devices can't be copied."""
        return self

    @property
    def is_abstract(self) -> bool:
        """Whether it has sizes but no devices: programs are compiled for it, and not run."""
        return self.devices is None

    def check_runs(self, program: str) -> None:
        """Raises MeshError if the devices are those of a topology that is only described."""
        if self.devices and compat.only_compiles(self.devices[0]):
            raise MeshError(
                f"{program} can't run: the devices of {self!r} are a topology's description, which programs are compiled "
                "for with .lower(...).compile(); run them on a mesh of jax.devices()"
            )

    @property
    def dim_names(self) -> tuple[str, ...]:
        """The axis names, by DTensor's name for them."""
        return self.axis_names

    def dim_size(self, name: str) -> int:
        """Size of an axis; MeshError if there is no such axis."""
        if name not in self.shape:
            raise MeshError(f"{self!r} has no axis {name!r}")
        return self.shape[name]

    @classmethod
    def from_jax(cls, mesh: jax.sharding.Mesh | AbstractMesh) -> Mesh:
        """From `jax.sharding.Mesh` or `AbstractMesh`. Raises MeshError for anything else."""
        if not isinstance(mesh, jax.sharding.Mesh | AbstractMesh):
            raise MeshError(f"Mesh.from_jax: {mesh!r} is no mesh of JAX's")
        axes, types = list(mesh.shape.items()), mesh.axis_types
        if isinstance(mesh, jax.sharding.Mesh):
            return cls(axes, list(mesh.devices.flat), axis_types=types)
        return cls(axes, abstract_device=mesh.abstract_device, axis_types=types)

    def to_jax(self) -> Any:
        """`jax.sharding.Mesh`, or `AbstractMesh` if there are no devices; its axes are of type Auto, unless it came from one with
        others."""
        if self._jax is None:
            self._jax = self.auto if self.axis_types is None else self._on_jax(self.axis_types)
        return self._jax

    @property
    def auto(self) -> Any:
        """The same with axes of type Auto: what programs are traced on."""
        if self._auto is None:
            self._auto = self._on_jax((AxisType.Auto,) * len(self.axis_names))
        return self._auto

    def _on_jax(self, types: tuple[AxisType, ...]) -> Any:
        names, sizes = self.axis_names, tuple(self.shape.values())
        if self.devices is None:
            return AbstractMesh(sizes, names, axis_types=types, abstract_device=self.abstract_device)
        devices = np.empty(len(self.devices), dtype=object)
        devices[:] = self.devices
        return jax.sharding.Mesh(devices.reshape(sizes), names, axis_types=types)

    @property
    def platform(self) -> str | None:
        """What its devices are, or those that it stands for: `cpu`, `cuda`, `rocm`, `tpu`; None if it stands for none."""
        if self.devices is None and self.abstract_device is None:
            return None
        return compat.lowering_platform(self.devices, self.abstract_device)

    @property
    def memory(self) -> int | None:
        """Bytes of a device, the least of them; None where that is not known, as of CPUs and of other processes' devices:
        all processes must make the same program."""
        found = [compat.device_memory(d) for d in self.devices or ()]
        known = [n for n in found if n is not None]
        return min(known) if known and len(known) == len(found) else None

    @property
    def target(self) -> Target:
        """What the compiler has to know of the devices. XLA keeps all-gathers of several operands on CPUs that run replicas; its
        partitioner rejects those between partitions."""
        platform = self.platform
        variadic = platform in (None, "cpu") and compat_executables.runs_replicas(platform)
        return Target(platform, self.memory, variadic)

    @property
    def abstract(self) -> AbstractMesh:
        """The axes alone, of type Auto, as JAX's `AbstractMesh`."""
        if self._abstract is None:
            mesh = self.auto
            self._abstract = mesh if self.devices is None else mesh.abstract_mesh
        return self._abstract

    @property
    def typed(self) -> AbstractMesh:
        """The axes alone, of the types that they came with."""
        mesh = self.to_jax()
        return mesh if self.devices is None else mesh.abstract_mesh

    def __eq__(self, other: object) -> bool:
        devices = self.devices, self.abstract_device
        if isinstance(other, Mesh) and devices != (other.devices, other.abstract_device):
            return False
        return super().__eq__(other)

    def __hash__(self) -> int:
        return super().__hash__()


def as_mesh(mesh: Any, where: str) -> Mesh:
    """The mesh that a user gives: one of ours, or JAX's. Raises MeshError for anything else, naming `where`."""
    if isinstance(mesh, (jax.sharding.Mesh, AbstractMesh)):
        return Mesh.from_jax(mesh)
    if not isinstance(mesh, Mesh):
        raise MeshError(f"{where}: {mesh!r} is no mesh; make one with spmd.create_mesh")
    return mesh


def check_global(what: str) -> None:
    """Raises MeshError where arrays are the blocks of one device."""
    if axes := compat.manual_axes():
        raise MeshError(
            f"{what} is called within jax.shard_map or jax.pmap over {', '.join(axes)}, where arrays are the blocks of one device; it "
            "takes whole ones: call it outside, or call a plain function there"
        )


def create_mesh(
    axes: Iterable[tuple[str, int]] | Mapping[str, int],
    devices: Sequence[Any] | np.ndarray | None = None,
    *,
    abstract: bool = False,
    abstract_device: AbstractDevice | None = None,
) -> Mesh:
    """A mesh over `devices` (a list, or an array such as `mesh_utils.create_device_mesh` returns; default: all), or an abstract
    one of any size. `axes`: pairs or a dict of name and size,
    major to minor. `abstract_device`: the kind of devices that an abstract mesh stands for (default: JAX's own), such as
    `jax.sharding.AbstractDevice("TPU v5e", 1, "tpu")`. Raises MeshError if the sizes don't fit the devices."""
    if abstract:
        if devices is not None:
            raise MeshError("an abstract mesh has no devices; drop devices= or abstract=True")
        return Mesh(axes, abstract_device=abstract_device)
    if abstract_device is not None:
        raise MeshError("abstract_device= is for meshes without devices; drop it or add abstract=True")
    if devices is None:
        return Mesh(axes, jax.devices())
    found = devices.ravel().tolist() if isinstance(devices, np.ndarray) else devices
    found = list(found) if isinstance(found, Iterable) else [found]
    if not all(hasattr(d, "device_kind") for d in found):
        raise MeshError(f"devices={devices!r}: give a list or an array of jax.devices()")
    return Mesh(axes, found)


_default: ContextVar[Mesh | None] = ContextVar("spmd_default_mesh", default=None)


@contextmanager
def default_mesh(mesh: Mesh | jax.sharding.Mesh | AbstractMesh) -> Iterator[Mesh]:
    """Within it, `spmd_jit` functions and DTensor calls that are given no mesh use this one."""
    mesh = as_mesh(mesh, "default_mesh")
    token = _default.set(mesh)
    try:
        yield mesh
    finally:
        _default.reset(token)


def get_default_mesh() -> Mesh | None:
    """The mesh of the innermost `default_mesh`, or None."""
    return _default.get()
