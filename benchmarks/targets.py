"""Accelerators to compile for that this machine need not have: a TPU by its topology (libtpu), a GPU by its description
(jax[cuda12])."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

import spmd_compiler as spmd
from benchmarks.workers import PARTS, Sweep

_HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Target:
    """title: for tables. extra: what to install. environment: of the process that compiles."""

    title: str
    platform: str
    topology: str
    extra: str
    description: str = ""  # a file beside this one
    environment: dict[str, str] = field(default_factory=dict)

    def devices(self) -> list[Any]:
        """The devices of the topology, to make a mesh of. They compile; there is nothing that they could run."""
        if self.description:
            text = (_HERE / self.description).read_text()
            topology = topologies.get_topology_desc(
                "aot", self.platform, topology=self.topology, target_config=text
            )
        else:
            topology = topologies.get_topology_desc(self.topology, self.platform)
        return list(topology.devices)


# libtpu asks the cloud's metadata server which TPU this machine is, and lets one process have it, unless told not to.
_NO_TPU = {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "1", "XLA_FLAGS": ""}
# A GPU that isn't there can't be timed to choose among kernels, and without that XLA picks tiles for Triton that it then
# refuses.
_NO_GPU = {"XLA_FLAGS": "--xla_gpu_autotune_level=0 --xla_gpu_enable_triton_gemm=false"}
TARGETS = {
    "tpu-v5e": Target("TPU v5e, 2x4", "tpu", "v5e:2x4", "tpu-aot", environment=_NO_TPU),
    "h100": Target(
        "8 H100 of one host",
        "cuda",
        "1x1x8",
        "gpu-aot",
        description="h100.textproto",
        environment=_NO_GPU,
    ),
}

CPU = "cpu"
TIMEOUT = 3600.0  # seconds for one program; the TPU's compiler takes minutes for some


def add_target(parser: argparse.ArgumentParser) -> None:
    """The option that says what to compile for."""
    parser.add_argument(
        "--target", default=CPU, choices=(CPU, *TARGETS), help="what to compile for, default %(default)s"
    )


def devices_of(target: str, cpus: int = 8) -> list[Any]:
    """The devices of a target: so many virtual CPUs, or those of a chip that need not be there. For the latter, float32
    operands of matrix products travel as such from now on."""
    if target == CPU:
        spmd.configure_virtual_cpus(cpus)
        return jax.devices()
    # At the default precision XLA may round float32 operands to bfloat16 before it sends them, which would hide what was sent.
    jax.config.update("jax_default_matmul_precision", "highest")
    return TARGETS[target].devices()


def sweep_of(target: str, module: str, state: str, arguments: Sequence[str]) -> Sweep:
    """A sweep over all partitioners for a target, with its rows in a folder of its own under `state`."""
    folder, arguments = Path(state) / target, [*arguments, "--target", target]
    if target == CPU:
        return Sweep(module, PARTS, folder, arguments)
    return Sweep(module, PARTS, folder, arguments, TIMEOUT, TARGETS[target].environment)


def results_of(name: str, target: str) -> Path:
    """Where a table of results lies, without its ending."""
    where = "" if target == CPU else f"-{target}"
    return _HERE / "results" / f"{name}{where}-jax{version('jax')}"


def compiled_for(target: str) -> str:
    """For titles of tables."""
    return f"JAX {version('jax')}" if target == CPU else f"{TARGETS[target].title}, JAX {version('jax')}"
