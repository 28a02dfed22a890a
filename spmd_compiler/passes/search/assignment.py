"""The state of layout assignment: what each value's layout is, what its users want, and what that costs."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable

from ...ir.graph import Op, Value
from ...ir.layout import Layout, local_type
from ...ir.mesh import Mesh
from ...ir.types import TensorType, Type
from ..relayout.planner import known_bounds, relayout_bound, relayout_cost
from ..rules.base import Choice


class Costs:
    """Costs of serving users from a layout, memoised for one mesh."""

    def __init__(self, mesh: Mesh):
        self.mesh = mesh
        self._relayout: dict[tuple[Type, Layout, Layout], float] = {}
        self._bounds = known_bounds(mesh)
        self._serve: dict[tuple[Type, Layout, tuple[Layout, ...] | None], float] = {}

    def relayout(self, type: Type, source: Layout, target: Layout, limit: float = math.inf) -> float:
        """The cost of a relayout; if that is `limit` or more, it may be inf instead."""
        if source is target:
            return 0.0
        known = self._relayout.get((type, source, target))
        if known is None:
            if not isinstance(type, TensorType):
                return 0.0
            known = relayout_cost(type, source, target, self.mesh, limit)
            if known < math.inf:
                self._relayout[type, source, target] = known
        return known

    def marginal(
        self,
        type: Type,
        layout: Layout,
        others: tuple[Layout, ...],
        demand: Layout,
        limit: float = math.inf,
    ) -> float:
        """What `demand` costs on top of the `others` that exist anyway; if that is `limit` or more, it may be inf instead."""
        if demand is layout or demand in others:
            return 0.0
        if not others:
            return self.relayout(type, layout, demand, limit)
        return max(0.0, self.serve(type, layout, (*others, demand)) - self.serve(type, layout, others))

    def serve(
        self, type: Type, layout: Layout, demands: tuple[Layout, ...] | None, limit: float = math.inf
    ) -> float:
        """The cheapest way to have a value in all of `demands`; while they are unknown, what a partial still owes. If that
        is `limit` or more, it may be inf instead."""
        if demands is None:
            return self.resolve(type, layout)[0] if layout.partial else 0.0
        key = (type, layout, demands)
        hit = self._serve.get(key)
        if hit is None:
            if limit < math.inf and self.at_least(type, layout, demands) >= limit:
                return math.inf
            hit = self.distribute(type, layout, demands, limit)[0]
            if hit < math.inf:
                self._serve[key] = hit
        return hit

    def served(self, type: Type, layout: Layout, demands: tuple[Layout, ...]) -> tuple[float, bool]:
        """What `serve` costs, or else a bound from below, and which of the two."""
        known = self._serve.get((type, layout, demands))
        return (self.at_least(type, layout, demands), False) if known is None else (known, True)

    def cheapest(
        self, type: Type, sources: Iterable[tuple[Layout, float]], demands: tuple[Layout, ...], weight: float
    ) -> float:
        """The least, over some layouts with their costs, of that and `weight` times serving `demands` from there."""
        least, unknown, served = math.inf, list[tuple[float, float, Layout]](), self._serve
        for source, cost in sources:
            if cost < least:
                known = served.get((type, source, demands))
                if known is None:
                    unknown.append((cost + weight * self.at_least(type, source, demands), cost, source))
                elif cost + weight * known < least:
                    least = cost + weight * known
        if len(unknown) > 1:
            unknown.sort(key=lambda x: x[0])
        for bound, cost, source in unknown:
            if bound >= least:
                break
            limit = (least - cost) / weight
            least = min(least, cost + weight * self.serve(type, source, demands, limit))
        return least

    def at_least(self, type: Type, layout: Layout, demands: tuple[Layout, ...]) -> float:
        """A bound from below of what `serve` costs, without a plan."""
        if not isinstance(type, TensorType):
            return 0.0
        least, bounds = 0.0, self._bounds
        for demand in demands:
            bound = bounds.get((type, layout, demand))
            if bound is None:
                bound = relayout_bound(type, layout, demand, self.mesh)
            if bound > least:
                least = bound
        return least

    def distribute(
        self, type: Type, layout: Layout, demands: tuple[Layout, ...], limit: float = math.inf
    ) -> tuple[float, list[tuple[Layout, Layout]]]:
        """(cost, [(source, demand)]) in the order to make them: a later one may start from an earlier one. If the cost is `limit`
        or more, it may be inf, without any."""
        todo = [d for d in dict.fromkeys(demands) if d is not layout]
        if not todo:
            return 0.0, []
        best: tuple[float, list[tuple[Layout, Layout]]] = limit, []
        orders = itertools.permutations(todo) if len(todo) <= 3 else [self._largest_first(type, todo)]
        for order in orders:
            have = [layout]
            total, how = 0.0, []
            for demand in order:
                if total >= best[0] - 1e-9:
                    break  # this order is no cheaper already
                least, best_source = best[0] - total, layout
                for source in have:
                    cost = self.relayout(type, source, demand, least)
                    if cost < least:
                        least, best_source = cost, source
                total += least
                how.append((best_source, demand))
                have.append(demand)
            else:
                if total < best[0] - 1e-9:
                    best = (total, how)
        return best if best[1] else (math.inf, [])

    def _largest_first(self, type: Type, layouts: list[Layout]) -> list[Layout]:
        """From larger blocks smaller ones are sliced."""
        return sorted(layouts, key=lambda x: (-self.bytes(type, x), str(x)))

    def resolve(self, type: Type, layout: Layout) -> tuple[float, Layout]:
        """The cheapest layout without partials: scattered on a dim where one divides, else reduced everywhere."""
        plain = layout.without_partial()
        options = [plain]
        axes = layout.partial_axes
        for d in range(type.rank):
            old = layout.dims[d]
            n = self.mesh.axes_size(old + axes)
            if type.shape[d] % n == 0 and (not layout.blocks or not layout.blocks[d]):
                options.append(plain.with_dim(d, old + axes))
        costs = [self.relayout(type, layout, o) for o in options]
        k = costs.index(min(costs))
        return costs[k], options[k]

    def bytes(self, type: Type, layout: Layout) -> int:
        """Of a device's block."""
        return local_type(type, layout, self.mesh).nbytes if isinstance(type, TensorType) else 0


def exchange(users: dict[Layout, int], old: Layout, new: Layout) -> None:
    """One of a value's users wants another layout now."""
    users[old] -= 1
    if not users[old]:
        del users[old]
    users[new] = users.get(new, 0) + 1


class Assignment:
    """Layouts of all values, the choice made for each op, and per value the layouts that its users want."""

    def __init__(self, mesh: Mesh):
        self.costs = Costs(mesh)
        self.mesh = mesh
        self.layouts: dict[Value, Layout] = {}
        self.choices: dict[Op, Choice] = {}
        self.demands: dict[Value, dict[Layout, int]] = {}

    def record(self, op: Op, choice: Choice) -> None:
        """How an op runs: the layouts of its results, and what it wants of its operands."""
        self.choices[op] = choice
        for value, layout in zip(op.results, choice.results, strict=True):
            self.layouts[value] = layout
        for value, layout in zip(op.operands, choice.demands, strict=True):
            self.want(value, layout)

    def want(self, value: Value, layout: Layout) -> None:
        users = self.demands.get(value)
        if users is None:
            self.demands[value] = {layout: 1}
        else:
            users[layout] = users.get(layout, 0) + 1

    def unwant(self, value: Value, layout: Layout) -> None:
        users = self.demands[value]
        if users[layout] == 1:
            del users[layout]
        else:
            users[layout] -= 1

    def wanted(self, value: Value) -> tuple[Layout, ...]:
        users = self.demands.get(value)
        return tuple(users) if users else ()
