"""Simple models of machines: for estimates of time, and for a search that minimises it."""

from __future__ import annotations

import math
import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import ArgumentError


@dataclass(frozen=True)
class Hardware:
    """One device and its links.

    flops: peak floating point operations per second, by element type; `default` for the others. memory_bandwidth: bytes
    per second. link_bandwidth: bytes per second that a device sends along one mesh axis; link_latency: seconds that one
    message takes at least. memory: bytes. axes: per mesh axis (bandwidth, latency), where they differ from that.
    asynchronous: a device computes while it sends. Raises ArgumentError for rates that are not positive, or without a default.
    """

    name: str
    flops: dict[str, float] = field(hash=False)
    memory_bandwidth: float
    link_bandwidth: float
    link_latency: float
    memory: float
    axes: dict[str, tuple[float, float]] = field(default_factory=dict, hash=False)
    asynchronous: bool = True

    def __post_init__(self) -> None:
        try:
            self._check()
        except ArgumentError:
            raise
        except (TypeError, AttributeError, ValueError) as error:
            raise ArgumentError(
                f"hardware {self.name}: flops are numbers by element type, axes (bandwidth, latency) by mesh axis: {error}"
            ) from None

    def _check(self) -> None:
        if "default" not in self.flops:
            raise ArgumentError(f"hardware {self.name}: flops has no `default`")
        latencies = [self.link_latency, *(latency for _, latency in self.axes.values())]
        bandwidths = [
            self.memory_bandwidth,
            self.link_bandwidth,
            *(bandwidth for bandwidth, _ in self.axes.values()),
        ]
        rates = [*self.flops.values(), *bandwidths, self.memory]
        if not all(0 < x < math.inf for x in rates) or not all(0 <= x < math.inf for x in latencies):
            raise ArgumentError(
                f"hardware {self.name}: rates and memory are positive numbers, latencies not negative"
            )

    def peak(self, dtype: str) -> float:
        """Floating-point operations per second on operands of a dtype."""
        return self.flops.get(dtype, self.flops["default"])

    def link(self, axes: tuple[str, ...]) -> tuple[float, float]:
        """(bandwidth, latency) of a collective over `axes`: those of the slowest."""
        links = [self.axes.get(a.split(":")[0], (self.link_bandwidth, self.link_latency)) for a in axes]
        return min(b for b, _ in links), max(latency for _, latency in links)

    @classmethod
    def from_toml(cls, path: str | Path) -> Hardware:
        """From a file with the fields by name: `[flops]` a table by element type, `[axes]` a table of
        `{bandwidth = …, latency = …}` by mesh axis. Raises ArgumentError for a file that says something else."""
        try:
            given: dict[str, Any] = tomllib.loads(Path(path).read_text())
            name = str(given.pop("name", Path(path).stem))
            links = {
                a: (float(x["bandwidth"]), float(x["latency"])) for a, x in given.pop("axes", {}).items()
            }
            flops = {k: float(v) for k, v in given.pop("flops").items()}
            beside = given.pop("asynchronous", True)
            if not isinstance(beside, bool):
                raise TypeError("asynchronous is true or false")
            rest = {k: float(v) for k, v in given.items()}
            return cls(name, flops, axes=links, asynchronous=beside, **rest)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ArgumentError(
                f"{path} is no hardware model: {type(error).__name__}: {error}; it has the fields name, memory_bandwidth, "
                "link_bandwidth, link_latency and memory, the table [flops] with `default`, and maybe [axes] and asynchronous"
            ) from None


# Peak rates are the makers' dense figures. h100: NVIDIA H100 SXM data sheet (989 Tflop/s bf16, 67 f32, 3.35 TB/s, 80 GB,
# NVLink 900 GB/s both ways); across nodes one 400 Gbit/s InfiniBand port per GPU (DGX H100). tpu-v5p: Google Cloud's page on
# TPU v5p (459 Tflop/s bf16, 2.765 TB/s, 95 GB, 4,800 Gbit/s of links per chip over three axes). cpu: virtual devices that
# share a desktop processor, which also does the sending.
PRESETS = {
    "cpu": Hardware("cpu", {"default": 5e10}, 2e10, 5e9, 5e-5, 8e9, asynchronous=False),
    "h100-nvlink": Hardware(
        "h100-nvlink",
        {"default": 67e12, "f32": 67e12, "bf16": 989e12, "f16": 989e12},
        3.35e12,
        450e9,
        5e-6,
        80e9,
    ),
    "h100-ib": Hardware(
        "h100-ib",
        {"default": 67e12, "f32": 67e12, "bf16": 989e12, "f16": 989e12},
        3.35e12,
        50e9,
        1e-5,
        80e9,
    ),
    "tpu-v5p": Hardware("tpu-v5p", {"default": 459e12 / 8, "bf16": 459e12}, 2.765e12, 100e9, 2e-6, 95e9),
}


def find_hardware(given: Hardware | str | os.PathLike[str]) -> Hardware:
    """A model, a preset's name, or the path of a TOML file. Raises ArgumentError for one that does not exist."""
    if isinstance(given, Hardware):
        return given
    name = os.fspath(given) if isinstance(given, (str, os.PathLike)) else ""
    if name in PRESETS:
        return PRESETS[name]
    if name.endswith(".toml"):
        return Hardware.from_toml(name)
    raise ArgumentError(
        f"no hardware {given!r}; there are {', '.join(PRESETS)}, or give a .toml file or a Hardware"
    )
