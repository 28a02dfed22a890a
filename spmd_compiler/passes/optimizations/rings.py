"""Matrix products that wait for an all-gather, and reduce-scatters that wait for a matrix product, become rings: while one
piece is on its way the piece that is there is multiplied (`ring_matmul`). Where the hardware model says that it pays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from ...ir.graph import Block, Op, Value
from ...ir.mesh import Mesh
from ...ir.trips import NONE, integers_in, known_length
from ..emit.builder import Builder
from ..emit.dim_pieces import Cut, cut_after, cut_before
from ..estimate import peak_bytes, readers
from ..hardware import Hardware
from ..timeline import Timeline
from .ring_matmul import Gather, Step, Use, scatter

LARGEST = 16  # devices of a ring: its steps are written out
MORE_MEMORY = 1.05  # by which rings may raise the peak: a piece is there, and the next on its way


class GatherPlan(NamedTuple):
    """An all-gather and those of its products that are made piece by piece; `whole`: others read it as well."""

    op: Op
    uses: tuple[Use, ...]
    whole: bool

    @property
    def dots(self) -> list[Op]:
        return [use.dot for use in self.uses]

    def replaced(self) -> list[Op]:
        return [*self.dots, *dict.fromkeys(step.op for use in self.uses for step in use.steps)]


class ScatterPlan(NamedTuple):
    """A reduce-scatter of a product, through `steps`; the product's result is cut so."""

    op: Op
    dot: Op
    cut: Cut
    steps: tuple[Step, ...]

    @property
    def dots(self) -> list[Op]:
        return [self.dot]

    def replaced(self) -> list[Op]:
        return [self.dot, *(step.op for step in self.steps)]


Plan = GatherPlan | ScatterPlan


def make_rings(
    block: Block, mesh: Mesh, hardware: Hardware | None = None, outer: Mapping[Value, int] = NONE
) -> bool:
    """Changes a block that no one else holds, and the bodies of its loops of known length: in others devices may go
    different ways. Without a hardware model wherever it is possible; with one, if all together don't pay or need more
    memory, the half that saves most is tried. outer: integers that are known around the block. Returns whether there are any."""
    known, changed = integers_in(block, outer), False
    for op in block.ops:
        if known_length(op, known) is not None:
            changed |= make_rings(op.regions[1], mesh, hardware, known)
    plans = _Finder(block, mesh).plans()
    timeline = None if hardware is None else Timeline(mesh, hardware)
    if plans and timeline is not None:
        plans = _Choice(block, mesh, timeline).best(plans)
    while plans:
        made = _rewritten(block, mesh, list(_apart(plans)))
        if timeline is None or _is_better(made, block, timeline):
            block.ops[:] = made.ops
            return True
        plans = plans[: len(plans) // 2]
    return changed


def _is_better(made: Block, block: Block, timeline: Timeline) -> bool:
    """Whether a block takes less time than the one that it would replace, and hardly more memory."""
    faster = timeline.block(made).total < timeline.block(block).total
    return faster and peak_bytes(made, set()) <= MORE_MEMORY * peak_bytes(block, set())


class _Finder:
    """The rings that a block could have."""

    def __init__(self, block: Block, mesh: Mesh):
        self.block, self.mesh = block, mesh
        self.makers = block.makers()
        self.readers = readers(block)
        self.returned = set(block.returns)

    def plans(self) -> list[Plan]:
        found: list[Plan] = []
        for op in self.block.ops:
            axes = op.attrs.get("axes")
            if axes is None or not 1 < self.mesh.axes_size(axes) <= LARGEST or len(op.operands) > 1:
                continue
            if op.name == "all_gather":
                found += self.gather(op)
            elif op.name == "reduce_scatter" and op.attrs["kind"] == "sum":
                found += self.scatter(op)
        return found

    def gather(self, op: Op) -> Iterator[GatherPlan]:
        n, dim = self.mesh.axes_size(op.attrs["axes"]), op.attrs["dim"]
        size = op.result.type.shape[dim]
        whole = False
        uses: list[Use] = []
        ways: list[tuple[Value, Cut, tuple[Step, ...]]] = [(op.result, Cut(dim, size // n, size), ())]
        while ways:
            value, cut, steps = ways.pop()
            whole |= value in self.returned
            for reader in self.readers.get(value, ()):
                after = cut_after(reader, cut, n) if len(reader.operands) == 1 else None
                if reader.name == "dot_general" and reader.operands[0] is not reader.operands[1]:
                    uses.append(Use(reader, reader.operands.index(value), cut, steps))
                elif after is not None and size:
                    ways.append((reader.result, after, (*steps, Step(reader, cut, after))))
                else:
                    whole = True
        once = {use.dot: use for use in reversed(uses)}  # one may read it by two ways
        if once and size:
            yield GatherPlan(op, tuple(once.values()), whole or len(once) < len(uses))

    def scatter(self, op: Op) -> Iterator[ScatterPlan]:
        n, dim = self.mesh.axes_size(op.attrs["axes"]), op.attrs["dim"]
        value = op.operands[0]
        size = value.type.shape[dim]
        cut: Cut | None = Cut(dim, size // n, size)
        steps: list[Step] = []
        while size and cut is not None and len(self.readers[value]) == 1 and value not in self.returned:
            maker = self.makers.get(value)
            if maker is None:
                return
            if maker.name == "dot_general":
                yield ScatterPlan(op, maker, cut, tuple(reversed(steps)))
                return
            before = cut_before(maker, cut, n) if maker.operands else None
            if before is not None:
                steps.append(Step(maker, before, cut))
            value, cut = maker.operands[0] if maker.operands else value, before


class _Choice:
    """Which rings save time, by the hardware model."""

    def __init__(self, block: Block, mesh: Mesh, timeline: Timeline):
        self.mesh, self.timeline = mesh, timeline
        self.spans = timeline.spans(block)

    def best(self, plans: list[Plan]) -> list[Plan]:
        """Those that pay, the most saving first."""
        plans = [self.shortened(plan) if isinstance(plan, GatherPlan) else plan for plan in plans]
        gains = [(self.gain(plan), plan) for plan in plans]
        return [plan for gain, plan in sorted(gains, key=lambda pair: -pair[0]) if gain > 0]

    def shortened(self, plan: GatherPlan) -> GatherPlan:
        """With as few of its products, in the order in which they run, as it takes to hide the sending."""
        sending = self.timeline.sending(plan.op)
        kept: list[Use] = []
        for use in sorted(plan.uses, key=lambda use: self.spans[use.dot].start):
            if sending <= 0:
                break
            kept.append(use)
            sending -= self.timeline.working(use.dot)
        return plan._replace(uses=tuple(kept), whole=plan.whole or len(kept) < len(plan.uses))

    def gain(self, plan: Plan) -> float:
        """Seconds: of the collective those in which nothing else is computed, and of its products, less those of the
        ring. At least what one message takes must be saved, for what no model knows."""
        now = self.spans[plan.op].idle + sum(self.timeline.working(op) for op in plan.replaced())
        _, latency = self.timeline.hardware.link(plan.op.attrs["axes"])
        if self.spans[plan.op].idle <= latency:
            return 0.0
        block = Block([], [], [])
        b = Builder(self.mesh, block)
        if isinstance(plan, ScatterPlan):
            scatter(b, *plan)
        else:
            gather = Gather(b, plan.op, plan.dots)
            if plan.whole:
                gather.whole()
            for use in plan.uses:
                gather.product(use)
        return now - self.timeline.block(block).total - latency


def _apart(plans: list[Plan]) -> Iterator[Plan]:
    """Without those that want what another has already."""
    taken: set[Op] = set()
    for plan in plans:
        if isinstance(plan, GatherPlan):
            free = tuple(use for use in plan.uses if use.dot not in taken)
            plan = plan._replace(uses=free, whole=plan.whole or len(free) < len(plan.uses))
        dots = [dot for dot in plan.dots if dot not in taken]
        if dots:
            taken.update(dots)
            yield plan


def _rewritten(block: Block, mesh: Mesh, plans: list[Plan]) -> Block:
    """A block with rings, which define the values that the ops in their place did."""
    plan_of = {plan.op: plan for plan in plans}
    uses = {use.dot: (plan.op, use) for plan in plans if isinstance(plan, GatherPlan) for use in plan.uses}
    gone: set[Op] = set()
    for plan in plans:
        if isinstance(plan, ScatterPlan) or not plan.whole:
            gone.update(plan.replaced())
    gathers: dict[Op, Gather] = {}
    out = Block(block.args, [], block.returns)
    b = Builder(mesh, out)
    for op in block.ops:
        plan = plan_of.get(op)
        if isinstance(plan, ScatterPlan):
            scatter(b, *plan)
        elif isinstance(plan, GatherPlan):
            gathers[op] = Gather(b, op, plan.dots)
            if not plan.whole:
                continue
            gathers[op].whole()
        elif op in uses:
            gather, use = uses[op]
            gathers[gather].product(use)
        elif op in gone:
            continue
        else:
            out.ops.append(op)
            continue
        out.ops[-1].results = op.results
    return out
