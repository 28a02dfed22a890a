"""Rectified values that products read are made in calls that XLA keeps, and their masks are taken from them, on CPUs.

The gradient of `max(x, 0)` is masked by `x > 0`, which is `max(x, 0) > 0`. XLA fuses maximum and comparison with what reads them,
and so keeps `x` for the mask beside `max(x, 0)` for the products, from the forward to the backward pass: twice the memory. What a
call of its own makes takes the place of `x` instead. That is done where it takes less memory.
"""

from __future__ import annotations

from collections.abc import Iterator

from ...ir.graph import Block, Module, Op, Value
from ...ir.optable import CONTROL_FLOW, ELEMENTWISE, is_remade
from ..estimate import PRODUCTS, readers
from .kept_calls import kept_call
from .xla_schedules import if_lighter

# Which comparison of `x` with `c`, and of `c` with `x`, says the same of `max(x, c)`, or `min(x, c)`.
_MASKS = {"maximum": ("GT", "LT"), "minimum": ("LT", "GT")}


def rectify_in_calls(module: Module) -> Module:
    """The module, which no one else holds, or a changed copy."""
    body = module.main.body
    compared = {frozenset(op.operands) for op in body.walk() if op.name == "compare"}
    if not any(op.name in _MASKS and frozenset(op.operands) in compared for op in body.walk()):
        return module
    return if_lighter(module, lambda changed: _rectify(changed.main.body, changed))


def _rectify(block: Block, module: Module) -> bool:
    changed = False
    for op in block.ops:
        for region in op.regions if op.name in CONTROL_FLOW else ():
            changed |= _rectify(region, module)
    if not any(op.name in _MASKS for op in block.ops):
        return changed
    makers = block.makers()
    users = readers(block)
    ops: dict[Op, None] = {}
    for op in block.ops:
        masks = [(mask, x) for mask, x in _masks(op, users) if mask not in ops] if op.name in _MASKS else []
        outlined = masks and _outlined(op, {mask for mask, _ in masks}, makers, users, {*block.returns})
        if outlined:
            for mask, x in masks:
                mask.operands = [op.result if v is x else v for v in mask.operands]
            op = _call(op, [inside for inside in ops if inside in outlined], module)
            changed = True
        ops[op] = None
    block.ops[:] = ops
    return changed


def _masks(op: Op, users: dict[Value, list[Op]]) -> Iterator[tuple[Op, Value]]:
    """The comparisons that the result of `op` answers too, and for which of their operands."""
    for x, c in (op.operands, op.operands[::-1]):
        for user in users[x] if x is not c else ():
            compared = user.name == "compare" and {*user.operands} == {x, c}
            if compared and user.attrs["comparison_direction"] == _MASKS[op.name][user.operands[0] is c]:
                yield user, x


def _outlined(
    op: Op, masks: set[Op], makers: dict[Value, Op], users: dict[Value, list[Op]], returned: set[Value]
) -> set[Op] | None:
    """`op` and the ops that are for it alone, if a product reads it, what they read lies in memory anyway, and some of that for
    them alone."""
    if not any(user.name in PRODUCTS for user in users.get(op.result, ())):
        return None
    inside, spared = [op], False
    for made in inside:
        for v in made.operands:
            maker = makers.get(v)
            own = v not in returned and masks.union(inside).issuperset(users[v])
            if maker is None or maker in inside:
                continue
            if is_remade(maker) or (own and maker.name in (*ELEMENTWISE, "broadcast_in_dim")):
                inside.append(maker)
            elif v.type.nbytes == op.result.type.nbytes:
                if maker.name in ELEMENTWISE:
                    return None
                spared |= own
    return {*inside} if spared else None


def _call(op: Op, inside: list[Op], module: Module) -> Op:
    """Calls a new function of the module for `op`, which runs the ops that are inside, too."""
    made = {v for other in inside for v in other.results}
    read = dict.fromkeys(v for other in (*inside, op) for v in other.operands if v not in made)
    return kept_call("rectified", Block([*read], [*inside, op], op.results), op.results, module, op.loc)
