"""Processes and devices, by DTensor's names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import multihost_utils

from .errors import MeshError
from .mesh import Mesh, as_mesh


def num_clients() -> int:
    """How many processes take part."""
    return jax.process_count()


def client_id() -> int:
    """This process' number, from 0."""
    return jax.process_index()


def local_devices(device_type: str | None = None) -> list[Any]:
    """The devices of this process, of one kind (`cpu`, `gpu`, `tpu`) or JAX's default. Raises MeshError if there are none of it."""
    return [d for d in _devices(device_type) if d.process_index == jax.process_index()]


def num_local_devices(device_type: str | None = None) -> int:
    """How many `local_devices` there are."""
    return len(local_devices(device_type))


def num_global_devices(device_type: str | None = None) -> int:
    """How many devices of a kind all processes have; see `local_devices`."""
    return len(_devices(device_type))


def _devices(device_type: str | None) -> list[Any]:
    try:
        return jax.devices(device_type.lower() if device_type else None)
    except RuntimeError as error:
        raise MeshError(f"there are no devices of type {device_type!r}: {error}") from None


def create_distributed_mesh(
    mesh_dims: Sequence[tuple[str, int]] | dict[str, int],
    local_devices: Sequence[Any] | None = None,
    device_type: str | None = None,
) -> Mesh:
    """A mesh over the devices of all processes, or in a program of one process over `local_devices`. Raises MeshError if
    their number isn't the product of the sizes, or there are none of a type."""
    if local_devices is not None and jax.process_count() > 1:
        raise MeshError(
            "local_devices= is for a program of one process; here the mesh has all processes' devices"
        )
    return Mesh(mesh_dims, list(local_devices) if local_devices is not None else _devices(device_type))


def barrier(mesh: Mesh, name: str = "spmd_barrier") -> None:
    """Returns when all devices of the mesh have done what was asked of them before, in all processes."""
    mesh = as_mesh(mesh, "barrier")
    if mesh.devices is None:
        raise MeshError(f"barrier: {mesh!r} is abstract, it has no devices")
    local = [d for d in mesh.devices if d.process_index == jax.process_index()]
    # A device runs what it is given in order, so these come last.
    jax.block_until_ready([jnp.add(jax.device_put(0, d), 1) for d in local])
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(name)
