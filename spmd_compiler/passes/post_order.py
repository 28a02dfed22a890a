"""Depth-first orders: each thing behind all that it needs (XLA's `ComputeInstructionPostOrder`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

from ..ir.graph import Block, Op, Value
from .estimate import reads

T = TypeVar("T", bound=Hashable)


def post_order(roots: Iterable[T], needs: Callable[[T], Sequence[T]]) -> list[T]:
    """The roots and what they need, one root after the other."""
    order: dict[T, None] = {}
    stack = [(x, False) for x in reversed([*roots])]
    while stack:
        x, ready = stack.pop()
        if ready:
            order[x] = None
        elif x not in order:
            stack += [(x, True), *((y, False) for y in reversed(needs(x)))]
    return [*order]


def makers(values: Iterable[Value], defs: Mapping[Value, Op], given: Iterable[Value] = ()) -> list[Op]:
    """The ops that make values, and all that these are made of, as far as it isn't given."""
    there = {*given}

    def made_by(values: Iterable[Value]) -> list[Op]:
        return [defs[v] for v in values if v in defs and v not in there]

    return post_order(made_by(values), lambda op: made_by(reads(op)))


def reached_from(block: Block, roots: Iterable[Op]) -> list[Op]:
    """A block's ops as they are reached from some of them, the first of these first; behind them those that aren't."""
    defs = block.makers()
    reached = post_order(roots, lambda op: [defs[v] for v in reads(op) if v in defs])
    return [*dict.fromkeys([*reached, *block.ops])]
