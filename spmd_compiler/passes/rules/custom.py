"""Custom calls whose sharding rule their user gives (`ir.factor_text`): the target runs on blocks as it does on whole arrays.

What JAX's `custom_partitioning` calls joins its devices' results itself, and may exchange data on its own."""

from __future__ import annotations

import math

from ...ir.factor_rule import FactorRule, fit_rule
from ...ir.factor_text import parse_rule
from ...ir.graph import Op, Value
from ...ir.types import TensorType, Type
from ..cost import Work, ring_bytes
from ..emit.builder import Builder
from .base import Exchange, R, Rule, Strategy, factored

RULE = "sharding_rule"  # the attribute
UNIT = "spmd.unit"  # our target for functions with a sharding rule
PARTITIONED = "CustomSPMDPartitioning"  # JAX's target for functions that partition themselves


def has_rule(op: Op) -> bool:
    return isinstance(op.attrs.get(RULE), str)


def fitted(op: Op) -> FactorRule:
    """The op's rule for its shapes. Raises ValueError if it doesn't fit them, ParseError if it can't be read."""
    values = [v.type for v in (*op.operands, *op.results)]
    if not all(isinstance(t, TensorType) for t in values):
        raise ValueError("a sharding rule is about arrays; a token has no dims")
    shapes = [t.shape for t in values]
    n = len(op.operands)
    return fit_rule(parse_rule(op.attrs[RULE]), shapes[:n], shapes[n:])


def custom_rule(op: Op) -> Rule:
    rule = fitted(op)
    operands = [rule.cutting(d) for d in rule.operands]
    results = [rule.cutting(d) for d in rule.results]
    # as much as an einsum over the same factors, but at least what it touches
    work = Work.over(op)._replace(flops=2.0 * math.prod(n for n in rule.sizes if n))
    joined, extra = rule.reduced, list[Strategy]()
    even = rule.cut - rule.padded
    whole = set(range(len(rule.sizes))) - rule.cut
    if op.attrs.get("call_target_name") == PARTITIONED:
        for f in rule.cut.intersection([*rule.reduced, *rule.permuted]):
            extra += _own(f, operands, results, rule)
            whole.add(f)
        joined, even = {}, rule.cut  # shardings have blocks of one size
    else:
        whole |= rule.permuted
    return factored(
        operands, results, rule.sizes, _expand, reduced=joined, whole=whole, even=even, extra=extra, work=work
    )


def _own(f: int, operands: list, results: list, rule: FactorRule) -> list[Strategy]:
    """Cutting a factor where the call itself exchanges what that needs."""
    if rule.sizes[f] < 2:
        return []
    lacking = [j for j, dims in enumerate(results) if f not in dims]

    def exchange(shards: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        if f in rule.permuted:
            moved = [t.nbytes for t, dims in zip(ins, operands, strict=True) if f in dims]
        else:
            moved = [ring_bytes("all_reduce", shards, outs[j].nbytes) for j in lacking]
        return sum(moved), len(moved)

    ways: Exchange = exchange
    places = [tuple(d.index(f) if f in d else R for d in values) for values in (operands, results)]
    return [Strategy(places[0], places[1], f, ways)]


def cleaned(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    """The operands with zeros beyond the end of dims: what lies there might not end, or trap."""
    clean: list[Value] = []
    for value, arg in zip(op.operands, args, strict=True):
        assert value.layout is not None
        clean.append(b.masked(arg, value.layout, value.type, range(value.type.rank), 0))
    return clean


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    return b.local(op, cleaned(b, op, args), {k: v for k, v in op.attrs.items() if k != RULE})
