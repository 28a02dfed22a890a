"""Sharding rules that users give for what the compiler can't look into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jax.extend.core import Primitive

from .errors import ArgumentError, LayoutError
from .ir.factor_text import RuleText, parse_rule, print_rule
from .ir.layout import PARTIAL_KINDS
from .primitive_rules import register_primitive

_targets: dict[str, str] = {}


def register_sharding_rule(
    target: str | Primitive,
    rule: str,
    *,
    reduction: str | Mapping[str, str] | None = None,
    reduction_factors: Sequence[str] = (),
    need_replication_factors: Sequence[str] = (),
    permutation_factors: Sequence[str] = (),
    **factor_sizes: int,
) -> None:
    """Says how custom calls of `target` (such as `jax.ffi.ffi_call` makes) may be partitioned, or what a primitive of
    yours stands for; a later rule replaces an earlier one.

    `rule` names the factors of each operand's and result's dims, like an einsum, in the notation of JAX's
    `custom_partitioning`: `"b i, i o -> b o"`, `"... (g h) -> ... g"`. Sharding a factor shards every dim that has it,
    and the target then runs on each device's blocks as it does on whole arrays: no attribute of the call, no
    parameter of the primitive may depend on the size of a factor that can be sharded. Blocks that reach beyond the
    end of a dim have zeros there. Kernels of linear algebra that JAX itself calls keep the compiler's rule.

    `reduction`: how what the devices make of their blocks is joined for results that lack the sharded factor: "sum",
    "max", "min", "mul", "and", "or", "xor"; one for all such factors, or one for each by name. `reduction_factors`:
    JAX's way to list them; they sum unless `reduction` says else. `need_replication_factors` and
    `permutation_factors` are never sharded, nor is any other factor that a result lacks. `factor_sizes`: sizes of
    factors that have no dim of their own.

    Raises ParseError for text that is no rule, LayoutError for factors that it doesn't have.
    """
    text = rule_text(
        rule, reduction, reduction_factors, need_replication_factors, permutation_factors, factor_sizes
    )
    if isinstance(target, str):
        _targets[target] = text
    else:
        register_primitive(target, text)


def target_rules() -> Mapping[str, str]:
    """The registered rules, by custom call target."""
    return _targets


def rule_text(
    rule: str,
    reduction: str | Mapping[str, str] | None,
    reduction_factors: Sequence[str],
    need_replication_factors: Sequence[str],
    permutation_factors: Sequence[str],
    factor_sizes: Mapping[str, int],
) -> str:
    """One text that says it all. Raises ParseError, LayoutError or ArgumentError."""
    if not isinstance(rule, str):
        raise ArgumentError(f"a sharding rule is text like 'b i, i o -> b o', not {rule!r}")
    parsed = parse_rule(rule)
    fixed = {*need_replication_factors, *permutation_factors, *parsed.whole, *parsed.permuted}
    kinds = _kinds(parsed, reduction, reduction_factors, fixed)
    named = {*kinds, *need_replication_factors, *permutation_factors, *factor_sizes}
    if unknown := sorted(named - parsed.names):
        raise LayoutError(f"sharding rule {rule!r} has no factor {', '.join(unknown)}")
    for factor, kind in kinds.items():
        if kind not in PARTIAL_KINDS:
            raise LayoutError(
                f"sharding rule {rule!r}: {kind!r} is no reduction; there are {', '.join(PARTIAL_KINDS)}"
            )
        if factor in fixed:
            raise LayoutError(f"sharding rule {rule!r}: {factor} can't be reduced and never be sharded")
    return print_rule(
        parsed._replace(
            sizes={**parsed.sizes, **factor_sizes},
            reduced={**parsed.reduced, **kinds},
            whole=parsed.whole.union(need_replication_factors),
            permuted=parsed.permuted.union(permutation_factors),
        )
    )


def _kinds(
    rule: RuleText,
    reduction: str | Mapping[str, str] | None,
    factors: Sequence[str],
    fixed: set[str],
) -> dict[str, str]:
    """The reduction of each factor that has one."""
    if reduction is not None and not isinstance(reduction, str):
        return {**dict.fromkeys(factors, "sum"), **reduction}
    if reduction is None or factors:
        return dict.fromkeys(factors, reduction or "sum")
    missing = {f for v in rule.operands for f in v.factors if any(f not in r.factors for r in rule.results)}
    return dict.fromkeys(sorted(missing - fixed), reduction)
