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
    """The devices of this process, of one kind (`cpu`, `gpu`, `tpu`) or JAX's default."""
    return jax.local_devices(backend=device_type.lower() if device_type else None)


def num_local_devices(device_type: str | None = None) -> int:
    return len(local_devices(device_type))


def num_global_devices(device_type: str | None = None) -> int:
    return len(jax.devices(device_type.lower() if device_type else None))


def create_distributed_mesh(
    mesh_dims: Sequence[tuple[str, int]] | dict[str, int],
    local_devices: Sequence[Any] | None = None,
    device_type: str | None = None,
) -> Mesh:
    """A mesh over the devices of all processes, or in a program of one process over `local_devices`. Raises MeshError if
    their number isn't the product of the sizes."""
    if local_devices is not None and jax.process_count() > 1:
        raise MeshError(
            "local_devices= is for a program of one process; here the mesh has all processes' devices"
        )
    devices = jax.devices(device_type.lower() if device_type else None)
    return Mesh(mesh_dims, list(local_devices) if local_devices is not None else devices)


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
