"""When the ops of a per-device program run, if links and arithmetic work at the same time: what communication hides."""

from __future__ import annotations

import heapq
from typing import NamedTuple

from ..ir.graph import Block, Module, Op, Value
from ..ir.optable import COLLECTIVES
from ..ir.trips import trip_count
from .cost import sent_bytes
from .estimate import FREE, flops, reads
from .hardware import Hardware


class Seconds(NamedTuple):
    """compute, communication: what each would take alone; total: both together."""

    compute: float
    communication: float
    total: float


def timeline(module: Module, hardware: Hardware) -> Seconds:
    """A list schedule (Graham 1969) of each block: of the ops whose operands are there, the one that was ready first runs
    next, collectives on the links and the rest on the arithmetic units. A loop's iterations, and branches, follow each
    other without overlap; of a branching the longest branch counts."""
    return _Schedule(module, hardware).block(module.main.body)


class _Schedule:
    def __init__(self, module: Module, hardware: Hardware):
        self.mesh, self.hardware = module.mesh, hardware

    def block(self, block: Block) -> Seconds:
        users: dict[Value, list[int]] = {}
        waits: list[int] = []
        for i, op in enumerate(block.ops):
            waits.append(0)
            for v in set(reads(op)):
                users.setdefault(v, []).append(i)
        made = {v for op in block.ops for v in op.results}
        for v in made:
            for i in users.get(v, ()):
                waits[i] += 1
        queue = [(0.0, i) for i, n in enumerate(waits) if not n]
        ready = [0.0] * len(block.ops)
        compute = communication = 0.0
        unit = link = end = 0.0  # when each is free
        while queue:
            at, i = heapq.heappop(queue)
            op = block.ops[i]
            if op.name in ("while", "case", "if"):
                inside = self.inside(op)
                done = max(at, unit, link) + inside.total
                unit = link = done
                compute, communication = compute + inside.compute, communication + inside.communication
            elif op.name in COLLECTIVES and "axes" in op.attrs:
                seconds = self.sending(op)
                done = link = max(at, link) + seconds
                communication += seconds
            else:
                seconds = self.working(op)
                done = unit = max(at, unit) + seconds
                compute += seconds
            end = max(end, done)
            for v in op.results:
                for j in users.get(v, ()):
                    waits[j] -= 1
                    ready[j] = max(ready[j], done)
                    if not waits[j]:
                        heapq.heappush(queue, (ready[j], j))
        return Seconds(compute, communication, end)

    def inside(self, op: Op) -> Seconds:
        parts = [self.block(region) for region in op.regions]
        if op.name == "while":
            trips = trip_count(op) or 1
            return Seconds(*(trips * sum(x) for x in zip(*parts, strict=True)))
        return max(parts, key=lambda s: s.total)

    def sending(self, op: Op) -> float:
        axes: tuple[str, ...] = op.attrs["axes"]
        bandwidth, latency = self.hardware.link(axes)
        return sent_bytes(op, self.mesh) / bandwidth + latency

    def working(self, op: Op) -> float:
        if op.name in FREE:
            return 0.0
        touched = sum(v.type.nbytes for v in (*op.operands, *op.results))
        count = flops(op)
        arithmetic = count / self.hardware.peak(op.results[0].type.dtype) if count else 0.0
        return max(arithmetic, touched / self.hardware.memory_bandwidth)
