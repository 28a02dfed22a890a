"""Why a value has its layout: each mesh axis, traced along the ops that share it to the annotation that brought it."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import networkx as nx

from .. import ir
from ..errors import SpmdError
from ..ir.graph import Block, Op, Value
from ..ir.optable import ASKED
from ..ir.text import value_names

MOVED = 1000  # a step over a relayout that moves the axis counts as so many others


def why(module: ir.Module, name: str) -> list[str]:
    """Lines that explain the layout of value `name` as it prints in a propagated module. Raises SpmdError if no
    value has that name."""
    index = _Index(module)
    value = index.by_name.get("%" + name.lstrip("%"))
    if value is None:
        raise SpmdError(f"no value is called {name}; names are those of --stage propagate")
    lines = [index.line(value)]
    if value.layout is None:
        return [*lines, "  it has no layout: it is part of a region that runs alike on every device"]
    if not value.layout.axes:
        return [*lines, "  replicated: nothing that it is made of is sharded on a dim that it keeps"]
    for axis in sorted(value.layout.axes):
        lines += [f"  {axis}: {_place(value, axis)}", *(f"    {step}" for step in index.trace(value, axis))]
    return lines


class _Index:
    def __init__(self, module: ir.Module):
        body = module.main.body
        self.names = value_names(module.main)
        self.by_name = {name: value for value, name in self.names.items()}
        self.producer: dict[Value, Op] = {}
        self.annotated = {
            v: f"argument {self.names[v]}: the layout given or chosen for it" for v in body.args
        }
        self.annotated.update({v: f"result {i} leaves so" for i, v in enumerate(body.returns)})
        self.links: list[tuple[Value, Value, int]] = []  # values that an op, or a loop, ties; how loosely
        self._block(body)

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self.producer.update(dict.fromkeys(op.results, op))
            if op.attrs.get("cause") == ASKED:
                self.annotated[op.results[0]] = "the program asks for it"
            if op.name == "while":
                condition, body = op.regions
                rows = zip(op.operands, op.results, condition.args, body.args, body.returns, strict=True)
                self.links += [(row[0], other, 1) for row in rows for other in row[1:]]
            elif op.regions and op.name in ("case", "if"):
                self.links += [
                    (v, x, 1) for r in op.regions for v, x in zip(op.results, r.returns, strict=True)
                ]
            else:
                self.links += [(a, b, 1) for a in op.operands for b in op.results]
                self.links += [(a, b, 2) for a, b in combinations(op.operands, 2)]
            for region in op.regions:
                self._block(region)

    def line(self, value: Value) -> str:
        op = self.producer.get(value)
        made = f" = {op.name}({', '.join(self.names[v] for v in op.operands)})" if op else ""
        where = f"  // {op.loc}" if op and str(op.loc) else ""
        return f"{self.names[value]}: {value.type} {value.layout or ''}{made}{where}"

    def trace(self, value: Value, axis: str) -> list[str]:
        """The shortest way to an annotation over values that have `axis`; best one on which it stays where it is."""
        graph: nx.Graph[Any] = nx.Graph()
        graph.add_node(value)
        for a, b, weight in self.links:
            if _has(a, axis) and _has(b, axis):
                made = self.producer.get(b)
                relaid = made is not None and made.name == "relayout" and _place(a, axis) != _place(b, axis)
                graph.add_edge(a, b, weight=MOVED if relaid else weight)
        found: Any = nx.single_source_dijkstra(graph, value)
        distance, paths = found
        ends = [v for v in self.annotated if v in paths]
        if not ends:
            return [self.line(value), f"no annotation asks for it: sharing the work over {axis} is cheapest"]
        path = paths[min(ends, key=distance.__getitem__)]
        lines: list[str] = []
        for v in path:
            op = self.producer.get(v)
            cause = op.attrs.get("cause") if op else None
            lines.append(self.line(v) + (f"  because: {cause}" if cause else ""))
        return [*lines, self.annotated[path[-1]]]


def _has(value: Value, axis: str) -> bool:
    return value.layout is not None and axis in value.layout.axes


def _place(value: Value, axis: str) -> str:
    assert value.layout is not None
    place = value.layout.placement[axis]
    return f"on dim {place}" if isinstance(place, int) else f"a partial {place}"
