"""The one file that touches what JAX does not promise to keep: internals and semi-public modules. JAX 0.10.2 to 0.12."""

from __future__ import annotations

import contextvars
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
from jax.extend import core as jex_core
from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func as func_dialect

Primitive = jex_core.Primitive


def backend_started() -> bool:
    """True once JAX has made its first device."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def shaped_array(shape: tuple[int, ...], dtype: Any) -> Any:
    return jax.core.ShapedArray(shape, dtype)


def def_abstract_eval(primitive: Any, rule: Any) -> None:
    primitive.def_abstract_eval(rule)


def register_function_lowering(primitive: Any, function: Any) -> None:
    """`function(*args, **params)` is traced by JAX in place of the primitive."""
    mlir.register_lowering(primitive, mlir.lower_fun(function, multiple_results=True))


def register_module_lowering(primitive: Any, export: Any) -> None:
    """`export(context, **params)` gives a module whose main takes and returns what the primitive does."""

    def rule(ctx: Any, *args: Any, **params: Any) -> Sequence[Any]:
        module = export(ctx.module_context.context, **params)
        main = next(op for op in module.body.operations if op.sym_name.value == "main")
        types = main.type.results
        name = mlir.merge_mlir_modules(ctx.module_context.module, "spmd_program", module)
        call = func_dialect.CallOp(types, ir.FlatSymbolRefAttr.get(name), list(args))
        return list(call.results)

    mlir.register_lowering(primitive, rule)


def jaxpr_as_fun(jaxpr: Any) -> Any:
    return jex_core.jaxpr_as_fun(jaxpr)


def source_line(eqn: Any) -> str:
    """`file:line` of the user's code that made an equation."""
    from jax._src import source_info_util

    return str(source_info_util.summarize(eqn.source_info))


def sub_jaxprs(eqn: Any) -> list[Any]:
    found: list[Any] = []
    for value in eqn.params.values():
        for x in value if isinstance(value, (tuple, list)) else (value,):
            inner = getattr(x, "jaxpr", x)
            if hasattr(inner, "eqns"):
                found.append(inner)
    return found


_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("spmd_inside", default=False)


@contextmanager
def inside_program() -> Iterator[None]:
    """While a global program is lowered for our importer, not for XLA."""
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def is_inside_program() -> bool:
    return _inside.get()


def consts_as_args(closed: Any) -> Any:
    """The jaxpr with its captured constants as its first arguments."""
    from jax._src.interpreters import partial_eval as pe

    if not closed.consts:
        return closed
    jaxpr = pe.convert_constvars_jaxpr(closed.jaxpr)
    return jex_core.ClosedJaxpr(jaxpr, ())
