"""What plain propagation sends, and the memory, the work and the time of messages that it takes, bound what a search finds.

A search goes by cost: it spends bytes to save work, memory to save bytes, and work where that is worth a few bytes; XLA's
partitioners, which propagate, don't. Where a program takes more bytes, memory, work or messages than plain propagation does, it
is searched again: with work that weighs less, with large blocks of values dear, or with work that weighs more. What keeps to the bound is
taken, or if nothing does, what plain propagation does; unless that is far dearer, or what it sends more is out of proportion. What
was there before stays where it doesn't exceed the bound: another search changes more than it has to, and plain propagation with
what stays may be no dearer, so that no search is needed. Plain propagation itself repeats work where an op is cheaper so; the
bound of work is what it does where work is dear.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ...ir.clone import clone_block
from ...ir.graph import Block, Module
from ...ir.layout import local_type
from ..cost import TIMED, Prices, by_time, prices, with_room, with_work
from ..estimate import blocks_on, peak_bytes, product_flops
from ..optimizations.residuals import keep_less
from ..rules.table import RuleBook
from ..simplify import drop_unused
from .carries import gathered_once
from .engine import Engine, State
from .fusion_moves import take_within
from .legalise import legalise
from .local_search import local_search
from .message_count import count_messages
from .plain_propagation import PlainPropagation
from .traffic import Traffic

if TYPE_CHECKING:
    from ..propagate import Propagate

LIGHTER = (1 / 4, 1 / 16, 1 / 64)  # parts of what an operation weighs
HEAVIER = (4, 16)  # times as much
DEAR = 64  # the same, where plain propagation repeats none to save bytes, as XLA's partitioners
SMALLER = (1 / 2, 1 / 4, 1 / 8)  # parts of the largest block, above which a block is dear
DEARER = 1.5  # times as dear a program may be that sends less
FAR_DEARER = 5  # the same of one that sends `HARDLY_ANY`
HARDLY_ANY = 1 / 16  # of the bytes that are sent
MORE = 2.02  # times as dear a program may be that takes less memory or work, and times as many bytes that less memory may cost
REPEATED = 1.25  # times as much work as where it is dear, from which on less of it is searched for
MOSTLY = 4  # times as much work as each device's part, from which on most of it is repeated
SLOWER = 1.5  # times as long as where it is dear, from which on work that CPUs repeat is too much
HALF = 1 / 2  # of the memory
HUGE = 5  # times the memory
SMALL = 1 << 16  # bytes of memory that are no matter
FAR_FEWER = 1 / 2  # of the bytes that plain propagation sends
LITTLE = 1.25  # times as dear a program may be that sends in less time: how few bytes others send is known but roughly
HARDLY = 1.04  # times as dear a program may be that isn't searched for
NEARLY = 1.001  # times the bytes, and times as dear, that count as the same
CLOSE = 0.9  # of the bytes that plain propagation sends
SLIGHTLY = 1.1  # times as dear, in bytes and work, that less work or fewer messages may be
LINKS = 8  # times as much as usual that a message weighs on links that are faster


class Taken(NamedTuple):
    """Of an assignment: bytes that a device sends, the most that are live on it, its operations in matrix products, and about how
    many collectives it comes to."""

    sent: float
    held: float
    work: float
    messages: float

    @property
    def time(self) -> float:
        """What a link sends while messages and bytes take their time, one after the other."""
        return self.sent + TIMED.message * self.messages

    @property
    def busy(self) -> float:
        """The same while a CPU works, too."""
        return self.time + TIMED.flop * self.work


NO_MORE = Taken(1.0005, 1.1, 1.125, 1e9)  # times as much
T = TypeVar("T")
Bound = Callable[[Taken], bool]
_TOLD = {
    "held": "to take no more memory than plain propagation does, it sends more bytes or messages",
    "work": "to do no more work than plain propagation does, it sends more bytes or messages",
}


class PlainBounds:
    """The bounds for a module. start: what plain propagation found; None if it is to have no bounds. told: what there is to tell of
    those that the engine's assignment was changed for."""

    def __init__(self, propagate: Propagate, engine: Engine, module: Module, start: State | None):
        self.propagate, self.engine, self.module, self.body = propagate, engine, module, module.main.body
        self.start = start
        self.told: list[str] = []
        self.kept: dict[str, float] = {}  # what must not exceed a bound any more
        self.found: dict[Prices, State] = {}  # by searches with other prices
        self.improved: dict[int, State] = {}  # what local search makes of states, by their numbers
        self.plainly = PlainPropagation(propagate, engine, module)
        self.strayed = False  # whether local search left the bound of what it began from
        self.twice = Traffic(engine.mesh, engine.book, 2.0)
        self.dear = Traffic(engine.mesh, engine.book, LINKS * prices(engine.mesh).message)

    def keep(self) -> None:
        """Goes to an assignment within the bounds, where the engine's is not."""
        engine = self.engine
        if self.start is None or engine.limit is None or not engine.traffic.sent(engine):
            return
        start = self.start = self.plainly.from_bases(self.start)
        self.plain = min(self.plainly.propagated(start), key=self.sent_in)
        plain, self.now = self.seen_in(self.plain, self.taken), self.taken(engine)
        most = max(HUGE * max(plain.held, self.now.held), SMALL)
        rivals = sorted([self.plain, *self.plainly.leaner(start)], key=self.sent_in)
        leanest = next(x for x in rivals if x is self.plain or self.seen_in(x, self.taken).held <= most)
        self.leanest_plain, self.sent = leanest, plain.sent
        weighted = self.plainly.with_weights(start)  # it bounds bytes alone: XLA may send the rest otherwise
        if weighted is not None and self.seen_in(weighted, self.taken).work <= NEARLY * plain.work:
            leanest = min(leanest, weighted, key=self.sent_in)
        self.fewest = self.sent_in(leanest)
        # operations of each device, if none are repeated
        self.even = product_flops(self.body) / engine.mesh.size
        self.most = Taken(*(x * y for x, y in zip(plain, NO_MORE, strict=True)))
        if self.sends_more(self.now):
            lighter = (with_work(self.module, part) for part in LIGHTER)
            dearer = FAR_DEARER if self.fewest < HARDLY_ANY * self.now.sent else DEARER
            if self.replaced(lighter, lambda x: not self.sends_more(x), lambda x: True, dearer, leanest):
                self.told.append(
                    "to send no more than plain propagation does, it takes more work or messages"
                )
        if self.now.held > self.most.held:
            spare = self.spared() + NO_MORE.held * self.gathered()
            self.most = self.most._replace(held=max(self.most.held + spare, SMALL))
        self.lessen_memory()
        if self.now.work > NO_MORE.work * self.even and self.lessen_work():
            self.lessen_memory()  # of what sends more: memory is worth more bytes than of what was there before
        self.lessen_messages()

    def lower(
        self,
        what: str,
        modules: Iterable[Module],
        worth: Bound,
        last: State,
        dearer: float = MORE,
        told: str = "",
    ) -> bool:
        """Goes to an assignment that takes less memory ("held") or work, if the engine's takes too much; whether it did. told: what
        there is to tell then, if not the usual."""
        most = getattr(self.most, what)

        def within(x: Taken) -> bool:
            return getattr(x, what) <= most and self.takes_no_more(x)

        lower = getattr(self.now, what) > most and self.replaced(modules, within, worth, dearer, last)
        if lower:
            self.kept[what] = most
            self.told.append(told or _TOLD[what])
        return lower

    def lessen_memory(self) -> None:
        """Goes to an assignment that takes less memory, if the engine's takes more than plain propagation does."""
        self.lower("held", self.cramped(), self.is_worth_memory, self.plain)

    def lessen_work(self) -> bool:
        """Goes to an assignment that repeats less work than the engine's, if plain propagation does less where work is dear;
        whether it did."""
        dear = with_work(self.module, DEAR)
        lean = self.propagate.forwarded(dear, None, RuleBook(self.engine.book))[0].state()
        least, most, now = self.seen_in(lean, self.taken).work, self.most.work, self.now.work
        if now > min(most, REPEATED * least):
            self.most = self.most._replace(work=max(NO_MORE.work * least, min(most, now / NO_MORE.work)))
            heavier = (with_work(self.module, times) for times in HEAVIER)
            if self.lower("work", heavier, self.is_worth_work, lean):
                return True
            if self.propagate.on_cpus:
                heavier = (with_work(self.module, times) for times in (*HEAVIER, DEAR))
                return self.lower("work", heavier, self.is_quicker, lean, math.inf)
        return self.propagate.on_cpus and self.spread_work()

    def spread_work(self) -> bool:
        """Goes to an assignment that CPUs take far less time for since it repeats no work, where plain propagation repeats most of it,
        as behind what is cheaper to gather than to exchange: it bounds no bytes then, since XLA's partitioners keep what they read
        spread, but for arguments that they gather. Whether it did."""
        repeats = min(self.now.work, self.most.work) > MOSTLY * self.even
        if self.start is None or not repeats or any(self.plainly.gathered(self.start)):
            return False
        spread = self.searched(with_work(self.module, HEAVIER[0]))
        taken = self.seen_in(spread, self.taken)
        if taken.work > REPEATED * self.even or SLOWER * taken.busy > self.now.busy:
            return False
        self.sent, self.fewest = (max(x, HARDLY * taken.sent) for x in (self.sent, self.fewest))
        self.most = Taken(*map(max, self.most, taken))._replace(work=NO_MORE.work * taken.work)
        told = "to repeat no work, it sends more bytes or messages than plain propagation does"
        return self.lower("work", (), self.is_quicker, spread, math.inf, told)

    def lessen_messages(self) -> None:
        """Goes to plain propagation where that takes fewer messages, and what is there sends as much and gains little by more; where
        it sends more by fewer messages, and takes less time, to what takes no more time, and sends least."""
        if self.sent > NEARLY * self.now.sent:
            self.lessen_time()
            return
        total = self.engine.total()
        for rival in (self.plain, self.leanest_plain):
            cost = self.seen_in(rival, Engine.total)
            if cost != total and cost <= SLIGHTLY * total and self.takes_more_messages_than(rival):
                self.engine.adopt(rival)
                return

    def lessen_time(self) -> None:
        """Goes to what sends in no more time than plain propagation, where that takes fewer messages. What sends less than a message
        weighs is all latency, whichever way it runs: there bytes decide."""
        if self.now.sent < TIMED.message:
            return
        rivals = [(self.seen_in(x, self.taken), x) for x in (self.leanest_plain, self.plain)]
        taken, quickest = min(rivals, key=lambda rival: rival[0].time)
        if taken.messages >= self.now.messages or HARDLY * taken.time >= self.now.time:
            return

        def is_quick(x: Taken) -> bool:
            return x.time <= taken.time and self.takes_no_more(x) and not self.sends_more(x)

        if self.replaced([by_time(self.module)], is_quick, lambda x: True, LITTLE, quickest):
            self.kept["time"] = taken.time
            self.told.append(
                "to take no more time than plain propagation, by fewer messages, it sends more bytes"
            )

    def takes_more_messages_than(self, rival: State) -> bool:
        """Whether the assignment is dearer than a rival on links where a message weighs `LINKS` times as much."""
        return self.seen_in(rival, self.dear.sent) < self.dear.sent(self.engine)

    def is_kept(self) -> bool:
        """Whether the engine's assignment is within the bounds that it was changed for."""
        if not self.kept:
            return True
        taken = self.taken(self.engine)
        return all(getattr(taken, what) <= most for what, most in self.kept.items())

    def sent_in(self, state: State) -> float:
        """The bytes that a state sends."""
        return self.seen_in(state, self.engine.traffic.sent)

    def seen_in(self, state: State, measure: Callable[[Engine], T]) -> T:
        """What a measure says of the program in another state."""
        with self.engine.seen_in(state):
            return measure(self.engine)

    def written(self) -> Block:
        """The engine's assignment in the IR, as XLA runs it: for CPUs it gathers arguments as soon as more would be live later."""
        block = legalise(self.engine, self.body, self.propagate.asked(self.engine, self.module))
        first = {op: None for op in block.ops if op.name == "relayout" and op.operands[0] in block.args}
        block.ops[:] = [*first, *(op for op in block.ops if op not in first)]
        return block

    def taken(self, engine: Engine) -> Taken:
        block, on_device = self.written(), blocks_on(engine.mesh)
        held, work = peak_bytes(block, set(), on_device), product_flops(block, on_device)
        messages = self.twice.exchanged(engine) - engine.traffic.exchanged(engine)
        messages += count_messages(block, engine.mesh, engine.trips)
        return Taken(engine.traffic.sent(engine), held, work, messages)

    def spared(self) -> float:
        """The bytes that loops of the engine's assignment need not keep; of what bounds it, they do."""
        block, on_device = clone_block(self.written()), blocks_on(self.engine.mesh)
        if not keep_less(block):
            return 0.0
        drop_unused(block)
        return self.now.held - peak_bytes(block, set(), on_device)

    def gathered(self) -> float:
        """The bytes of weights that the engine's assignment gathers once for a loop, if it repeats no work."""
        if self.now.work > NO_MORE.work * self.even:
            return 0.0
        return gathered_once(self.body, self.engine.layouts, self.plain.layouts, self.engine.mesh)

    def is_worth_memory(self, x: Taken) -> bool:
        """Whether what takes less memory is worth its bytes, which it is sooner where these are few anyway. Less than half of it is
        worth none where there are about as many as plain propagation sends: XLA's partitioners, which propagate otherwise, may send
        so few too."""
        now = self.now
        if now.sent > CLOSE * self.fewest and x.sent > NEARLY * now.sent and x.held > HALF * now.held:
            return False
        in_proportion = x.sent * x.held <= now.sent * now.held
        return x.sent <= MORE * now.sent and (in_proportion or self.sends_few(x))

    def is_worth_work(self, x: Taken) -> bool:
        """The same of what does less work."""
        now, flop = self.now, prices(self.engine.mesh).flop

        def dearer(weight: float) -> float:
            return (x.sent + weight * x.work) / (now.sent + weight * now.work)

        in_proportion = x.sent * x.work <= NO_MORE.work * now.sent * now.work
        worth = in_proportion or self.sends_few(x) or dearer(flop) <= SLIGHTLY
        return worth and dearer(HEAVIER[0] * flop) <= 1

    def is_quicker(self, x: Taken) -> bool:
        """Whether CPUs take far less time for what does less work, though it sends more."""
        return SLOWER * x.busy <= self.now.busy and not self.sends_more(x)

    def sends_few(self, x: Taken) -> bool:
        """Whether it is at most half of the bytes that may be sent."""
        return x.sent <= FAR_FEWER * self.most.sent

    def sends_more(self, x: Taken) -> bool:
        """Whether it is more than the leanest plain propagation sends."""
        return x.sent > NO_MORE.sent * self.fewest

    def takes_no_more(self, x: Taken) -> bool:
        """Whether it exceeds neither what is taken now nor the bounds, whichever is more: in bytes, memory, work and messages."""
        return all(a <= max(b, c) for a, b, c in zip(x, self.now, self.most, strict=True))

    def replaced(
        self, modules: Iterable[Module], bound: Bound, worth: Bound, dearer: float, last: State
    ) -> bool:
        """Goes to the `last` assignment where that is hardly dearer, or to the first one that is found for modules with other prices,
        or then to the last one: if it is within a bound, worth it, and at most `dearer` times as dear; whether it did."""
        engine, cost, before = self.engine, self.engine.total(), self.engine.state()
        searched = map(self.searched, modules)
        outcomes: list[tuple[State, State | None, bool]] = []
        for times, other in chain([(HARDLY, last)], ((dearer, x) for x in searched), [(dearer, last)]):
            known = next((x for x in outcomes if _is_same(x[0], other)), None)
            if known is None:
                within = self.goes_within(bound, worth, other, before)
                known = other, engine.state() if within else None, self.strayed
                outcomes.append(known)
            _, reached, self.strayed = known
            engine.restore(reached or before)
            if reached and engine.total() <= times * cost:
                taken = self.taken(engine)
                saves = NEARLY * taken.sent < self.sent or not self.takes_more_messages_than(self.plain)
                saves = saves or (taken.messages < self.now.messages and taken.sent <= self.now.sent)
                if worth(taken) and saves and not (self.sends_more(taken) and taken.sent > self.now.sent):
                    if self.strayed:
                        self.polish(lambda x: bound(x) and worth(x))
                        taken = self.taken(engine)
                    self.now = taken
                    return True
            engine.restore(before)
        return False

    def polish(self, allowed: Bound) -> None:
        """Local search that keeps to a bound with each move."""
        local_search(self.engine, self.body, lambda: allowed(self.taken(self.engine)))

    def searched(self, module: Module) -> State:
        """What is found for the module with other prices; once for each."""
        key = prices(module.mesh)
        if key not in self.found:
            propagate = replace(self.propagate, cuts=False)
            self.found[key] = propagate.assigned(module, None, RuleBook(self.engine.book))[0].state()
        return self.found[key]

    def goes_within(self, bound: Bound, worth: Bound, other: State, before: State) -> bool:
        """Goes to what another assignment becomes by local search, and by what it takes over from that before; whether it is within a
        bound. What is worth it stays so."""
        engine = self.engine
        engine.adopt(other)
        taken = self.taken(engine)
        if not bound(taken):
            return False
        self.improve()
        improved = self.taken(engine)
        self.strayed = not bound(improved)
        if self.strayed:
            engine.adopt(other)
        else:
            taken = improved
        was_worth = worth(taken)

        def is_within() -> bool:
            taken = self.taken(engine)
            return bound(taken) and (worth(taken) or not was_worth)

        take_within(engine, before, is_within)
        return True

    def improve(self) -> None:
        """Local search that keeps to no bound; once from each assignment."""
        engine = self.engine
        start = engine.memory.state
        if start in self.improved:
            engine.restore(self.improved[start])
        else:
            local_search(engine, self.body)
            self.improved[start] = engine.state()

    def cramped(self) -> Iterator[Module]:
        """The module with blocks dear that are larger than parts of the largest one that a device makes. Where the assignment is no
        dearer for it, a search would find that again; where the largest part and the smallest one find it, so would those between."""
        engine, before, cost = self.engine, self.engine.state(), self.engine.total()

        def is_dearer(module: Module) -> bool:
            there, _ = self.propagate.forwarded(module, None, RuleBook(engine.book))
            there.adopt(before)
            return there.total() > cost

        values = [v for op in engine.choices for v in op.results]
        largest = max(local_type(v.type, engine.layouts[v], engine.mesh).nbytes for v in values)
        modules = [with_room(self.module, part * largest) for part in SMALLER]
        dearer = filter(is_dearer, modules)
        first = next(dearer, None)
        if first is not None:
            yield first
            if not all(map(self.finds_the_same, (first, modules[-1]))):
                yield from dearer

    def finds_the_same(self, module: Module) -> bool:
        """Whether a search with other prices finds what is there."""
        return self.seen_in(self.searched(module), self.taken) == self.now


def _is_same(state: State, other: State) -> bool:
    return state.layouts == other.layouts and state.demands == other.demands
