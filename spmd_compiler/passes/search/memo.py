"""What the passes of the dynamic programming remember of each other (`dynamic`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...ir.graph import Op
from ...ir.layout import Layout
from ...ir.optable import CONTROL_FLOW
from ..rules.base import Choice
from .proposal import Node

# the layouts that a value may have, with the cost of what comes before
Table = tuple[tuple[Layout, float], ...]


class Memory:
    """What the passes over a program share: equal ops in equal circumstances are decided once, and so are programs: plans
    begin alike, and many passes change nothing."""

    def __init__(self) -> None:
        self.candidates: dict[Any, tuple[Choice, ...]] = {}
        self.forward: dict[Any, tuple[Table, ...]] = {}
        self.spent: dict[Any, list[float]] = {}
        self.decisions: dict[Any, Choice] = {}
        self.reach: dict[Any, dict[Layout, float]] = {}
        self.without: dict[Any, float] = {}  # as in `reach`, for the other users alone
        self.placements: dict[Any, list[Layout]] = {}
        self.tables: dict[Table, Table] = {}
        self._only: dict[Layout, Table] = {}
        self.kinds: dict[Any, frozenset[str] | None] = {}
        self.ends: dict[Any, list[Table]] = {}  # per loop and axis what the end of its body costs
        self.state = 0  # the number of the present state of the program
        self.states: dict[Any, int] = {}
        self.choices: dict[int, Choice] = {}  # by id, those that states are told by
        self.passes: dict[Any, tuple[dict[Node, Any], dict[Any, list[Table]], bool]] = {}

    def arrive(self, choices: Mapping[Op, Choice], *more: Any) -> None:
        """The program is in a state: that of these choices, of the present `ends`, and of `more`. Equal ones have one number,
        whichever way led there."""
        carried = [choice.results for op, choice in choices.items() if op.name in CONTROL_FLOW]
        if carried:  # these choices are made anew with each of their layouts
            choices = {op: choice for op, choice in choices.items() if op.name not in CONTROL_FLOW}
        ids = tuple(map(id, choices.values()))
        self.choices.update(zip(ids, choices.values(), strict=True))
        ends = tuple([(key, *map(id, tables)) for key, tables in self.ends.items()])
        self.state = self.states.setdefault((ids, tuple(carried), ends, more), len(self.states) + 1)

    def only(self, layout: Layout) -> Table:
        """The table of a value that has one layout."""
        found = self._only.get(layout)
        if found is None:
            found = self._only[layout] = self.table({layout: 0.0})
        return found

    def table(self, entries: dict[Layout, float]) -> Table:
        """An interned table whose smallest cost is 0."""
        least = min(entries.values())
        table = tuple([(layout, round(cost - least, 3)) for layout, cost in entries.items()])
        return self.tables.setdefault(table, table)
