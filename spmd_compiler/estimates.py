"""Time and memory of a per-device program, estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .hardware import Hardware
from .ir.graph import Module
from .passes.estimate import peak_bytes, work
from .passes.report import Collective


@dataclass(frozen=True)
class Cost:
    """What one call does on each device.

    flops: floating point operations, by element type. bytes_accessed: what the ops read and write, unfused.
    comm_bytes: bytes sent, and messages: collectives run, by (kind, axes). compute_seconds, comm_seconds: by the model of
    `hardware`; an alpha-beta model for the links (Hockney 1994), the slower of arithmetic and memory for the rest.
    """

    hardware: str
    flops: dict[str, int]
    bytes_accessed: float
    comm_bytes: dict[tuple[str, tuple[str, ...]], float]
    messages: dict[tuple[str, tuple[str, ...]], int]
    compute_seconds: float
    comm_seconds: float

    @property
    def seconds(self) -> float:
        """Without overlap of the two."""
        return self.compute_seconds + self.comm_seconds


@dataclass(frozen=True)
class Memory:
    """Bytes on each device. peak: the most that is live at once, arguments included; XLA, which fuses, needs less."""

    arguments: int
    results: int
    peak: int


def estimate_cost(module: Module, collectives: Sequence[Collective], hardware: Hardware) -> Cost:
    flops, touched = work(module)
    sent: dict[tuple[str, tuple[str, ...]], float] = {}
    messages: dict[tuple[str, tuple[str, ...]], int] = {}
    seconds = 0.0
    for c in collectives:
        key = (c.kind, c.axes)
        sent[key] = sent.get(key, 0.0) + c.bytes_per_device * c.trips
        messages[key] = messages.get(key, 0) + c.trips
        bandwidth, latency = hardware.link(c.axes)
        seconds += c.trips * (c.bytes_per_device / bandwidth + latency)
    arithmetic = sum(n / hardware.peak(dtype) for dtype, n in flops.items())
    compute = max(arithmetic, touched / hardware.memory_bandwidth)
    return Cost(hardware.name, dict(flops), touched, sent, messages, compute, seconds)


def estimate_memory(module: Module, donated: Sequence[int]) -> Memory:
    """`donated`: positions of the arguments whose memory is reused."""
    body = module.main.body
    given = {body.args[i] for i in donated}
    return Memory(
        sum(v.type.nbytes for v in body.args),
        sum(v.type.nbytes for v in body.returns),
        peak_bytes(body, given),
    )
