"""A barrier of many values is one op per value while layouts are decided, so that each has the layout that suits it.

`split_barriers` numbers each barrier and takes it apart; `join_barriers` puts together what has one number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.graph import Block, Module, Op, Value

BARRIER = "optimization_barrier"


@dataclass(frozen=True)
class SplitBarriers:
    name: ClassVar[str] = "split_barriers"

    def __call__(self, module: Module) -> Module:
        if not any(op.name == BARRIER and len(op.operands) > 1 for op in module.main.body.walk()):
            return module
        return module.with_body(_split(module.main.body, [0]))


def _split(block: Block, count: list[int]) -> Block:
    ops: list[Op] = []
    for op in block.ops:
        if op.name == BARRIER and len(op.operands) > 1:
            count[0] += 1
            attrs = {**op.attrs, "group": count[0]}
            pairs = zip(op.operands, op.results, strict=True)
            ops += [Op(BARRIER, [x], [y], attrs, (), op.loc) for x, y in pairs]
        elif op.regions and op.name != "manual_computation":
            regions = tuple(_split(r, count) for r in op.regions)
            ops.append(Op(op.name, op.operands, op.results, op.attrs, regions, op.loc))
        else:
            ops.append(op)
    return Block(block.args, ops, block.returns)


def join_barriers(block: Block) -> None:
    """Joins barriers in a block that no one else holds. All wait at the last one of their number: what lies between them
    only prepares their operands."""
    groups: dict[int, list[Op]] = {}
    for op in block.ops:
        for region in op.regions:
            join_barriers(region)
        if op.name == BARRIER and "group" in op.attrs:
            groups.setdefault(op.attrs["group"], []).append(op)
    if not groups:
        return
    ops: list[Op] = []
    for op in block.ops:
        group = groups.get(op.attrs["group"]) if op.name == BARRIER and "group" in op.attrs else None
        if group is None:
            ops.append(op)
        elif op is group[-1]:
            operands: list[Value] = [x.operands[0] for x in group]
            results = [x.results[0] for x in group]
            attrs = {k: v for k, v in op.attrs.items() if k != "group"}
            ops.append(Op(BARRIER, operands, results, attrs, (), op.loc))
    block.ops[:] = ops
