"""Layouts that the users of values want: XLA's partitioners propagate them back to what is read, plain propagation goes forward."""

from __future__ import annotations

from collections.abc import Mapping

from ...ir.graph import Block, Op, Value
from ...ir.layout import Layout
from ...ir.optable import CONTROL_FLOW, ELEMENTWISE, is_remade
from ..estimate import readers
from ..prepare.iterations import PUTS
from .engine import Engine


def wanted_carries(engine: Engine, body: Block) -> dict[Value, Layout]:
    """Carries whose loops' results all users want on more axes than the bodies leave them on, in one layout, with that layout."""
    wanted: dict[Value, Layout] = {}
    users = readers(body)
    for op in body.ops:
        for region in op.regions if op.name in CONTROL_FLOW else ():
            wanted |= wanted_carries(engine, region)
        if op.name == "while":
            for value, result in zip(op.regions[1].args, op.results, strict=True):
                wanted |= _on_more_axes(engine, value, result, engine.layouts[result], users)
    return wanted


def wanted_sums(engine: Engine, body: Block) -> dict[Value, Layout]:
    """The same of partial values that are reduced for their users."""
    wanted: dict[Value, Layout] = {}
    users = readers(body)
    for op in body.ops:
        for region in op.regions if op.name in CONTROL_FLOW else ():
            wanted |= wanted_sums(engine, region)
        for value in op.results:
            if (layout := engine.layouts[value]).partial:
                wanted |= _on_more_axes(engine, value, value, layout.without_partial(), users)
    return wanted


def wanted_bases(engine: Engine, body: Block) -> dict[Value, Layout]:
    """The same of what is made of a number and then updated: it lies on no axis by itself."""
    wanted: dict[Value, Layout] = {}
    users = readers(body)
    bare = {op.results[0] for op in body.ops if is_remade(op)}
    for op in body.ops:
        if op.name in PUTS and (base := op.operands[0]) in bare and not engine.layouts[base].axes:
            wanted |= _on_more_axes(engine, base, op.results[0], engine.layouts[op.results[0]], users)
    return wanted


def _on_more_axes(
    engine: Engine, value: Value, read: Value, layout: Layout, users: Mapping[Value, list[Op]]
) -> dict[Value, Layout]:
    """The value, with the one layout on more axes that all users of what is `read` in a layout want."""
    ends = _ends(engine, read, layout, users)
    end = ends.pop() if len(ends) == 1 else layout
    return {value: end} if end.axes > layout.axes and not end.partial else {}


def _ends(engine: Engine, value: Value, layout: Layout, users: Mapping[Value, list[Op]]) -> set[Layout]:
    """The other layouts that users want a value in that lies in `layout`, or what they compute from it elementwise as it lies."""
    ends: set[Layout] = set()
    alike = {value}
    todo = [value]
    while todo:
        v = todo.pop()
        ends.update(x for x in engine.demands.get(v, ()) if x is not layout)
        for op in users.get(v, ()):
            result = op.results[0] if op.name in ELEMENTWISE else v
            if result not in alike and engine.layouts[result] is layout:
                alike.add(result)
                todo.append(result)
    return ends
