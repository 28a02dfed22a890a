"""Iterations of a loop slice what they read late when they read it, on CPUs.

XLA for CPUs runs first what is ready first: slices of what a loop is given, such as a microbatch or the weights of a layer, are made
at the start of an iteration and kept to the product that reads them last, for the gradients of weights even a second, transposed
one. A product that waits for others gets a slice of its own, at an index that a kept call hands on once the product's other operand
is there. That is done where it takes less memory, in the order in which XLA runs the program then.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...ir.graph import Block, Module, Op, Value
from ..estimate import PRODUCTS, peak_bytes
from .kept_calls import kept_call
from .xla_schedules import if_lighter

PART = 1 / 50  # of the memory that a program takes by estimate: slices from which on it is tried


def slice_late(module: Module) -> Module:
    """The module, which no one else holds, or a changed copy."""
    body = module.main.body
    slices = [x.slice.result.type.nbytes for iteration in _iterations(body) for x in _late(iteration)]
    if not slices or max(slices) < (least := PART * peak_bytes(body, set())):
        return module

    def change(changed: Module) -> bool:
        for iteration in _iterations(changed.main.body):
            late = [x for x in _late(iteration) if x.slice.result.type.nbytes >= least]
            iteration.ops[:] = [made for op in iteration.ops for made in _with_slices(op, late, changed)]
        return True

    return if_lighter(module, change)


def _iterations(block: Block) -> Iterator[Block]:
    for op in block.ops:
        for region in op.regions:
            yield from _iterations(region)
        if op.name == "while":
            yield op.regions[1]


class _Late(NamedTuple):
    """An operand of a product that waits for another product: a slice of what the loop is given, and its reshapes."""

    product: Op
    side: int
    slice: Op
    reshapes: list[Op]


def _late(iteration: Block) -> list[_Late]:
    given = {v for v, passed_on in zip(iteration.args, iteration.returns, strict=True) if v is passed_on}
    makers = iteration.makers()
    waiting: set[Value] = set()
    late: list[_Late] = []
    for op in iteration.ops:
        if op.name in PRODUCTS:
            for side, other in ((0, 1), (1, 0)):
                sliced = _sliced(op.operands[side], given, makers)
                if sliced and op.operands[other] in waiting:
                    late.append(_Late(op, side, *sliced))
        if op.name in PRODUCTS or not waiting.isdisjoint(op.operands):
            waiting.update(op.results)
    return late


def _sliced(value: Value, given: set[Value], makers: dict[Value, Op]) -> tuple[Op, list[Op]] | None:
    reshapes: list[Op] = []
    while (op := makers.get(value)) is not None and op.name == "reshape":
        reshapes.insert(0, op)
        (value,) = op.operands
    return (
        (op, reshapes) if op is not None and op.name == "dynamic_slice" and op.operands[0] in given else None
    )


def _with_slices(op: Op, late: list[_Late], module: Module) -> list[Op]:
    ops: list[Op] = []
    operands = [*op.operands]
    for product, side, sliced, reshapes in late:
        if product is op:
            source, *starts = sliced.operands
            index = Value(starts[0].type)
            handed = Block([starts[0], op.operands[1 - side]], [], [starts[0]])
            value = Value(sliced.result.type)
            ops += [
                kept_call("after", handed, [index], module, op.loc),
                Op(sliced.name, [source, index, *starts[1:]], [value], sliced.attrs, (), sliced.loc),
            ]
            for reshape in reshapes:
                before, value = value, Value(reshape.result.type)
                ops.append(Op("reshape", [before], [value], loc=reshape.loc))
            operands[side] = value
    return [*ops, Op(op.name, operands, op.results, op.attrs, op.regions, op.loc) if ops else op]
