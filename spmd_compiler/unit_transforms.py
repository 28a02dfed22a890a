"""Derivatives and batches of functions with sharding rules are functions with sharding rules.

What is computed block by block has derivatives that are: those of a block's results depend on that block alone. So the
tangents' rule is the function's own, with the tangents beside the arguments. The transpose takes cotangents where the
function gives results, and gives some where it takes arguments: one for an argument that lacks a factor is the sum of what
the blocks along that factor give.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from . import compat
from .ir.factor_rule import fit_rule
from .ir.factor_text import RuleText, ValueText, parse_rule, print_rule
from .units import Run, Unit, bind, struct_key, unit_p


def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, unit: Unit, outs: tuple[Any, ...]
) -> tuple[list[Any], list[Any]]:
    results = bind(unit, primals, outs)
    smooth = tuple(i for i, s in enumerate(outs) if jnp.issubdtype(s.dtype, jnp.inexact))
    moving = tuple(i for i, t in enumerate(tangents) if t is not None)
    moved: list[Any] = [None] * len(outs)
    if smooth and moving:
        key = ("tangent", moving, smooth, struct_key(primals))
        if key not in unit.derived:
            unit.derived[key] = _tangent(unit, moving, smooth, primals, outs)
        args = [*primals, *(tangents[i] for i in moving)]
        made = bind(unit.derived[key], args, [outs[i] for i in smooth])
        for i, t in zip(smooth, made, strict=True):
            moved[i] = t
    return results, moved


def _tangent(
    unit: Unit, moving: tuple[int, ...], smooth: tuple[int, ...], primals: Sequence[Any], outs: Sequence[Any]
) -> Unit:
    """Takes the arguments, then the tangents of those in `moving`; gives the tangents of the results in `smooth`."""
    n = len(primals)

    def run_for(results: tuple[Any, ...]) -> Run:
        function = unit.run_for(results)

        def run(*xs: Any) -> Sequence[Any]:
            def smooth_part(*ms: Any) -> list[Any]:
                given = list(xs[:n])
                for i, x in zip(moving, ms, strict=True):
                    given[i] = x
                made = function(*given)
                return [made[i] for i in smooth]

            return jax.jvp(smooth_part, [xs[i] for i in moving], list(xs[n:]))[1]

        return run

    rule = parse_rule(unit.rule)
    fixed = _fixed(rule, primals, outs)
    operands = (*rule.operands, *(rule.operands[i] for i in moving))
    sums = {f: "sum" for f, kind in rule.reduced.items() if kind == "sum"}
    text = _rule(operands, tuple(rule.results[i] for i in smooth), rule.sizes, sums, fixed)
    return Unit(f"{unit.name}.tangent", run_for, text)


def _transpose(
    cotangents: Sequence[Any], args: Sequence[Any], *, unit: Unit, outs: tuple[Any, ...]
) -> list[Any]:
    linear = tuple(i for i, a in enumerate(args) if isinstance(a, jax.ShapeDtypeStruct))
    cts = [jnp.zeros(s.shape, s.dtype) if ct is None else ct for ct, s in zip(cotangents, outs, strict=True)]
    key = ("transpose", linear, struct_key(args))
    if key not in unit.derived:
        unit.derived[key] = _transposed(unit, linear, args, outs)
    given = [a for i, a in enumerate(args) if i not in linear]
    made = iter(bind(unit.derived[key], [*given, *cts], [args[i] for i in linear]))
    return [next(made) if i in linear else None for i in range(len(args))]


def _transposed(unit: Unit, linear: tuple[int, ...], args: Sequence[Any], outs: Sequence[Any]) -> Unit:
    """Takes the arguments that are not `linear`, then cotangents of all results; gives those of the linear ones."""
    n = len(args)
    known = [i for i in range(n) if i not in linear]

    def run_for(results: tuple[Any, ...]) -> Run:
        def run(*xs: Any) -> Sequence[Any]:
            given, cts = xs[: len(known)], list(xs[len(known) :])
            function = unit.run_for(cts)

            def line(*ms: Any) -> list[Any]:
                whole = dict(zip(known, given, strict=True)) | dict(zip(linear, ms, strict=True))
                return list(function(*(whole[i] for i in range(n))))

            there = [jnp.zeros(s.shape, s.dtype) for s in results]  # only their types matter
            there = compat.vary_alike([*cts, *there])[len(cts) :]
            return jax.linear_transpose(line, *there)(cts)

        return run

    rule = parse_rule(unit.rule)
    fixed = _fixed(rule, args, outs)
    operands = (*(rule.operands[i] for i in known), *rule.results)
    sums = dict.fromkeys(sorted(rule.names - fixed), "sum")
    text = _rule(operands, tuple(rule.operands[i] for i in linear), rule.sizes, sums, fixed)
    return Unit(f"{unit.name}.transpose", run_for, text)


def _batch(
    axis: compat.BatchAxis,
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    unit: Unit,
    outs: tuple[Any, ...],
) -> tuple[list[Any], list[int]]:
    mapped = tuple(d is not None for d in dims)
    given = [x if d is None else jnp.moveaxis(x, d, -1) for x, d in zip(args, dims, strict=True)]
    key = ("batch", mapped, axis.name, axis.size)
    if key not in unit.derived:
        unit.derived[key] = _batched(unit, mapped, axis)
    whole = [jax.ShapeDtypeStruct((*s.shape, axis.size), s.dtype) for s in outs]
    return bind(unit.derived[key], given, whole), [len(s.shape) for s in outs]


def _batched(unit: Unit, mapped: tuple[bool, ...], axis: compat.BatchAxis) -> Unit:
    """The batch is the last dim of arguments that are `mapped`, and of all results."""

    def run_for(results: tuple[Any, ...]) -> Run:
        function = unit.run_for([jax.ShapeDtypeStruct(s.shape[:-1], s.dtype) for s in results])
        in_axes = tuple(-1 if m else None for m in mapped)
        return jax.vmap(lambda *xs: list(function(*xs)), in_axes=in_axes, out_axes=-1, axis_name=axis.name)

    rule = parse_rule(unit.rule)
    name = next(f for i in range(len(rule.names) + 1) if (f := f"batch{i or ''}") not in rule.names)

    def longer(text: ValueText) -> ValueText:
        return text._replace(dims=(*text.dims, (name,)))

    return Unit(
        f"{unit.name}.vmap",
        run_for,
        print_rule(
            rule._replace(
                operands=tuple(longer(t) if m else t for t, m in zip(rule.operands, mapped, strict=True)),
                results=tuple(map(longer, rule.results)),
            )
        ),
    )


def _fixed(rule: RuleText, operands: Sequence[Any], results: Sequence[Any]) -> frozenset[str]:
    """The factors that derivatives can't be cut along: those that the function can't, and those of other reductions
    than sums, of whose blocks' results only some count."""
    fitted = fit_rule(rule, [tuple(x.shape) for x in operands], [tuple(x.shape) for x in results])
    uncut = {name for f, name in enumerate(fitted.names) if f not in fitted.cut - fitted.permuted}
    return frozenset(uncut | {f for f, kind in rule.reduced.items() if kind != "sum"})


def _rule(
    operands: tuple[ValueText, ...],
    results: tuple[ValueText, ...],
    sizes: dict[str, int],
    sums: dict[str, str],
    fixed: frozenset[str],
) -> str:
    """The text of a rule with no more than the factors of these values."""
    bare = RuleText(operands, results, {}, {}, frozenset(), frozenset())
    return print_rule(
        bare._replace(
            sizes={f: n for f, n in sizes.items() if f in bare.names},
            reduced={f: kind for f, kind in sums.items() if f in bare.names - fixed},
            whole=fixed & bare.names,
        )
    )


def register_unit_rules() -> None:
    """Tells JAX."""
    compat.register_jvp(unit_p, _jvp)
    compat.register_transpose(unit_p, _transpose)
    compat.register_batching(unit_p, _batch)
