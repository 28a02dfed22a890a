"""Accelerators to compile for that this machine need not have: a TPU by its topology (libtpu), a GPU by its description
(jax[cuda12])."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

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


def whole_operands() -> None:
    """Has float32 operands of matrix products travel as such: at the default precision accelerators round them to
    bfloat16, and XLA may do so before it sends them, which would hide what was sent."""
    jax.config.update("jax_default_matmul_precision", "highest")
