"""Time and memory of a per-device program, estimated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .ir.graph import Module
from .passes.estimate import on_device, peak_bytes, work
from .passes.hardware import Hardware
from .passes.report import Collective
from .passes.timeline import timeline


@dataclass(frozen=True)
class Cost:
    """What one call does on each device.

    flops: floating point operations, by element type. bytes_accessed: what the ops read and write, unfused.
    comm_bytes: bytes sent, and messages: collectives run, by (kind, axes). compute_seconds, comm_seconds: what each takes
    alone, by the model of `hardware`; an alpha-beta model for the links (Hockney 1994), per op the slower of arithmetic and
    memory for the rest. exposed_seconds: what communication adds where both run at the same time as far as data allows.
    """

    hardware: str
    flops: dict[str, int]
    bytes_accessed: float
    comm_bytes: dict[tuple[str, tuple[str, ...]], float]
    messages: dict[tuple[str, tuple[str, ...]], int]
    compute_seconds: float
    comm_seconds: float
    exposed_seconds: float

    @property
    def hidden_seconds(self) -> float:
        """Communication behind which there is work to do."""
        return self.comm_seconds - self.exposed_seconds

    @property
    def seconds(self) -> float:
        """Without overlap of the two."""
        return self.compute_seconds + self.comm_seconds


@dataclass(frozen=True)
class Memory:
    """Bytes in the memory of each device. peak: the most that is live at once, arguments included; XLA, which fuses, needs
    less."""

    arguments: int
    results: int
    peak: int


def estimate_cost(module: Module, collectives: Sequence[Collective], hardware: Hardware) -> Cost:
    flops, touched = work(module)
    sent: dict[tuple[str, tuple[str, ...]], float] = {}
    messages: dict[tuple[str, tuple[str, ...]], int] = {}
    for c in collectives:
        key = (c.kind, c.axes)
        sent[key] = sent.get(key, 0.0) + c.bytes_per_device * c.trips
        messages[key] = messages.get(key, 0) + c.trips
    compute, communication, total = timeline(module, hardware)
    exposed = max(0.0, total - compute)
    return Cost(hardware.name, dict(flops), touched, sent, messages, compute, communication, exposed)


def estimate_memory(module: Module, donated: Sequence[int]) -> Memory:
    """`donated`: positions of the arguments whose memory is reused."""
    body, type_of = module.main.body, on_device(module)
    given = {body.args[i] for i in donated}
    return Memory(
        sum(type_of(v).nbytes for v in body.args),
        sum(type_of(v).nbytes for v in body.returns),
        peak_bytes(body, given, type_of),
    )
