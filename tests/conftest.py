"""8 virtual CPU devices, before JAX starts."""

import spmd_compiler as spmd

spmd.configure_virtual_cpus(8)
