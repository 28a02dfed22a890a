"""MLIR contexts and the parsing of StableHLO text."""

from __future__ import annotations

import re
import threading

from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _jax_mlir_ext
from jaxlib.mlir.dialects import chlo, mhlo, sdy, stablehlo

from ..errors import ParseError

_POSITION = re.compile(r'"[^"]*":(\d+):(\d+)')


USES = 10  # of a context: what modules are made of stays in it, so it must not live for ever
_of_thread = threading.local()


def make_context() -> ir.Context:
    """A context that knows every dialect JAX lowers to: this thread's last one, since making one takes as long as a small module
    does, or a fresh one once that has had its uses."""
    context, used = getattr(_of_thread, "context", (None, USES))
    if context is None or used >= USES:
        context, used = _fresh_context(), 0
    _of_thread.context = context, used + 1
    return context


def _fresh_context() -> ir.Context:
    context = ir.Context()
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    for register in (
        stablehlo.register_dialect,
        chlo.register_dialect,
        sdy.register_dialect,
        mhlo.register_mhlo_dialect,
    ):
        register(context)
    with context:
        context.dialects["func"]  # loads it; those of parsed text are loaded where they appear
    return context


def parse_stablehlo(text: str | bytes, context: ir.Context | None = None) -> ir.Module:
    """Parses a StableHLO module, as text, as MLIR bytecode, or as the portable artifact that `jax.export` writes.

    Raises ParseError, with line and column for malformed text."""
    context = context or make_context()
    if isinstance(text, bytes):
        try:
            return stablehlo.deserialize_portable_artifact(context, text)
        except (ValueError, RuntimeError):
            pass  # bytecode of StableHLO itself, which the parser reads, or its errors say what it is instead
    try:
        return ir.Module.parse(text, context)
    except ir.MLIRError as error:
        diagnostics = error.error_diagnostics
        message = diagnostics[0].message if diagnostics else str(error)
        found = _POSITION.search(str(diagnostics[0].location) if diagnostics else str(error))
        line, column = (int(found[1]), int(found[2])) if found else (0, 0)
        raise ParseError(f"StableHLO text, line {line}, column {column}: {message}", line, column) from None
