"""Orders the ops of a per-device program so that sending and computing overlap.

A list schedule (Graham 1969) by critical path: collectives start as soon as their operands are there, and while they are on
their way the work that does not need them goes first. The program needs no more memory than in the order that it had.
"""

from __future__ import annotations

import heapq
from itertools import pairwise

from ...ir.graph import Block, Op, Value
from ...ir.mesh import Mesh
from ...ir.optable import CONTROL_FLOW, is_pure, sends
from ..estimate import inner_bytes, live_bytes, reads
from ..hardware import Hardware
from ..timeline import Timeline

WINDOW = 512  # how many ops one may overtake
TRIED = 8  # of the ops that could run next, those that memory is looked up for


def order_for_overlap(block: Block, mesh: Mesh, hardware: Hardware) -> None:
    """Changes a block that no one else holds, and the blocks inside, where the model then expects less time. Ops with
    effects keep their order."""
    for op in block.ops:
        if op.name in CONTROL_FLOW:
            for region in op.regions:
                order_for_overlap(region, mesh, hardware)
    if hardware.asynchronous and any(sends(op) for op in block.ops):
        timeline = Timeline(mesh, hardware, as_written=True)
        ordered = Block(block.args, _Scheduler(block, timeline).order(), block.returns)
        if timeline.block(ordered).total < timeline.block(block).total:
            block.ops[:] = ordered.ops


class _Scheduler:
    def __init__(self, block: Block, timeline: Timeline):
        self.ops = ops = block.ops
        self.seconds = [timeline.seconds(op) for op in ops]
        self.users, self.waits = _dependences(ops)
        self.memory = _Memory(block)
        self.path = [0.0] * len(ops)  # seconds from an op's start to the end, at least
        for i in reversed(range(len(ops))):
            self.path[i] = self.seconds[i] + max((self.path[j] for j in self.users[i]), default=0.0)
        self.arrival = [0.0] * len(ops)  # when an op's operands are there
        self.done = [False] * len(ops)
        self.first = 0  # the first op that has not run
        self.far: list[int] = []  # ops that could run but for the window
        self.coming: list[tuple[float, int]] = []  # by arrival
        self.ready: tuple[list[tuple[float, int]], ...] = (
            [],
            [],
        )  # collectives, and others; the longest path first

    def order(self) -> list[Op]:
        """At each time the op of the longest path runs whose operands have arrived, a collective before others; where all
        wait for collectives, the one whose operands come first."""
        unit = link = 0.0
        out: list[Op] = []
        for i, waits in enumerate(self.waits):
            if not waits:
                self.offer(i)
        while self.first < len(self.ops):
            while self.coming and self.coming[0][0] <= unit:
                _, i = heapq.heappop(self.coming)
                heapq.heappush(self.ready[not sends(self.ops[i])], (-self.path[i], i))
            i = self.choose()
            if i is None:
                if self.arrival[self.first] > unit:
                    unit = self.coming[0][0]
                    continue
                i = self.first
            out.append(self.ops[i])
            if sends(self.ops[i]):
                end = link = max(unit, link) + self.seconds[i]
            else:
                end = unit = unit + self.seconds[i]
            self.run(i, end)
        return out

    def offer(self, i: int) -> None:
        """What op i needs has been started."""
        if i > self.first + WINDOW:
            heapq.heappush(self.far, i)
        else:
            heapq.heappush(self.coming, (self.arrival[i], i))

    def choose(self) -> int | None:
        """The next op, if one of the best can run within the memory."""
        for heap in self.ready:
            held: list[tuple[float, int]] = []
            found = None
            while heap and found is None and len(held) < TRIED:
                entry = heapq.heappop(heap)
                i = entry[1]
                if self.done[i]:
                    continue
                if i == self.first or self.memory.fits(i, self.first):
                    found = i
                else:
                    held.append(entry)
            for entry in held:
                heapq.heappush(heap, entry)
            if found is not None:
                return found
        return None

    def run(self, i: int, end: float) -> None:
        self.done[i] = True
        if i != self.first:
            self.memory.early(i)
        while self.first < len(self.ops) and self.done[self.first]:
            self.memory.passed(self.first)
            self.first += 1
        while self.far and self.far[0] <= self.first + WINDOW:
            self.offer(heapq.heappop(self.far))
        for j in self.users[i]:
            self.arrival[j] = max(self.arrival[j], end)
            self.waits[j] -= 1
            if not self.waits[j]:
                self.offer(j)


def _dependences(ops: list[Op]) -> tuple[list[list[int]], list[int]]:
    """Per op those that must come later because of it, and how many must come sooner."""
    maker: dict[Value, int] = {v: i for i, op in enumerate(ops) for v in op.results}
    before = [{maker[v] for v in reads(op) if v in maker and maker[v] != i} for i, op in enumerate(ops)]
    for i, j in pairwise(i for i, op in enumerate(ops) if not is_pure(op)):
        before[j].add(i)
    users: list[list[int]] = [[] for _ in ops]
    for j, needed in enumerate(before):
        for i in sorted(needed):
            users[i].append(j)
    return users, [len(needed) for needed in before]


class _Memory:
    """Which ops may run before those in front of them without raising the peak. Until an op's turn in the old order comes,
    its results lie beside what was live in that order; whatever it makes free earlier does not count."""

    def __init__(self, block: Block):
        kept, given = live_bytes(block, set()), live_bytes(block, set(block.args))
        peaks = max(kept), max(given)
        room = [min(peaks[0] - a, peaks[1] - b) for a, b in zip(kept, given, strict=True)]
        self.levels = [room]  # the least of 2^k neighbours
        while len(self.levels[-1]) > 1 << (len(self.levels) - 1):
            last, half = self.levels[-1], 1 << (len(self.levels) - 1)
            self.levels.append([min(a, b) for a, b in zip(last, last[half:], strict=False)])
        self.made = [sum(v.type.nbytes for v in op.results) for op in block.ops]
        self.inner = [inner_bytes(op) for op in block.ops]
        self.room = room
        self.ran: set[int] = set()  # ops ahead of their turn
        self.beside = 0  # bytes of what they made

    def fits(self, i: int, first: int) -> bool:
        """Whether op i may run while `first` is the first that has not."""
        more = self.beside + self.made[i]
        level = (i - first).bit_length() - 1
        row = self.levels[level]
        least = min(row[first], row[i - (1 << level)])
        return more <= least and more + self.inner[i] <= self.room[first]

    def early(self, i: int) -> None:
        """Op i runs before its turn."""
        self.ran.add(i)
        self.beside += self.made[i]

    def passed(self, i: int) -> None:
        """It is, or was, the turn of op i, and it has run."""
        if i in self.ran:
            self.beside -= self.made[i]
