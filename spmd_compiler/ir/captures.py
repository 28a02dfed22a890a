"""Regions of ops that combine scalars, such as reducers, may use constants of the code around them; here they get their
own, since the passes move and copy these regions as they are."""

from __future__ import annotations

from ..errors import UnsupportedError
from .graph import Block, Loc, Op, Value
from .optable import CONTROL_FLOW

# Ops whose regions are part of the program around them.
OPEN_REGIONS = frozenset({*CONTROL_FLOW, "manual_computation", "sdy.named_computation"})


def close_region(region: Block, constants: dict[Value, Op], where: Loc) -> None:
    """Copies into a region the constants that it uses of those around it. Raises UnsupportedError, naming `where`, if it
    uses anything else from outside."""
    made: dict[Value, Value] = {}
    copies: list[Op] = []
    own = set(region.args)

    def inside(value: Value) -> Value:
        if value in own:
            return value
        if value not in made:
            source = constants.get(value)
            if source is None:
                raise UnsupportedError(
                    f"{where}: the region uses a value of the program around it; pass it in as an operand instead"
                )
            made[value] = Value(value.type)
            copies.append(Op(source.name, [], [made[value]], source.attrs, (), source.loc))
        return made[value]

    def visit(block: Block) -> None:
        for op in block.ops:
            op.operands = [inside(v) for v in op.operands]
            for inner in op.regions:
                own.update(inner.args)
                visit(inner)
            own.update(op.results)
        block.returns[:] = [inside(v) for v in block.returns]

    visit(region)
    region.ops[:0] = copies
