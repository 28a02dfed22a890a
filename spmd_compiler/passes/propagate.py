"""propagate: gives every value a layout, and makes every change of layout an explicit `relayout` op.

0. An argument or a result whose layout does not divide it lies in the even part of that (`even_part`). Of an argument the
   forward propagation sees the layout asked for: cutting it is free, and where it isn't worth it step 2 finds out.
1. Forward: each op, in program order, takes the cheapest of its strategies, given where its operands are. Partials stay
   unreduced while ops are linear in them. Loops find the layouts of their carries by fixed point (`loops`).
2. Improvement: everything is decided again by dynamic programming (`dynamic`), until nothing worthwhile is gained. A change
   is kept only if the total gets cheaper, so the result never costs more than plain propagation.
3. Legalisation: where a user wants another layout than the value has, a `relayout` op stands between them; users that want
   the same share one, and constants are made in each layout rather than relaid.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from ..ir.graph import Block, Module, Value
from ..ir.layout import Layout
from .cost import prices
from .dynamic import View, improve
from .engine import Engine, State
from .exact import solve
from .fused_axes import Fusion, fusion_of
from .idle_axes import on_idle_axes
from .legalise import legalise
from .local_search import local_search
from .rules.table import RuleBook
from .shortening import adopt, shortened
from .traffic import Traffic

EVEN = 0.01  # of what an assignment costs at least, that it may cost more and not be looked at again
WORTHWHILE = 0.002  # rounds of improvement go on while they gain this part of what the first one gained


class Round(NamedTuple):
    """One time that everything is decided again; see `improve`."""

    views: tuple[View, ...]
    leap: bool = False


ALONE, SHARED, PRESENT, STEADY = View
# Each order finds something that another one misses. The leaps let go of what the forward assignment began with.
PLANS = (
    (Round((ALONE,)), Round((SHARED, PRESENT))),
    (Round((ALONE,), leap=True), Round((PRESENT,))),
    (Round((PRESENT,)), Round((ALONE,)), Round((SHARED, PRESENT))),
    (Round((SHARED, ALONE, PRESENT)),),
)
ROOM = 6000  # ops, over all plans: a larger program has fewer plans
REPEATED = (
    3000  # ops of a program that repeats itself: a larger one is looked at for moves of regions as shortened
)


@dataclass(frozen=True)
class Propagate:
    """sweeps: how many rounds of improvement follow the forward propagation; 0 is plain propagation. exact: seconds for
    an exact search after that, if any (`exact`), under a limit of `memory` bytes per device if there is one."""

    sweeps: int = 2
    exact: float | None = None
    memory: float | None = None
    name: ClassVar[str] = "propagate"

    def __call__(self, module: Module) -> Module:
        engine, wanted = self.assigned(module)
        body, attrs = module.main.body, dict(module.attrs)
        told: list[str] = []
        if (room := prices(engine.mesh).room) < math.inf:
            told.append(f"to fit into memory: values in blocks of at most {room:,.0f} bytes, where possible")
        if self.exact is not None:
            told.append(str(solve(engine, body, self.exact, self.memory)))
        if told:
            attrs["search"] = "\n".join(told)
        engine.settle_args(body)
        done = module.with_body(legalise(engine, body, wanted))
        done.attrs = attrs
        return done

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
        seen: Mapping[Value, Layout] | None = None,
        whole: bool = False,
    ) -> tuple[Engine, list[Layout | None]]:
        """As `assigned`, by plain propagation. seen: arguments that it sees in other layouts than they have. whole: it sees
        no axes in pieces behind reshapes."""
        main = module.main
        engine = Engine(module, fusion, book)
        engine.whole = whole
        returns = zip(main.body.returns, main.result_attrs, strict=True)
        wanted = [engine.stored(v, engine.given(attrs.get("layout"))) for v, attrs in returns]
        for value in main.body.args:
            layout = (seen or {}).get(value, value.layout)
            engine.layouts[value] = engine.given(layout) or Layout.replicated(value.type.rank)
        engine.free_results = {v for v, x in zip(main.body.returns, wanted, strict=True) if x is None}
        engine.weigh(main.body, 1)
        engine.forward(main.body)
        engine.layouts.update(engine.in_pieces)
        for value in main.body.args:
            stored = engine.stored(value, engine.given(value.layout))
            if stored is not None and stored is not (asked := engine.layouts[value]):
                engine.layouts[value], engine.cut_args[value] = stored, asked
        engine.free_args = {v for v in main.body.args if v.layout is None}
        for value, layout in zip(main.body.returns, wanted, strict=True):
            if layout is not None:
                engine.want(value, layout)
        return engine, wanted

    def search(self, engine: Engine, module: Module) -> None:
        """Everything is decided again, on a shortened program where that serves."""
        if self.is_best(engine, engine.total()):
            return
        body, short = module.main.body, shortened(engine, module)
        if not short:
            self.explore(engine, module)
            local_search(engine, body)
            return
        found, _ = self.forwarded(short.module, engine.fusion, engine.book)
        self.explore(found, short.module)
        adopt(engine, found, short.stand_ins)
        if len(engine.choices) <= REPEATED:
            local_search(engine, body)
        elif local_search(found, short.module.main.body):
            before, cost = engine.state(), engine.total()
            adopt(engine, found, short.stand_ins)
            if engine.total() > cost:  # what moved were not whole layers
                engine.restore(before)

    def is_best(self, engine: Engine, total: float) -> bool:
        """True if all devices share the work, and nothing is sent. total: what the assignment costs."""
        even = total <= (1 + EVEN) * engine.work / engine.mesh.size
        return even and not Traffic(engine.mesh).sent(engine)

    def explore(self, engine: Engine, module: Module) -> None:
        """The best that the dynamic programming finds, from several starts."""
        self.improve(engine, module.main.body, self.fused(engine, module))
        self.spread(engine, module)
        if any(op.name == "while" for op in engine.choices):
            improve(engine, module.main.body, (STEADY,))

    def fused(self, engine: Engine, module: Module) -> State | None:
        """The assignment that is found with axes that belong together as one, if there are such axes."""
        fusion = None if engine.fusion else fusion_of(module)
        if fusion is None:
            return None
        return fusion.split(self.assigned(module, fusion, engine.book)[0].state())

    def improve(self, engine: Engine, body: Block, other: State | None) -> None:
        """The best that some plans of improvement find, each from the forward assignment, and one from `other`."""
        start, found = engine.state(), list[tuple[float, State]]()
        plans = PLANS[: max(1, ROOM // max(1, len(engine.choices)))]
        for plan in plans:
            engine.restore(start)
            scale = gain = 0.0
            for views, leap in plan:
                gain = improve(engine, body, views, leap)
                scale = max(scale, gain)
            for _ in range(self.sweeps - 1):
                if gain <= WORTHWHILE * scale:
                    break
                gain = improve(engine, body, (PRESENT,))
            total = engine.total()
            if self.is_best(engine, total):
                return
            if len(plans) > 1 or other:
                found.append((round(total, 3), engine.state()))
        if other:
            engine.restore(other)
            engine.memory.moved("fused axes")
            improve(engine, body, (PRESENT,))
            found.append((round(engine.total(), 3), engine.state()))
        if found:
            engine.restore(min(found, key=lambda x: x[0])[1])

    def spread(self, engine: Engine, module: Module) -> None:
        """What is found from arguments on axes that are idle, and from axes that reshapes don't cut into pieces, if that is
        cheaper, and sends no more."""
        if engine.fusion:
            return
        if seen := on_idle_axes(module):
            self.compare(engine, module, self.forwarded(module, None, engine.book, seen)[0], "idle axes")
        if any(x.has_pieces for x in engine.layouts.values()):
            self.compare(
                engine, module, self.forwarded(module, None, engine.book, whole=True)[0], "whole axes"
            )

    def compare(self, engine: Engine, module: Module, other: Engine, name: str) -> None:
        """Goes on with what is found from another start, if that is cheaper, and sends no more."""
        self.improve(other, module.main.body, None)
        before, cost, by_bytes = engine.state(), engine.total(), prices(engine.mesh).bytes_first
        engine.restore(other.state())
        engine.memory.moved(name)
        improve(engine, module.main.body, (PRESENT,))
        if engine.total() >= cost or (by_bytes and Traffic(engine.mesh).added(engine, before) > 0):
            engine.restore(before)
