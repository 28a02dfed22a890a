"""Depth-first orders: each thing behind all that it needs (XLA's `ComputeInstructionPostOrder`)."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

from ..ir.graph import Block, Op
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


def reached_from(block: Block, roots: Iterable[Op]) -> list[Op]:
    """A block's ops as they are reached from some of them, the first of these first; behind them those that aren't."""
    makers = {v: op for op in block.ops for v in op.results}
    reached = post_order(roots, lambda op: [makers[v] for v in reads(op) if v in makers])
    return [*dict.fromkeys([*reached, *block.ops])]
