"""What plain propagation sends, and the memory that it takes, bound what a search finds.

A search goes by cost: it spends bytes to save work, and memory to save bytes, where XLA's partitioners, which propagate, don't.
Where a program sends more than plain propagation does, it is searched again with work that weighs less; where it takes more
memory, with large blocks of values dear. What keeps to the bound is taken, or if nothing does, what plain propagation does;
unless that is far dearer, or sends more by a larger factor than it saves memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from ..ir.graph import Block, Module
from ..ir.layout import Layout, local_type
from .cost import with_lighter_work, with_room
from .engine import Engine
from .estimate import block_bytes, peak_bytes
from .legalise import legalise
from .local_search import local_search
from .scanned_args import scanned_args

if TYPE_CHECKING:
    from .propagate import Propagate

LARGE = 1500  # ops, from which on a program has no bounds: it would take long to search it again
LIGHTER = (1 / 4, 1 / 16, 1 / 64)  # parts of what an operation weighs
SMALLER = (1 / 2, 1 / 4, 1 / 8)  # parts of the largest block, above which a block is dear
NO_MORE = 1.0005  # times as many bytes
NO_MORE_MEMORY = 1.1  # times as much memory
DEARER = 1.5  # times as dear a program may be that sends less
MORE = 2.02  # times as dear, and times as many bytes, that a program may be that takes less memory
TRADE = 1.05  # of bytes times memory, what it may come to then


class Kept(NamedTuple):
    """What there is to tell of bounds that were kept to, and the bytes that may be live on a device, if that was bounded."""

    told: list[str]
    memory: float | None = None


def keep_to_plain(propagate: Propagate, engine: Engine, module: Module) -> Kept:
    """Goes to an assignment within the bounds, where the engine's is not."""
    if engine.limit is None or len(engine.choices) > LARGE:
        return Kept([])
    return _Bounds(propagate, engine, module).kept()


def held_bytes(engine: Engine, body: Block, wanted: list[Layout | None]) -> int:
    """The most bytes that are live at once on a device, as the program is assigned. wanted: layouts that the results are to have."""
    return peak_bytes(legalise(engine, body, wanted), set(), block_bytes(engine.mesh))


class _Bound(NamedTuple):
    """Bytes that a device may send, and that may be live on it, and the product of both."""

    sent: float
    held: float = math.inf
    both: float = math.inf


class _Bounds:
    def __init__(self, propagate: Propagate, engine: Engine, module: Module):
        self.propagate, self.engine, self.module, self.body = propagate, engine, module, module.main.body
        self.traffic = engine.traffic
        self.plain = min(self.propagated(), key=self.traffic.sent)
        self.sent = NO_MORE * self.traffic.sent(self.plain)

    def propagated(self) -> Iterator[Engine]:
        """By plain propagation, which may see arguments gathered that are scanned."""
        starts = [{}, scanned] if (scanned := scanned_args(self.engine, self.body)) else [{}]
        return (self.propagate.forwarded(self.module, None, self.engine.book, x)[0] for x in starts)

    def held(self, engine: Engine) -> int:
        return held_bytes(engine, self.body, self.propagate.asked(engine, self.module))

    def kept(self) -> Kept:
        engine, told = self.engine, list[str]()
        if self.traffic.sent(engine) > self.sent:
            lighter = (with_lighter_work(self.module, part) for part in LIGHTER)
            if self.replaced(lighter, _Bound(self.sent), DEARER):
                told.append("to send no more than plain propagation does, it takes more work or messages")
        most, held = NO_MORE_MEMORY * self.held(self.plain), self.held(engine)
        if held > most:
            sent = self.traffic.sent(engine)
            bound = _Bound(min(max(self.sent, sent), MORE * sent), most, TRADE * sent * held)
            largest = self.largest()
            smaller = (with_room(self.module, part * largest) for part in SMALLER)
            if self.replaced(smaller, bound, MORE):
                told.append(
                    "to take no more memory than plain propagation does, it sends more bytes or messages"
                )
                return Kept(told, most)
        return Kept(told)

    def replaced(self, modules: Iterable[Module], bound: _Bound, dearer: float) -> bool:
        """Goes to the first assignment within a bound that is found for modules with other prices, or to that of plain propagation,
        if it is at most `dearer` times as dear; whether it did."""
        engine, cost, before = self.engine, self.engine.total(), self.engine.state()
        for other in chain((self.propagate.assigned(module)[0] for module in modules), (self.plain,)):
            engine.adopt(other.state())
            if self.within(bound):
                found = engine.state()
                local_search(engine, self.body)
                if not self.within(bound):
                    engine.restore(found)
                    engine.moved()
                if engine.total() <= dearer * cost:
                    return True
        engine.restore(before)
        return False

    def within(self, bound: _Bound) -> bool:
        sent = self.traffic.sent(self.engine)
        if sent > bound.sent or bound.held == math.inf:
            return sent <= bound.sent
        held = self.held(self.engine)
        return held <= bound.held and sent * held <= bound.both

    def largest(self) -> int:
        """Bytes of the largest block that a device makes."""
        engine = self.engine
        values = [v for op in engine.choices for v in op.results]
        return max((local_type(v.type, engine.layouts[v], engine.mesh).nbytes for v in values), default=0)
