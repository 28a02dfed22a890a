"""Derivatives and batches of a partitioned program are partitioned programs: the rules of `spmd_call` for JAX's
transformations.

`jvp` gives two programs: the primal one, which also returns what the linear one needs (its residuals), and the linear
one. Partial evaluation then has nothing to split, and the transposed linear program is the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from . import compat
from .errors import UnsupportedError
from .program import Chosen, Program, Request, Wanted, batched, call, call_p


class Linearized(NamedTuple):
    """`primal`: gives the results, then residuals. `linear`: takes those of the primal program's arguments and results
    that `residuals` lists, then the nonzero tangents; gives the tangents of the results in `outs`."""

    primal: Request
    linear: Request
    residuals: tuple[int, ...]
    outs: tuple[int, ...]


def linearize(request: Request, nonzero: tuple[bool, ...]) -> Linearized | None:
    """The two programs for tangents of the arguments that are `nonzero`; None if no result depends on them."""
    table = request.program.derived
    key = ("jvp", nonzero, request)
    if key not in table:
        table[key] = _linearize(request, nonzero)
    return table[key]


def _linearize(request: Request, nonzero: tuple[bool, ...]) -> Linearized | None:
    program = request.program
    n_in, n_out = len(program.ins), len(program.outs)
    smooth = [i for i, s in enumerate(program.outs) if jnp.issubdtype(s.dtype, jnp.inexact)]
    if not smooth:
        return None
    full, move = _with_residuals(request, nonzero, smooth)
    full, sources = _kept_residuals(request, full)
    primal = replace(request, program=full, outs=(*request.outs, *(None,) * (len(full.outs) - n_out)))

    pool: list[Wanted] = [*request.ins, *(_as_chosen(primal, i) for i in range(len(full.outs)))]
    structs = [*program.ins, *full.outs]
    tangents = [_tangent(s) for s, nz in zip(program.ins, nonzero, strict=True) if nz]

    def linear(*args: Any) -> list[Any]:
        return jax.tree.unflatten(move, args[: len(sources)])(*args[len(sources) :])

    line = _trace(request, linear, [*(structs[i] for i in sources), *tangents], "jvp")
    depends = compat.depending_outputs(line.jaxpr, len(sources))
    if not any(depends):
        return None
    line = _outputs(request, line, [i for i, d in enumerate(depends) if d], "jvp")
    outs = tuple(i for i, d in zip(smooth, depends, strict=True) if d)
    moving = [w for w, nz in zip(request.ins, nonzero, strict=True) if nz]
    ins = (*(pool[i] for i in sources), *moving)
    linear_request = replace(request, program=line, ins=ins, outs=tuple(pool[n_in + i] for i in outs))
    return Linearized(primal, linear_request, tuple(sources), outs)


def _with_residuals(request: Request, nonzero: tuple[bool, ...], smooth: list[int]) -> tuple[Program, Any]:
    """The program that also returns what the linear one needs; and the structure of that, a function of tangents."""
    program, made = request.program, list[Any]()

    def both(*primals: Any) -> list[Any]:
        def smooth_part(*xs: Any) -> tuple[list[Any], list[Any]]:
            moving = iter(xs)
            outs = program.run(*[next(moving) if nz else p for p, nz in zip(primals, nonzero, strict=True)])
            return [outs[i] for i in smooth], outs

        moving = [p for p, nz in zip(primals, nonzero, strict=True) if nz]
        _, linear, outs = jax.linearize(smooth_part, *moving, has_aux=True)
        residuals, tree = jax.tree.flatten(linear)
        made[:] = [tree]
        return [*outs, *residuals]

    full = _trace(request, both, program.ins, "fwd")
    return full, made[0]


def _kept_residuals(request: Request, full: Program) -> tuple[Program, list[int]]:
    """The program with each residual once, and without those that are arguments or results already; and where each residual comes
    from, among its arguments and results."""
    n_in, n_out = len(request.program.ins), len(request.program.outs)
    sources: list[int] = []
    kept: list[int] = list(range(n_out))
    first: dict[Any, int] = {}
    for position, source in enumerate(compat.output_sources(full.jaxpr)):
        if position < n_out:
            first.setdefault(source, position)
        elif isinstance(source, int):
            sources.append(source)
        else:
            if source not in first:
                first[source] = len(kept)
                kept.append(position)
            sources.append(n_in + first[source])
    return _outputs(request, full, kept, "fwd"), sources


def _outputs(request: Request, program: Program, kept: Sequence[int], what: str) -> Program:
    """A program that returns some of the results of another one."""
    if len(kept) == len(program.outs):
        return program

    def some(*xs: Any) -> list[Any]:
        outs = program.run(*xs)
        return [outs[i] for i in kept]

    return _trace(request, some, program.ins, what)


def _as_chosen(request: Request, index: int) -> Wanted:
    wanted = request.outs[index]
    return Chosen(request, index) if wanted is None else wanted


def _tangent(struct: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(struct.shape, struct.dtype, weak_type=bool(struct.weak_type))


def _trace(request: Request, function: Callable[..., Any], args: Sequence[Any], what: str) -> Program:
    return Program.trace(function, args, request.mesh, f"{what}_{request.program.name}")


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, request: Request) -> tuple[list[Any], list[Any]]:
    nonzero = tuple(t is not None for t in tangents)
    n_out = len(request.program.outs)
    split = linearize(request, nonzero)
    if split is None:
        return call(request, *primals), [None] * n_out
    results = call(split.primal, *primals)
    pool = [*primals, *results]
    moved = call(split.linear, *(pool[i] for i in split.residuals), *(t for t in tangents if t is not None))
    out_tangents: list[Any] = [None] * n_out
    for i, t in zip(split.outs, moved, strict=True):
        out_tangents[i] = t
    return results[:n_out], out_tangents


def _transpose(cotangents: Sequence[Any], args: Sequence[Any], *, request: Request) -> list[Any]:
    linear = tuple(isinstance(a, jax.ShapeDtypeStruct) for a in args)
    nonzero = tuple(ct is not None for ct in cotangents)
    if not any(nonzero):
        return [None] * len(args)
    table, key = request.program.derived, ("transpose", linear, nonzero, request)
    back = table.get(key)
    if back is None:
        back = table[key] = _transposed(request, linear, nonzero)
    given = [a for a, lin in zip(args, linear, strict=True) if not lin]
    found = iter(call(back, *given, *(ct for ct in cotangents if ct is not None)))
    return [next(found) if lin else None for lin in linear]


def _transposed(request: Request, linear: tuple[bool, ...], nonzero: tuple[bool, ...]) -> Request:
    program = request.program
    n_given = linear.count(False)
    lines = [s for s, lin in zip(program.ins, linear, strict=True) if lin]

    def back(*args: Any) -> list[Any]:
        def line(*xs: Any) -> list[Any]:
            given, moving = iter(args[:n_given]), iter(xs)
            outs = program.run(*[next(moving if lin else given) for lin in linear])
            return [y for y, nz in zip(outs, nonzero, strict=True) if nz]

        return list(jax.linear_transpose(line, *lines)(list(args[n_given:])))

    def pick(values: Sequence[Any], mask: Sequence[bool], keep: bool = True) -> list[Any]:
        return [v for v, m in zip(values, mask, strict=True) if m == keep]

    structs = [*pick(program.ins, linear, False), *pick(program.outs, nonzero)]
    ins = [*pick(request.ins, linear, False), *(_as_chosen(request, i) for i, nz in enumerate(nonzero) if nz)]
    made = _trace(request, back, structs, "transpose")
    return Request(
        made, request.mesh, tuple(ins), tuple(pick(request.ins, linear)), request.options, request.whole
    )


def _batch(
    axis: compat.BatchAxis, args: Sequence[Any], dims: Sequence[int | None], *, request: Request
) -> tuple[list[Any], list[int]]:
    table, key = request.program.derived, ("batch", axis, tuple(dims), request)
    made = table.get(key)
    if made is None:
        made = table[key] = _batched(axis, tuple(dims), request)
    return call(made, *args), [0] * len(request.program.outs)


def _batched(axis: compat.BatchAxis, dims: tuple[int | None, ...], request: Request) -> Request:
    program = request.program
    axes = tuple(a for a in axis.spmd_axes if a in request.mesh)
    mapped = jax.vmap(
        lambda *xs: program.run(*xs), in_axes=dims, out_axes=0, axis_name=axis.name, axis_size=axis.size,
        spmd_axis_name=axis.spmd_axes or None,
    )  # fmt: skip
    structs = [
        s if d is None else jax.ShapeDtypeStruct((*s.shape[:d], axis.size, *s.shape[d:]), s.dtype)
        for s, d in zip(program.ins, dims, strict=True)
    ]
    ins = tuple(batched(w, d, axes) for w, d in zip(request.ins, dims, strict=True))
    outs = tuple(batched(w, 0, axes) for w in request.outs)
    return Request(
        _trace(request, mapped, structs, "vmap"), request.mesh, ins, outs, request.options, request.whole
    )


def _refuse_checks(request: Request) -> None:
    raise UnsupportedError(
        f"jax.experimental.checkify can't look into {request.program.name}, a partitioned program; partition what is checked: "
        "spmd_jit(checkify.checkify(f, errors=…))"
    )


def register_rules() -> None:
    """Tells JAX."""
    compat.register_checks(call_p, _refuse_checks)
    compat.register_jvp(call_p, _jvp)
    compat.register_transpose(call_p, _transpose)
    compat.register_batching(call_p, _batch)
