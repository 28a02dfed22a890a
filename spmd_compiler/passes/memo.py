"""What the passes of the dynamic programming remember of each other (`dynamic`)."""

from __future__ import annotations

from typing import Any

from ..ir.layout import Layout
from .proposal import Node
from .rules.base import Choice

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
        self.reach: dict[Any, float] = {}
        self.without: dict[Any, float] = {}  # as in `reach`, for the other users alone
        self.placements: dict[Any, list[Layout]] = {}
        self.tables: dict[Table, Table] = {}
        self._only: dict[Layout, Table] = {}
        self.kinds: dict[Any, frozenset[str] | None] = {}
        self.ends: dict[Any, list[Table]] = {}  # per loop and axis what the end of its body costs
        self.state = 0  # the number of the present state of the program
        self.states: dict[Any, int] = {}  # the number that a state has after a pass in another state
        self.passes: dict[Any, tuple[dict[Node, Any], dict[Any, list[Table]], bool]] = {}

    def number(self, origin: Any) -> int:
        """The number of the state that comes about so."""
        return self.states.setdefault(origin, len(self.states) + 1)

    def moved(self, origin: Any) -> None:
        """The program has come into another state by no pass, but so: what its loops' ends cost is unknown there."""
        self.ends, self.state = {}, self.number(origin)

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
