"""The bytes that an assignment of layouts sends, beside what it costs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ...ir.mesh import Mesh
from ..cost import USUAL
from ..rules.table import RuleBook
from .assignment import Costs

if TYPE_CHECKING:
    from .engine import Engine, State


class Traffic:
    """What it has worked out is remembered: one for all assignments of a program. message: bytes that each weighs, beside those
    that it has; one, so that of equal plans it is that with fewer messages. book: the program's rules."""

    def __init__(self, mesh: Mesh, book: RuleBook, message: float = 1.0):
        self.mesh = Mesh(mesh.axes)
        self.mesh.cache["prices"] = replace(USUAL, message=message, touch=0.0, flop=0.0)
        self.costs, self.book = Costs(self.mesh), RuleBook(book)

    def sent(self, engine: Engine) -> float:
        """Bytes per device, by the ring model, and those for messages."""
        return self.exchanged(engine) + sum(paid for _, paid in engine.relaid(self.costs))

    def exchanged(self, engine: Engine) -> float:
        """The same of what ops exchange themselves."""
        weights, total = engine.weights, 0.0
        for op, choice in engine.choices.items():
            if any(s.exchange for s in choice.picks):
                total += weights.get(op, 1) * self.book.rule(op).own_cost(
                    choice, op.operands, op.results, self.mesh
                )
        return total

    def added(self, engine: Engine, before: State) -> float:
        """By how much the program sends more than it did in an earlier state."""
        with engine.seen_in(before):
            earlier = self.sent(engine)
        return self.sent(engine) - earlier
