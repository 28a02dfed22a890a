"""Per-device programs in the StableHLO reference interpreter: no XLA, no devices, real collectives."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
import pytest
from jaxlib.mlir import ir
from jaxlib.mlir._mlir_libs import _stablehlo
from jaxlib.mlir.dialects import func

from spmd_compiler.ir.context import make_context
from spmd_compiler.ir.exporter import export_module
from spmd_compiler.ir.graph import Module

CORES = len(os.sched_getaffinity(0))
needs_cores = pytest.mark.skipif(CORES < 2, reason="the interpreter needs a core per device")


def evaluate(module: Module, arguments: Sequence[Sequence[np.ndarray]]) -> list[list[np.ndarray]]:
    """The results of `main` on every device, from its arguments on every device; at most as many devices as cores."""
    context = make_context()
    with context, ir.Location.unknown():
        _stablehlo.register_interpreter_dialect(context)
        out = export_module(module, context=context, groups="dense")
        device = out.body.operations[0]
        device.attributes["sym_name"] = ir.StringAttr.get("device")
        kind = ir.FunctionType(ir.TypeAttr(device.attributes["function_type"]).value)
        n = len(arguments)
        inputs, outputs = list(kind.inputs) * n, list(kind.results) * n
        with ir.InsertionPoint(out.body):
            main = func.FuncOp("main", (inputs, outputs))
        with ir.InsertionPoint(main.add_entry_block()):
            programs = ir.ArrayAttr.get([ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get("device")] * n)])
            parallel = ir.Operation.create(
                "interpreter.run_parallel", outputs, list(main.arguments), {"programs": programs}
            )
            func.ReturnOp(list(parallel.results))
        flat = [np.array(a, order="C") for row in arguments for a in row]
        data = [ir.DenseElementsAttr.get(a, shape=a.shape) for a in flat]
        results = [np.array(r) for r in _stablehlo.eval_module(out, data)]
    width = len(kind.results)
    return [results[i * width : (i + 1) * width] for i in range(n)]
