"""Virtual CPU devices, for trying a mesh on one machine."""

from __future__ import annotations

import os
import re
import warnings

import jax

from .compat import backend_started
from .errors import ArgumentError, SpmdError

_HOST_DEVICES = re.compile(r"--xla_force_host_platform_device_count=\S+")


def configure_virtual_cpus(count: int) -> None:
    """Makes JAX show `count` CPU devices, and use them unless JAX_PLATFORMS says otherwise. Call it before anything
    starts JAX's backend; raises SpmdError if that is too late and JAX has another number of CPU devices, and warns if it has as many,
    on too few threads.

    XLA's CPU client runs each virtual device's program on a thread of one pool, and a collective blocks its thread until
    all devices have arrived. With fewer threads than programs in flight these can wait for each other forever, so
    the pool gets a size (`NPROC`) that asynchronous steps don't exhaust.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise ArgumentError(f"configure_virtual_cpus({count!r}): give a number of devices, at least 1")
    if backend_started():
        have = jax.devices("cpu")
        if len(have) == count:
            _check_pool(count)
            return
        raise SpmdError(
            f"configure_virtual_cpus({count}) comes too late: JAX runs already, on {len(have)} CPU device(s). Call it "
            "before the first array is made and before jax.devices()"
        )
    pool = max(64, 8 * count, int(os.environ.get("NPROC") or 0))
    os.environ["NPROC"] = str(pool)
    # JAX refuses to be told in two ways.
    flags = _HOST_DEVICES.sub("", os.environ.get("XLA_FLAGS", ""))
    if "XLA_FLAGS" in os.environ:
        os.environ["XLA_FLAGS"] = flags.strip()
    jax.config.update("jax_num_cpu_devices", count)
    if not jax.config.jax_platforms:
        jax.config.update("jax_platforms", "cpu")


def _check_pool(count: int) -> None:
    threads = int(os.environ.get("NPROC") or os.cpu_count() or 1)
    if threads < 2 * count:
        warnings.warn(
            f"configure_virtual_cpus({count}) comes too late to give XLA's CPU client more than {threads} threads, on which collectives "
            f"can wait for each other forever: call it before anything else, or set NPROC={2 * count} or more",
            RuntimeWarning,
            stacklevel=3,
        )
