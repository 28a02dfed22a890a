"""Simple models of machines, for estimates of time."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Hardware:
    """One device and its links.

    flops: peak floating point operations per second, by element type; `default` for the others. memory_bandwidth: bytes
    per second. link_bandwidth: bytes per second that a device sends along one mesh axis; link_latency: seconds that one
    message takes at least. axes: per mesh axis (bandwidth, latency), where they differ from that.
    """

    name: str
    flops: dict[str, float]
    memory_bandwidth: float
    link_bandwidth: float
    link_latency: float
    memory: float
    axes: dict[str, tuple[float, float]] = field(default_factory=dict)

    def peak(self, dtype: str) -> float:
        return self.flops.get(dtype, self.flops["default"])

    def link(self, axes: tuple[str, ...]) -> tuple[float, float]:
        """(bandwidth, latency) of a collective over `axes`: those of the slowest."""
        links = [self.axes.get(a.split(":")[0], (self.link_bandwidth, self.link_latency)) for a in axes]
        return min(b for b, _ in links), max(latency for _, latency in links)


# Peak rates are the makers' dense figures. h100: NVIDIA H100 SXM data sheet (989 Tflop/s bf16, 67 f32, 3.35 TB/s, 80 GB,
# NVLink 900 GB/s both ways); across nodes one 400 Gbit/s InfiniBand port per GPU (DGX H100). tpu-v5p: Google Cloud's page on
# TPU v5p (459 Tflop/s bf16, 2.765 TB/s, 95 GB, 4,800 Gbit/s of links per chip over three axes). cpu: virtual devices that
# share a desktop processor.
PRESETS = {
    "cpu": Hardware("cpu", {"default": 5e10}, 2e10, 5e9, 5e-5, 8e9),
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
