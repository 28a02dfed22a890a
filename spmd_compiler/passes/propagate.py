"""propagate: gives every value a layout, and makes every change of layout an explicit `relayout` op.

0. An argument or a result whose layout does not divide it lies in the even part of that (`even_part`). Of an argument the
   forward propagation sees the layout asked for: cutting it is free, and where it isn't worth it step 2 finds out.
1. Forward: each op, in program order, takes the cheapest of its strategies, given where its operands are. Partials are seen
   as if reduced, which somebody has to pay for once; the improvement finds where they are better left unreduced, while ops
   are linear in them. Loops find the layouts of their carries by fixed point (`loops`).
2. Improvement: everything is decided again by dynamic programming (`dynamic`), until nothing worthwhile is gained. A change
   is kept only if the total gets cheaper, so the result never costs more than plain propagation. Nor does it send more, take
   more memory or do more work, unless doing with less is far dearer (`plain_bounds`).
3. Legalisation: where a user wants another layout than the value has, a `relayout` op stands between them; users that want
   the same share one, and constants are made in each layout rather than relaid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

from ..ir.graph import Block, Module
from ..ir.layout import Layout
from .cost import USUAL, prices
from .rules.table import RuleBook
from .search.assignment import exchange
from .search.carries import crossed_carries
from .search.cut_axes import cut_of
from .search.dynamic import View, improve
from .search.engine import AS_USUAL, Engine, Forwarding, State
from .search.exact import solve
from .search.fused_axes import Fusion, fusions_of
from .search.fusion_moves import take_from
from .search.idle_axes import on_idle_axes
from .search.legalise import legalise
from .search.local_search import local_search
from .search.plain_bounds import PlainBounds
from .search.rolling import Rolled, adopt, rolled
from .search.traffic import Traffic

EVEN = 0.01  # of what an assignment costs at least, that it may cost more and not be looked at again
LESS = 0.05  # of what is sent, that an axis has to save on which nothing was
FAR = 1.2  # of the cheapest assignment's cost, above which another one is no start
MIXED = 3  # times at most that what is better in other assignments is taken over
WORTHWHILE = 0.002  # rounds of improvement go on while they gain this part of what the first one gained


class Round(NamedTuple):
    """One time that everything is decided again; see `improve`."""

    views: tuple[View, ...]
    leap: bool = False
    turned: bool = False


ALONE, SHARED, PRESENT, STEADY = View
# Each order, of views and of axes, finds something that another one misses. The leap lets go of what the forward assignment
# began with.
PLANS = (
    (Round((ALONE,), leap=True), Round((PRESENT,))),
    (Round((SHARED, ALONE, PRESENT), turned=True),),
    (Round((ALONE,)), Round((SHARED, PRESENT))),
    (Round((PRESENT,)), Round((ALONE,)), Round((SHARED, PRESENT))),
)
ROOM = 6000  # ops, over all plans: a larger program has fewer plans
ROLLED = 24000  # the same of a program that is rolled, before it is
WHOLE = 1500  # ops, from which on a program that can be rolled is searched only so
# ops, times 4 for each axis but one, of a program that is searched with axes in two where plain propagation doesn't cut with them
# unevenly: each axis makes it dearer
CUT = 3000


@dataclass(frozen=True)
class Propagate:
    """sweeps: how many rounds of improvement follow the forward propagation; 0 is plain propagation. exact: seconds for
    an exact search after that, if any (`exact`), under a limit of `memory` bytes per device if there is one. plans: how
    many to improve by, if not as many as the program's size allows. cuts: whether axes are also searched in two. on_cpus: whether
    CPUs will run it, which take longer to repeat work than to send a few bytes more."""

    sweeps: int = 2
    exact: float | None = None
    memory: float | None = None
    plans: int | None = None
    cuts: bool = True
    on_cpus: bool = False
    name: ClassVar[str] = "propagate"

    def __call__(self, module: Module) -> Module:
        body, attrs = module.main.body, dict(module.attrs)
        engine, wanted, bounds = self.bounded(module)
        told = bounds.told
        if (room := prices(engine.mesh).room) < math.inf:
            told.append(f"to fit into memory: values in blocks of at most {room:,.0f} bytes, where possible")
        if self.exact is not None:
            told.append(self.solved(engine, body, bounds))
        if told:
            attrs["search"] = "\n".join(told)
        engine.settle_args()
        done = module.with_body(legalise(engine, body, wanted))
        done.attrs = attrs
        return done

    def bounded(self, module: Module) -> tuple[Engine, list[Layout | None], PlainBounds]:
        """As `assigned`, within the bounds of plain propagation."""
        engine, wanted = self.forwarded(module)
        again = self.sweeps > 0 and len(engine.choices) <= WHOLE  # a larger one takes long to search again
        bounds = PlainBounds(self, engine, module, engine.state() if again else None)
        if self.sweeps:
            self.search(engine, module)
        bounds.keep()
        return engine, wanted, bounds

    def solved(self, engine: Engine, body: Block, bounds: PlainBounds) -> str:
        """What the exact search tells; what it finds has to keep to the bounds that the default was changed for."""
        before, told = engine.state(), str(solve(engine, body, self.exact or 0.0, self.memory))
        if not bounds.is_kept():
            engine.restore(before)
            told += "; not taken, since it takes more memory, work or time than plain propagation"
        return told

    def assigned(
        self, module: Module, fusion: Fusion | None = None, book: RuleBook | None = None
    ) -> tuple[Engine, list[Layout | None]]:
        """The assignment of layouts, on the fused mesh if one is given, and those that the results were asked to have."""
        engine, wanted = self.forwarded(module, fusion, book)
        if self.sweeps:
            self.search(engine, module)
        return engine, wanted

    def forwarded(
        self,
        module: Module,
        fusion: Fusion | None = None,
        book: RuleBook | None = None,
        forwarding: Forwarding = AS_USUAL,
    ) -> tuple[Engine, list[Layout | None]]:
        """As `assigned`, by plain propagation."""
        main = module.main
        engine = Engine(module, fusion, book, forwarding)
        wanted = self.asked(engine, module)
        for value in main.body.args:
            layout = forwarding.seen.get(value, value.layout)
            engine.layouts[value] = engine.given(layout) or Layout.replicated(value.type.rank)
        engine.free_results = {v for v, x in zip(main.body.returns, wanted, strict=True) if x is None}
        engine.weigh(main.body, 1)
        engine.forward(main.body)
        engine.layouts.update(engine.made_in)
        for value in main.body.args:
            stored = engine.stored(value, engine.given(value.layout))
            if stored is not None and stored is not (asked := engine.layouts[value]):
                engine.layouts[value], engine.cut_args[value] = stored, asked
        engine.free_args = {v for v in main.body.args if v.layout is None}
        for value, layout in zip(main.body.returns, wanted, strict=True):
            if layout is not None:
                engine.want(value, layout)
        engine.look_for_turned()
        return engine, wanted

    def asked(self, engine: Engine, module: Module) -> list[Layout | None]:
        """The layouts that the results were asked to have, as the engine sees them."""
        returns = zip(module.main.body.returns, module.main.result_attrs, strict=True)
        return [engine.stored(v, engine.given(attrs.get("layout"))) for v, attrs in returns]

    def search(self, engine: Engine, module: Module) -> None:
        """Everything is decided again, in a rolled program where that serves, unless what is found is dearer."""
        before, cost = engine.state(), engine.total()
        if self.is_best(engine, cost):
            return
        body, short = module.main.body, rolled(engine, module)
        if short is None or len(body.ops) < WHOLE:
            plain = list(engine.layouts.items())
            self.deepen(engine, body, self.explore(engine, module, cost))
            self.open(engine, module)
            cut = None if engine.fusion or not self.cuts else cut_of(module, plain, engine.layouts.items())
            if cut is not None and len(engine.choices) * 4 ** (len(cut.mesh.axes) - 1) > CUT:
                cut = cut_of(module, plain)
            if cut is not None:
                self.cut(engine, module, cut)
        if short is not None:
            self.search_rolled(engine, body, short)
        if engine.total() > cost:
            engine.restore(before)

    def search_rolled(self, engine: Engine, body: Block, short: Rolled) -> None:
        """What is found in a rolled program, if that is better than what is there; a large program has plain propagation still."""
        before = engine.state()
        found, _ = self.forwarded(short.module, engine.fusion, engine.book)
        found.rolled = True
        replace(self, plans=max(1, ROLLED // len(engine.choices))).search(found, short.module)
        adopt(engine, found, short.stand_ins)
        engine.moved()
        if len(engine.choices) <= ROOM:
            self.polish(engine, body)  # the ends of rows may differ from what stands for them
            local_search(engine, body)
        if len(body.ops) < WHOLE:
            self.keep_better(engine, body, before)

    def keep_cheaper(self, engine: Engine, before: State) -> bool:
        """Goes back to an assignment, unless the present one is cheaper; whether it is."""
        now, cost = engine.state(), engine.total()
        engine.restore(before)
        cheaper = cost < engine.total()
        if cheaper:
            engine.restore(now)
        return cheaper

    def is_best(self, engine: Engine, total: float) -> bool:
        """True if all devices share the work, nothing is sent, and nothing is computed of which a device then takes a part. total: what
        the assignment costs."""
        even = total <= (1 + EVEN) * engine.work / engine.mesh.size
        if not even or engine.traffic.sent(engine):
            return False
        computed = {v for op in engine.choices if op.name != "broadcast_in_dim" for v in op.results}
        computed -= engine.remade.keys()
        return not any(v in computed for v, _ in engine.relaid(engine.costs))

    def explore(self, engine: Engine, module: Module, plain: float) -> State | None:
        """The best that the dynamic programming finds, from several starts, where plain propagation costs `plain`; returns the best of
        these alone, if it is mixed."""
        pure = self.improve(engine, module.main.body, self.fused(engine, module))
        self.spread(engine, module, plain)
        if any(op.name == "while" and "trips" not in op.attrs for op in engine.choices):
            improve(engine, module.main.body, (STEADY,))
        return pure

    def deepen(self, engine: Engine, body: Block, other: State | None) -> None:
        """Local search, from another assignment too if there is one: what is found alone may have more structure."""
        local_search(engine, body)
        if other is not None:
            self.go_on_from(other, engine, body, local_search)

    def fused(self, engine: Engine, module: Module) -> list[State]:
        """The assignments that are found with axes that belong together as one."""
        fusions = () if engine.fusion else fusions_of(module)
        return [state for x in fusions if (state := self.assigned_on(x, engine, module)) is not None]

    def assigned_on(self, fusion: Fusion, engine: Engine, module: Module) -> State | None:
        """What is found on a fused mesh, on the real axes."""
        found, wanted = self.assigned(module, fusion, engine.book)
        state = fusion.split(found.state())
        if state is not None:
            self.as_given(engine, module, state, [x and fusion.real(x) for x in wanted])
        return state

    def cut(self, engine: Engine, module: Module, cut: Fusion) -> None:
        """What is found with axes in two that don't divide dims, where that is better."""
        state = self.assigned_on(cut, engine, module)
        if state is not None:
            self.go_on_from(state, engine, module.main.body, self.polish, local_search)

    def as_given(self, engine: Engine, module: Module, state: State, seen: list[Layout | None]) -> None:
        """Arguments lie, and results are wanted, as the user gave it, where the fused axes can't say that."""
        body = module.main.body
        fixed = [v for v in body.args if v not in engine.free_args]
        state.layouts.update({v: engine.layouts[v] for v in fixed})
        for value, given, saw in zip(body.returns, self.asked(engine, module), seen, strict=True):
            if saw is not None and given is not None and given is not saw:
                exchange(state.demands[value], saw, given)

    def improve(self, engine: Engine, body: Block, others: Sequence[State] = ()) -> State | None:
        """The best that some plans of improvement find, each from the forward assignment, and from each of `others`. If it is a
        mixture, returns what is best alone."""
        start, found = engine.state(), dict[int, tuple[float, State]]()

        def keep(total: float) -> None:
            state = engine.state()
            found[state.number] = round(total, 3), state

        plans = PLANS[: self.plans or max(1, ROOM // max(1, len(engine.choices)))]
        for plan in plans:
            engine.restore(start)
            scale = gain = 0.0
            for each in plan:
                gain = improve(engine, body, *each)
                scale = max(scale, gain)
            for _ in range(self.sweeps - 1):
                if gain <= WORTHWHILE * scale:
                    break
                gain = improve(engine, body, (PRESENT,), turned=plan[-1].turned)
            total = engine.total()
            if self.is_best(engine, total):
                return None
            if len(plans) > 1 or others:
                keep(total)
        for other in others:
            engine.restore(other)
            engine.moved()
            self.polish(engine, body)
            keep(engine.total())
        return self.mixture(engine, body, sorted(found.values(), key=lambda x: x[0])) if found else None

    def mixture(self, engine: Engine, body: Block, found: list[tuple[float, State]]) -> State | None:
        """Puts together what is best in assignments with their costs, the cheapest first. It begins from the cheapest one, and from
        the dearest: where that sends more, more may be taken over. Returns what `improve` does."""
        states = [state for _, state in found]
        mixed = self.mix_from(engine, body, states[0], states)
        if not engine.fusion and found[0][0] < found[-1][0] <= FAR * found[0][0]:
            before = engine.state()
            self.mix_from(engine, body, states[-1], states)
            mixed |= self.keep_cheaper(engine, before)
        return states[0] if mixed else None

    def mix_from(self, engine: Engine, body: Block, start: State, others: list[State]) -> bool:
        """Goes to an assignment and takes over what is better in others, as long as that gains; whether anything was."""
        engine.restore(start)
        times = 0
        while times < MIXED and self.mix(engine, body, others):
            times += 1
        return times > 0

    def mix(self, engine: Engine, body: Block, others: list[State]) -> bool:
        """Takes over what is better in other assignments; whether anything is."""
        if not sum([take_from(engine, other, engine.limit) for other in others]):
            return False
        engine.moved()
        self.polish(engine, body)
        return True

    def polish(self, engine: Engine, body: Block) -> None:
        """Everything is decided once more, unless the program then sends more and may not."""
        before = engine.state()
        improve(engine, body, (PRESENT,))
        if engine.sends_more(before):
            engine.restore(before)

    def spread(self, engine: Engine, module: Module, plain: float) -> None:
        """What is found from arguments on axes that are idle, from axes that reshapes don't cut into pieces, and from carries on no
        axis, where plain propagation, which costs `plain`, is cheaper so, if that is cheaper, and sends no more."""
        if engine.fusion:
            return
        if crossed := crossed_carries(engine, module.main.body):
            other, _ = self.forwarded(module, None, engine.book, Forwarding(crossed))
            if other.total() < plain:
                self.compare(engine, module, other)
        if seen := on_idle_axes(module):
            self.compare(engine, module, self.forwarded(module, None, engine.book, Forwarding(seen))[0])
        if any(x.has_pieces for x in engine.layouts.values()):
            self.compare(engine, module, self.forwarded(module, None, engine.book, Forwarding(whole=True))[0])

    def compare(self, engine: Engine, module: Module, other: Engine) -> None:
        """Goes on with what is found from another start, where that is better."""
        self.improve(other, module.main.body)
        self.go_on_from(other.state(), engine, module.main.body, self.polish)

    def go_on_from(
        self, state: State, engine: Engine, body: Block, *steps: Callable[[Engine, Block], object]
    ) -> None:
        """Goes to what some steps find from another assignment, where that is better."""
        before = engine.state()
        engine.restore(state)
        engine.moved()
        for step in steps:
            step(engine, body)
        self.keep_better(engine, body, before)

    def open(self, engine: Engine, module: Module) -> None:
        """What axes are good for that nothing is on, where less is sent so: results that the user leaves to the compiler lie on no
        axis without a reason."""
        used = {a.split(":")[0] for x in {*engine.layouts.values()} for a in x.axes}
        idle = [a for a in engine.mesh.shape if a not in used and engine.mesh.axis_size(a) > 1]
        if not idle:
            return
        before = engine.state()
        engine.opened = frozenset(idle)
        engine.moved()
        improve(engine, module.main.body, (PRESENT,))
        engine.opened = frozenset()
        local_search(engine, module.main.body)
        self.keep_better(engine, module.main.body, before)
        sent = Traffic(engine.mesh, engine.book, USUAL.message)
        if engine.limit and sent.added(engine, before) >= -LESS * sent.sent(engine):
            engine.restore(before)

    def keep_better(self, engine: Engine, body: Block, before: State) -> None:
        """Goes back to an assignment, with what is better in the present one, unless that is cheaper and sends no more."""
        now, cost, more = engine.state(), engine.total(), engine.sends_more(before)
        engine.restore(before)
        if not more and cost < engine.total():
            engine.restore(now)
        else:
            self.mix(engine, body, [now])
