"""Virtual CPU devices, for trying a mesh on one machine."""

from __future__ import annotations

import os

import jax

from .compat import backend_started
from .errors import SpmdError


def configure_virtual_cpus(count: int) -> None:
    """Makes JAX show `count` CPU devices. Call it before anything starts JAX's backend; raises SpmdError if that is too
    late and another number of devices is there already.

    XLA's CPU client runs each virtual device's program on a thread of one pool; collectives block their thread until all
    devices have arrived. With fewer threads than devices in flight they wait for each other forever, so the pool gets a
    size that can't run out (`NPROC`).
    """
    if backend_started():
        devices = jax.devices()
        if devices[0].platform == "cpu" and len(devices) == count:
            return
        raise SpmdError(
            f"configure_virtual_cpus({count}) comes too late: JAX already runs on {len(devices)} "
            f"{devices[0].platform} devices. Call it before the first array is made or jax.devices() is called"
        )
    pool = max(64, 8 * count, int(os.environ.get("NPROC") or 0))
    os.environ["NPROC"] = str(pool)
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)
