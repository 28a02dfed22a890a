"""The table of rules: op name -> how to make the rule of an instance. What is not in it runs replicated.

Rules are made once per signature (name, attributes, types, reducer) and shared by all ops that have it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...ir.graph import Op, Value
from ...ir.memory_kinds import is_placement
from ...ir.optable import CONTROL_FLOW, reducer_kind
from ..emit.builder import Builder
from . import (
    approx_top_k,
    batched,
    convolution,
    custom,
    dot,
    dynamic_roll,
    elementwise,
    fft,
    gather,
    host_calls,
    moving,
    passing,
    ragged_dot,
    reduce,
    reduce_window,
    reshape,
    scan,
    scatter,
    select_scatter,
    shape,
    slicing,
    sorting,
    top_k,
    user_collectives,
)
from .base import Rule, factored
from .reducers import Scalars, is_identity, neutral_init

TABLE: dict[str, Callable[..., Rule | None]] = {
    **elementwise.RULES,
    **dot.RULES,
    **ragged_dot.RULES,
    **shape.RULES,
    **moving.RULES,
    **dynamic_roll.RULES,
    **reshape.RULES,
    **slicing.RULES,
    **gather.RULES,
    **scatter.RULES,
    **reduce.RULES,
    **reduce_window.RULES,
    **scan.RULES,
    **select_scatter.RULES,
    **convolution.RULES,
    **batched.RULES,
    **fft.RULES,
    **sorting.RULES,
    **top_k.RULES,
    **passing.RULES,
    **user_collectives.RULES,
}
# rules that depend on whether the init is neutral, or the divisor finite and not zero
NEEDS_SCALARS = {"reduce", "reduce_window", "divide"}

# Of custom calls the first rule that applies; JAX's own rules for the kernels that `batched` knows say less.
CUSTOM_CALLS: tuple[tuple[Callable[[Op], bool], Callable[..., Rule | None]], ...] = (
    (batched.is_known_kernel, batched.batched_call),
    (custom.has_rule, custom.custom_rule),
    (batched.declares_batch, batched.batched_call),
    (approx_top_k.is_approx_top_k, approx_top_k.approx_top_k),
    (is_placement, lambda _: passing.PassingRule()),
    (passing.keeps_values, lambda _: passing.PassingRule()),
    (host_calls.is_host_call, host_calls.host_call),
    (host_calls.is_inspection, host_calls.inspection),
)

# ops that propagation and expansion treat themselves, because they hold other ops
CONTROL = frozenset({*CONTROL_FLOW, "manual_computation"})


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    return b.multi(op.name, args, [v.type for v in op.results], op.attrs, op.regions)


def replicated(op: Op) -> Rule:
    """The fallback: whole operands, whole results, on every device."""
    dims = [(None,) * v.type.rank for v in op.operands]
    rule = factored(dims, [(None,) * v.type.rank for v in op.results], (), _expand)
    rule.fallback = True
    return rule


def _make(op: Op, scalars: Scalars) -> Rule:
    if op.name == "custom_call":
        make = next((rule for applies, rule in CUSTOM_CALLS if applies(op)), None)
    else:
        make = TABLE.get(op.name)
    if make is None:
        return replicated(op)
    return (make(op, scalars) if op.name in NEEDS_SCALARS else make(op)) or replicated(op)


class RuleBook:
    """The rules of a program's ops, one per signature. `scalars`: the program's scalar constants, and what is filled with one.
    like: another book for the same program, under other prices: choices may go from one to the other, since their strategies are
    the same."""

    def __init__(self, like: RuleBook | None = None) -> None:
        self.scalars: dict[Value, Any] = {} if like is None else like.scalars
        self._like = like
        self.busy: set[Op] = set() if like is None else like.busy  # in loops, touching much over and over
        self._rules: dict[Any, Rule] = {}
        self._of: dict[Op, Rule] = {}

    def note(self, op: Op) -> None:
        """Keeps what is known of the numbers that an op makes; for each op before those that read it."""
        if op.name == "constant":
            if not op.results[0].type.rank or op.attrs["value"].splat:
                self.scalars[op.results[0]] = op.attrs["value"]
        elif op.name == "broadcast_in_dim" and op.operands[0] in self.scalars:
            self.scalars[op.results[0]] = self.scalars[op.operands[0]]

    def rule(self, op: Op) -> Rule:
        rule = self._of.get(op)
        if rule is None:
            rule = self._of[op] = (
                self._shared(op) if self._like is None else self._afresh(self._like.rule(op))
            )
        return rule

    def _afresh(self, other: Rule) -> Rule:
        rule = self._rules.get(other)
        if rule is None:
            rule = self._rules[other] = other.afresh()
        return rule

    def _shared(self, op: Op) -> Rule:
        key: Any = (
            op.name,
            tuple(op.attrs.items()),
            tuple([v.type for v in op.operands]),
            tuple([v.type for v in op.results]),
        )
        if op.regions:
            key = (*key, self._region_key(op))
        if op.name in moving.JOINS:
            key = (*key, tuple(moving.numbers(op)))
        if op.name == "divide":
            key = (*key, elementwise.is_safe_divisor(op.operands[1], self.scalars))
        key = (key, op in self.busy)
        rule = self._rules.get(key)
        if rule is None:
            rule = self._rules[key] = _make(op, self.scalars)
            if op in self.busy:
                rule.work = rule.work.at_memory_speed()
        return rule

    def _region_key(self, op: Op) -> Any:
        if op.name.endswith("select_and_scatter"):
            return select_scatter.region_key(op)
        if op.name == "chlo.scan":
            return scan.scan_kind(op)
        kind = reducer_kind(op.regions[0])
        inits = op.operands[len(op.operands) // 2 :]
        if op.name in NEEDS_SCALARS:
            if kind is not None:
                return kind, is_identity(kind, inits[0], self.scalars)
            return neutral_init(op.regions[0], inits, self.scalars)
        return kind
