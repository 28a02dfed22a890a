"""Carries of loops: those that cross a mesh, and those that stay as they are, as weights do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ...ir.graph import Block, Op, Value
from ...ir.layout import Layout, local_type
from ...ir.mesh import Mesh
from ...ir.optable import SLICES
from ..prepare.iterations import PUTS
from .engine import Engine

Layouts = Mapping[Value, Layout]


def crossed_carries(engine: Engine, body: Block) -> dict[Value, Layout]:
    """Carries that lie on axes along several dims, and are computed anew in each iteration, seen replicated. A search that decides
    one axis after the other leaves them there: without one of the axes alone each iteration sends as much, where without all of
    them it sends nothing, for one gather before the loop."""
    found: dict[Value, Layout] = {}
    for loop in _loops(body):
        region = loop.regions[1]
        made = region.makers()
        for value, end in zip(region.args, region.returns, strict=True):
            layout = engine.layouts.get(value)  # blocks of one device have none
            crossed = layout is not None and sum(map(bool, layout.dims)) > 1
            if crossed and end in made and made[end].name not in PUTS:
                found[value] = Layout.replicated(value.type.rank)
    return found


def gathered_once(body: Block, now: Layouts, plain: Layouts, mesh: Mesh) -> int:
    """Bytes per device of what loops carry and leave as it is, but do not slice, where that lies `now` without axes that it has by
    plain propagation, and that the states of the loop are on, as there or as they enter: XLA gathers weights on the axes of the
    batch once, in front of the loop, too."""
    sliced = {op.operands[0] for op in body.walk() if op.name in SLICES}
    entered: dict[Value, Value] = {}  # what enters the outermost loop
    found: dict[Value, int] = {}
    for loop in _loops(body):
        kept = _kept(loop.regions[1])
        carries = {v: x for v, x in zip(loop.regions[1].args, loop.operands, strict=True) if v in plain}
        for value, before in carries.items():
            if value not in kept or value in sliced:
                continue
            start = entered[value] = entered.get(before, before)
            gathered = plain[value].axes - now[value].axes
            stays = [
                now[v].placement[a] in (plain[v].placement.get(a), plain[x].placement.get(a))
                for v, x in carries.items()
                if v not in kept
                for a in gathered & now[v].axes
            ]
            if stays and all(stays):
                found[start] = max(found.get(start, 0), local_type(value.type, now[value], mesh).nbytes)
    return sum(found.values())


def _loops(body: Block) -> Iterator[Op]:
    return (op for op in body.walk() if op.name == "while")


def _kept(region: Block) -> set[Value]:
    """What the body of a loop takes and leaves as it is, maybe through loops in it."""
    same = {v: v for v in region.args}
    for op in region.ops:
        if op.name == "while":
            inner = _kept(op.regions[1])
            for v, arg, result in zip(op.operands, op.regions[1].args, op.results, strict=True):
                if arg in inner and v in same:
                    same[result] = same[v]
    return {v for v, end in zip(region.args, region.returns, strict=True) if same.get(end) is v}
