"""Plain propagation, and what becomes of it where XLA's partitioners decide otherwise than an op's own cost tells: each bounds what a
search may send (`plain_bounds`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ...ir.graph import Module
from .engine import Engine, Forwarding, State
from .gathered_args import (
    Seen,
    broadcast_args,
    contested_args,
    crossing_args,
    scanned_args,
    shared_args,
    shared_values,
    transformed_values,
    weights,
)
from .wanted_layouts import wanted_bases, wanted_carries, wanted_sums

if TYPE_CHECKING:
    from ..propagate import Propagate


class PlainPropagation:
    """Of a module, with the prices and rules of an engine, whose state it leaves."""

    def __init__(self, propagate: Propagate, engine: Engine, module: Module):
        self.propagate, self.engine, self.module, self.body = propagate, engine, module, module.main.body
        self.bases: Seen = {}

    def from_bases(self, start: State) -> State:
        """Plain propagation where what is made of a number and updated lies as users want it: partitioners propagate back."""
        with self.engine.seen_in(start):
            self.bases = wanted_bases(self.engine, self.body)
        return self.propagated_from({}) if self.bases else start

    def propagated(self, start: State) -> Iterator[State]:
        """By plain propagation, which may also defer sums behind loops, or see arguments gathered."""
        engine = self.engine
        yield start
        if any(op.name == "while" for op in engine.choices):
            yield self.propagated_from({}, defers=True)
        with engine.seen_in(start):
            carried = wanted_carries(engine, self.body)
        for seen in filter(None, self.gathered(start)):
            yield self.propagated_from(seen)
        if carried:
            yield self.propagated_from(carried, defers=True)

    def gathered(self, start: State) -> tuple[Seen, Seen]:
        """Arguments that XLA's partitioners gather though plain propagation would not, and then do all work on each device."""
        with self.engine.seen_in(start):
            return scanned_args(self.engine, self.body), contested_args(self.engine, self.body)

    def leaner(self, start: State) -> Iterator[State]:
        """What plain propagation becomes where it gathers arguments that it need not, reduces sums as they are wanted, or adds them
        before, as XLA's partitioners do where that sends less. It bounds bytes alone: memory and work may be more."""
        engine, body = self.engine, self.body
        with engine.seen_in(start):
            crossing = [crossing_args(engine, body, k) for k in (0, 1)]
            options = [
                shared_args(engine, body),
                wanted_sums(engine, body),
                *crossing,
                transformed_values(engine, body),
                shared_values(engine, body),
            ]
            broadcast = broadcast_args(engine, body)
            merges = any(map(engine.adds_partials, engine.choices))
        if merges:
            yield self.propagated_from({}, merges=True)
        for k, seen in enumerate(options):
            if seen and seen not in options[:k]:
                state = self.propagated_from(seen, merges=merges)
                yield state
                with engine.seen_in(state):
                    more = shared_args(engine, body)
                if more:
                    yield self.propagated_from({**seen, **more}, merges=merges)
        if broadcast:
            yield self.propagated_from(broadcast, defers=True)

    def with_weights(self, start: State) -> State | None:
        """What plain propagation becomes where it gathers weights on the axes of the batch, if there are any."""
        with self.engine.seen_in(start):
            seen = weights(self.engine, self.body)
        return self.propagated_from(seen) if seen else None

    def propagated_from(self, seen: Seen, **sums: bool) -> State:
        """By plain propagation that sees arguments in other layouts, and may defer sums or merge them."""
        forwarding = Forwarding({**self.bases, **seen}, **sums)
        return self.propagate.forwarded(self.module, None, self.engine.book, forwarding)[0].state()
