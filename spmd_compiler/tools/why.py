"""Why a value has its layout: each mesh axis, traced back to the annotation or the op that brought it."""

from __future__ import annotations

from .. import ir
from ..errors import SpmdError
from ..ir.graph import Block, Op, Value
from ..ir.text import value_names


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
        self.names = value_names(module.main)
        self.by_name = {name: value for value, name in self.names.items()}
        self.producer: dict[Value, Op] = {}
        self.feeds: dict[Value, Value] = {}  # arguments of loop bodies and branches: what enters there
        self.args = set(module.main.body.args)
        self._block(module.main.body)

    def _block(self, block: Block) -> None:
        for op in block.ops:
            self.producer.update(dict.fromkeys(op.results, op))
            for region in op.regions:
                operands = op.operands if op.name == "while" else op.operands[-len(region.args) or None :]
                self.feeds.update(zip(region.args, operands, strict=False))
                self._block(region)

    def line(self, value: Value) -> str:
        op = self.producer.get(value)
        made = f" = {op.name}({', '.join(self.names[v] for v in op.operands)})" if op else ""
        where = f"  // {op.loc}" if op and str(op.loc) else ""
        return f"{self.names[value]}: {value.type} {value.layout or ''}{made}{where}"

    def trace(self, value: Value, axis: str) -> list[str]:
        """The way back from a value, along one axis."""
        lines: list[str] = []
        seen: set[Value] = set()
        while value not in seen:
            seen.add(value)
            if value in self.args:
                return [*lines, f"argument {self.line(value)}: the layout given or chosen for it"]
            source = self.feeds.get(value)
            op = self.producer.get(value)
            if source is not None:
                lines.append(f"{self.names[value]} enters the loop or branch as {self.line(source)}")
                value = source
                continue
            if op is None:
                return lines
            cause = op.attrs.get("cause")
            lines.append(self.line(value) + (f"  because: {cause}" if cause else ""))
            carriers = [v for v in op.operands if v.layout is not None and axis in v.layout.axes]
            if op.name == "relayout" and (not carriers or _place(carriers[0], axis) != _place(value, axis)):
                return [*lines, f"the relayout puts {axis} there"]
            if not carriers:
                return [*lines, f"{op.name} is where {axis} comes in: its users want it so"]
            value = carriers[0]
        return [*lines, "and so around the loop"]


def _place(value: Value, axis: str) -> str:
    assert value.layout is not None
    place = value.layout.placement[axis]
    return f"on dim {place}" if isinstance(place, int) else f"a partial {place}"
