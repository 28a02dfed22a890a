"""open_regions: the body of a manual region joins the program around it where the region leaves axes to the compiler.

A `manual_computation` is per device over its manual axes only; over the others, its automatic axes, it is a global program
like any other. So its ops become ops of the block around it, between `enter_manual`, which makes of a value the part that a
position on the manual axes holds, and `leave_manual`, its inverse. No layout between the two has a manual axis: rules
bring in no axis that none of an op's operands has, and the two ops hold the manual ones back. A region without automatic
axes runs as written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...errors import LayoutError
from ...ir.captures import OPEN_REGIONS
from ...ir.graph import Block, Module, Op, Value
from ...ir.layout import Layout
from ...ir.mesh import Mesh
from .divergence import mark_divergent

ENTER, LEAVE = "enter_manual", "leave_manual"


def automatic_axes(manual: frozenset[str], mesh: Mesh) -> tuple[str, ...]:
    """The axes that regions over `manual` leave to the compiler; none if the region is manual over pieces of axes."""
    if any(":" in a for a in manual):
        return ()
    return tuple(a for a, n in mesh.axes if n > 1 and a not in manual)


@dataclass(frozen=True)
class OpenRegions:
    """Raises LayoutError for a region that cuts values again inside of one that has no automatic axes."""

    name: ClassVar[str] = "open_regions"

    def __call__(self, module: Module) -> Module:
        if not any(op.name == "manual_computation" for op in module.main.body.walk()):
            return module
        opener = _Opener(module.mesh)
        body = opener.block(module.main.body, {}, frozenset())
        mark_divergent(body, opener.positions)
        return module.with_body(body)


class _Opener:
    """Copies blocks that hold regions; other ops keep their results. `manual`: the axes over which what is being copied
    is per device. `positions`: the values that differ between devices by their place alone, and along which axes."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self.constants: dict[Value, Op] = {}
        self.positions: dict[Value, frozenset[str]] = {}

    def block(self, block: Block, env: dict[Value, Value], manual: frozenset[str]) -> Block:
        ops: list[Op] = []
        env = dict(env)
        self.copy(block, ops, env, manual)
        return Block(block.args, ops, [env.get(v, v) for v in block.returns])

    def copy(self, block: Block, ops: list[Op], env: dict[Value, Value], manual: frozenset[str]) -> None:
        for op in block.ops:
            operands = [env.get(v, v) for v in op.operands]
            if op.name in ("manual_computation", "partition_id", "replica_id"):
                self.positions.update(dict.fromkeys(op.results, manual))
            if op.name == "manual_computation":
                self.region(op, operands, ops, env, manual)
                continue
            regions = op.regions
            if op.name in OPEN_REGIONS:
                regions = tuple(self.block(r, env, manual) for r in regions)
            new = Op(op.name, operands, op.results, op.attrs, regions, op.loc)
            if op.name == "constant":
                self.constants[op.results[0]] = new
            ops.append(new)

    def region(
        self, op: Op, operands: list[Value], ops: list[Op], env: dict[Value, Value], manual: frozenset[str]
    ) -> None:
        body, axes = op.regions[0], frozenset(op.attrs["manual_axes"])
        if manual and not automatic_axes(manual, self.mesh):
            self.join(op, operands, ops, env, manual)
        elif not automatic_axes(manual | axes, self.mesh):
            body = self.block(body, env, manual | axes)
            ops.append(Op(op.name, operands, op.results, op.attrs, (body,), op.loc))
        else:
            inner = dict(env)
            for v, outside, layout in zip(body.args, operands, op.attrs["in_layouts"], strict=True):
                inner[v] = self.enter(op, ops, outside, self.kept(layout), Value(v.type, None, v.name))
            for v in body.captured():
                outside = env.get(v, v)
                inner[v] = self.enter(op, ops, outside, Layout.replicated(v.type.rank), Value(v.type))
            self.copy(body, ops, inner, manual | axes)
            for v, result, layout in zip(body.returns, op.results, op.attrs["out_layouts"], strict=True):
                attrs = {"outside": self.kept(layout), "manual_axes": op.attrs["manual_axes"]}
                ops.append(Op(LEAVE, [inner.get(v, v)], [result], attrs, (), op.loc))

    def join(
        self, op: Op, operands: list[Value], ops: list[Op], env: dict[Value, Value], manual: frozenset[str]
    ) -> None:
        """A region inside of one that runs as written has nothing left to cut."""
        if any(self.kept(x).axes for x in (*op.attrs["in_layouts"], *op.attrs["out_layouts"])):
            raise LayoutError(f"{op.loc}: a manual region cuts values inside of one that has no axes left")
        body = op.regions[0]
        env.update(zip(body.args, operands, strict=True))
        self.copy(body, ops, env, manual)
        env.update(zip(op.results, [env.get(v, v) for v in body.returns], strict=True))

    def enter(self, op: Op, ops: list[Op], outside: Value, layout: Layout, inside: Value) -> Value:
        made = self.constants.get(outside)
        if made is not None and layout.is_replicated:  # made again inside, it has no border to cross
            new = Op(made.name, [], [inside], made.attrs, (), made.loc)
            self.constants[inside] = new
        else:
            attrs = {"outside": layout, "manual_axes": op.attrs["manual_axes"]}
            new = Op(ENTER, [outside], [inside], attrs, (), op.loc)
        ops.append(new)
        return inside

    def kept(self, layout: Layout) -> Layout:
        """Without the axes of size 1, which say nothing."""
        return layout.drop([a for a in layout.axes if self.mesh.axis_size(a) == 1])
