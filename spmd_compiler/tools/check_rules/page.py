"""The page of the rules, made from the table."""

from __future__ import annotations

from ...ir.graph import Module
from ...ir.mesh import Mesh
from ...ir.optable import ELEMENTWISE
from ...ir.types import TensorType
from ...passes.rules.base import Rule, Strategy
from ...passes.rules.table import TABLE
from .cases import cases
from .judge import describe, rule_of, sensible

HEAD = """# The ops and how they shard

Made by `spmd-check-rules --docs docs/ops.md` from the table of rules. Per op an instance, and over one mesh axis the ways to
run it: where the axis is on each operand and result. A number is a dim, `-` is whole, `+sum` a partial. `sends` tells that
the op itself exchanges something inside (a halo, candidates, partial results), never a whole operand. An op that is not
here runs replicated, and `explain()` says so. Dims that no way shards are at the end, with the reason.

All elementwise ops shard alike on every dim: """

# Ops with dims that no way shards, and why.
WHOLE = {
    "chlo.ragged_dot": "the sizes of groups: where one begins depends on all before it",
    "cholesky": "each number of a matrix depends on all before it",
    "convolution": "the kernel's spatial dims where the image is sharded: every position reads all of it",
    "dynamic_update_slice": "the update: it may fall on any device",
    "gather": "the parts of an index, and indices that no result dim follows",
    "pad": "a dim of which everything is cut off",
    "reduce_window": "a dim with one window",
    "reshape": "a dim that is split or merged so that no block of it stays a block",
    "scatter": "the parts of an index, and windows that may fall on any device",
    "select_and_scatter": "a dim with one window",
    "triangular_solve": "each unknown depends on those before it",
}


def page() -> str:
    lines = [HEAD + ", ".join(f"`{name}`" for name in sorted(ELEMENTWISE) if name in TABLE) + ".", ""]
    lines += ["| op | instance | ways to run it |", "|---|---|---|"]
    for name in sorted(TABLE):
        if name in ELEMENTWISE:
            continue
        best: tuple[int, str] | None = None
        for module in cases(name, 6):
            op = module.main.body.ops[-1]
            rule = rule_of(module, Mesh([("a", 2)]))
            ways = [s for s in rule.strategies[1:] if sensible(s, op)]
            types = ", ".join(_spell(v.type) for v in op.operands)
            results = ", ".join(_spell(v.type) for v in op.results)
            row = f"| `{name}` | {types} → {results} | {'; '.join(map(_way, ways)) or _else(rule)} |"
            if best is None or len(ways) > best[0]:
                best = len(ways), row
        lines.append(best[1] if best else f"| `{name}` | (tested by itself) | |")
    lines += ["", "| op | what stays whole |", "|---|---|"]
    lines += [f"| `{name}` | {reason} |" for name, reason in sorted(WHOLE.items())]
    return "\n".join(lines) + "\n"


def whole_dims(module: Module) -> list[str]:
    """Dims of the last op's operands that no strategy of its rule shards."""
    rule, operands = rule_of(module, Mesh([("a", 2)])), module.main.body.ops[-1].operands
    if type(rule) is not Rule:
        return []
    return [
        f"dim {d} of operand {i}, {_spell(v.type)}"
        for i, v in enumerate(operands)
        for d, n in enumerate(v.type.shape)
        if n > 1 and (i, d) not in rule.by_operand
    ]


def _else(rule: Rule) -> str:
    """Of a rule that is no list of strategies, what it says of itself."""
    return (type(rule).__doc__ or "").partition("\n\n")[0] if type(rule) is not Rule else "replicated"


def _spell(type: object) -> str:
    assert isinstance(type, TensorType)
    return f"{type.dtype}[{','.join(map(str, type.shape))}]"


def _way(strategy: Strategy) -> str:
    return describe(strategy) + (", sends" if strategy.exchange else "")
