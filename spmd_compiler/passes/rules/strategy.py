"""How an op runs over one mesh axis, and over all of them together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from ...ir.layout import Layout
from ...ir.types import Type
from ..cost import DEFER

R = -1  # replicated; a dim index means sharded on that dim, a str is the kind of a partial
Placement = int | str
# (number of shards of the factor, local operand types, local result types) -> (bytes a device sends, messages)
Exchange = Callable[[int, list[Type], list[Type]], tuple[float, int]]


def own_rows(exchange: Exchange, size: int, operand_dim: int, result_dim: int) -> Exchange:
    """The price of an exchange where each device gets its own rows of the results, in place of all: by all-to-alls in place of
    all-gathers. size: of the rows. No other axis may cut these: which one comes first would be for it to say."""

    def price(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        alone = ins[0].shape[operand_dim] == size <= outs[0].shape[result_dim] * n
        return exchange(n, ins, outs) if alone and size else (math.inf, len(outs))

    return price


class Strategy(NamedTuple):
    """One way to run an op over one mesh axis: where the axis is on each operand and result."""

    operands: tuple[Placement, ...]
    results: tuple[Placement, ...]
    factor: int = -1  # the factor that is sharded, -1 if none
    exchange: Exchange | None = None  # what the op itself sends

    @property
    def deferred(self) -> float:
        """What it costs that partials pass through."""
        return DEFER if any(isinstance(p, str) for p in self.operands) else 0.0


class Choice(NamedTuple):
    """How one op runs: the layouts it needs of its operands, those it gives its results, and the cost of that: its work and its
    own messages.

    order, picks: the mesh axes in play and the strategy on each; () where a choice does not come from strategies."""

    demands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    cost: float = 0.0
    order: tuple[str, ...] = ()
    picks: tuple[Strategy, ...] = ()


class In(NamedTuple):
    """An operand as the choice sees it: its layout now, and the others that exist anyway for other users."""

    type: Type
    layout: Layout
    others: tuple[Layout, ...] = ()


class Out(NamedTuple):
    """A result as the choice sees it: the layouts that its users want; None while they are unknown."""

    type: Type
    demands: tuple[Layout, ...] | None = None
