"""The page of the rules, made from the table."""

from __future__ import annotations

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
here runs replicated, and `explain()` says so.

All elementwise ops shard alike on every dim: """


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
    return "\n".join(lines) + "\n"


def _else(rule: Rule) -> str:
    """Of a rule that is no list of strategies, what it says of itself."""
    return (type(rule).__doc__ or "").partition("\n\n")[0] if type(rule) is not Rule else "replicated"


def _spell(type: object) -> str:
    assert isinstance(type, TensorType)
    return f"{type.dtype}[{','.join(map(str, type.shape))}]"


def _way(strategy: Strategy) -> str:
    return describe(strategy) + (", sends" if strategy.exchange else "")
