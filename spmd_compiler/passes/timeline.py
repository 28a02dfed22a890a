"""When the ops of a per-device program run, if links and arithmetic work at the same time: what communication hides."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple

from ..ir.graph import Block, Module, Op, Value
from ..ir.mesh import Mesh
from ..ir.optable import CONTROL_FLOW, collective_kind
from ..ir.trips import trip_count
from .cost import sent_bytes
from .estimate import FREE, arithmetic, flops, reads, touched
from .hardware import Hardware
from .written_collectives import reach


class Seconds(NamedTuple):
    """compute, communication: what each would take alone; total: both together."""

    compute: float
    communication: float
    total: float


def timeline(module: Module, hardware: Hardware) -> Seconds:
    """A list schedule (Graham 1969) of each block: of the ops whose operands are there, the one that was ready first runs
    next, collectives on the links and the rest on the arithmetic units. A loop's iterations, and branches, follow each
    other without overlap; of a branching the longest branch counts. Where collectives are not asynchronous, nothing runs
    beside them."""
    return Timeline(module.mesh, hardware).block(module.main.body)


class Span(NamedTuple):
    """When an op of a block runs, in seconds from the block's start. idle: for how long of it nothing is computed."""

    start: float
    end: float
    idle: float = 0.0


class Timeline:
    """The estimates of `timeline`, for parts of a program. `as_written`: ops start in their order in the block, so that a
    collective starts behind the work before it."""

    def __init__(self, mesh: Mesh, hardware: Hardware, as_written: bool = False):
        self.mesh, self.hardware, self.as_written = mesh, hardware, as_written

    def spans(self, block: Block) -> dict[Op, Span]:
        """When each op of a block runs; not those inside its loops and branches."""
        spans: dict[Op, Span] = {}
        self.block(block, spans)
        working = [span for op, span in spans.items() if not collective_kind(op)]  # one after the other
        starts = [span.start for span in working]
        sums = [0.0, *accumulate(span.end - span.start for span in working)]

        def worked(until: float) -> float:
            i = bisect_right(starts, until)
            return sums[i] - max(0.0, working[i - 1].end - until) if i else 0.0

        for op, span in spans.items():
            if collective_kind(op):
                beside = worked(span.end) - worked(span.start)
                spans[op] = span._replace(idle=span.end - span.start - beside)
        return spans

    def block(self, block: Block, spans: dict[Op, Span] | None = None) -> Seconds:
        """What a block takes; `spans` is filled with when its ops run."""
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
            _, i = heapq.heappop(queue)
            op, at = block.ops[i], ready[i]
            if op.name in CONTROL_FLOW:
                inside = self.inside(op)
                start = max(at, unit, link)
                done = unit = link = start + inside.total
                compute, communication = compute + inside.compute, communication + inside.communication
            elif collective_kind(op):
                seconds = self.sending(op)
                beside = self.hardware.asynchronous
                start = max(at, link) if beside and not self.as_written else max(at, link, unit)
                done = link = start + seconds
                communication += seconds
                unit = unit if beside else done
            else:
                seconds = self.working(op)
                start = max(at, unit)
                done = unit = start + seconds
                compute += seconds
            if spans is not None:
                spans[op] = Span(start, done)
            end = max(end, done)
            for v in op.results:
                for j in users.get(v, ()):
                    waits[j] -= 1
                    ready[j] = max(ready[j], done)
                    if not waits[j]:
                        heapq.heappush(queue, (0.0 if self.as_written else ready[j], j))
        return Seconds(compute, communication, end)

    def inside(self, op: Op) -> Seconds:
        parts = [self.block(region) for region in op.regions]
        if op.name == "while":
            trips = trip_count(op) or 1
            return Seconds(*(trips * sum(x) for x in zip(*parts, strict=True)))
        return max(parts, key=lambda s: s.total)

    def seconds(self, op: Op) -> float:
        """What one op takes alone."""
        if op.name in CONTROL_FLOW:
            return self.inside(op).total
        return self.sending(op) if collective_kind(op) else self.working(op)

    def sending(self, op: Op) -> float:
        """Seconds of a collective."""
        axes, _ = reach(op, self.mesh)
        if not axes:
            return 0.0
        bandwidth, latency = self.hardware.link(axes)
        return sent_bytes(op, self.mesh) / bandwidth + latency

    def working(self, op: Op) -> float:
        """Seconds of an op that computes."""
        if op.name in FREE:
            return 0.0
        count = flops(op)
        computing = count / self.hardware.peak(arithmetic(op)) if count else 0.0
        return max(computing, touched(op) / self.hardware.memory_bandwidth)
