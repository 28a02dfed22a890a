"""What XLA is told about how to compile a program, beside the program.

XLA for CPUs has two emitters. The newer one compiles each kernel by itself, through MLIR: kernels that read the same are
compiled once, and one that writes over its operand is vectorized. The older one makes one LLVM module of all kernels, in a half
to nine tenths of the time. Which suits a program is told from its ops: the new one where many are equal, the slices of an
all-to-all above all, and where functions such as exp weigh against the matrix products, since the old one may compute these
one by one. XLA of JAX 0.12 has no older one any more, and says so.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from typing import Any

from .ir.graph import Module, Op
from .ir.optable import CONTROL_FLOW, sends
from .passes.estimate import FREE, flops, walk

XlaOptions = Mapping[str, Any]

NEWER = "xla_cpu_use_fusion_emitters"
ALIKE = 4  # ops for each different one, from which on equal kernels are many
FEW = 2  # slices of an all-to-all that are as well compiled apart
FUNCTIONS = frozenset(
    """atan2 cbrt cosine exponential exponential_minus_one log log_plus_one logistic power rsqrt sine sqrt tan tanh
    chlo.acos chlo.acosh chlo.asin chlo.asinh chlo.atan chlo.atanh chlo.bessel_i1e chlo.cosh chlo.digamma chlo.erf
    chlo.erf_inv chlo.erfc chlo.lgamma chlo.polygamma chlo.sinh chlo.tan chlo.zeta""".split()
)
LIGHT = 400  # operations of products for each value of a function, below which functions weigh
VALUES = 1 << 16  # of functions in a call, that weigh nothing


def xla_options(module: Module, platform: str | None) -> dict[str, Any]:
    """Options for XLA on a platform, by their names in XLA_FLAGS; what an XLA lacks of them it can do without. A choice of
    emitter in XLA_FLAGS is left as it is. `module`: what each device runs."""
    if platform != "cpu" or NEWER in os.environ.get("XLA_FLAGS", "") or not _suits_older_emitter(module):
        return {}
    return {NEWER: False, "xla_cpu_parallel_codegen_split_count": max(2, min(8, os.cpu_count() or 1))}


def _suits_older_emitter(module: Module) -> bool:
    kinds, count, products, values = set[Any](), 0, 0.0, 0
    for op, trips in walk(module.main.body):
        if op.name == "all_to_all" and _slices(op, module) > FEW:
            return False
        if op.name not in FREE and op.name not in CONTROL_FLOW:
            count += 1
            kinds.add((op.name, tuple(op.attrs.items()), tuple([v.type for v in op.operands])))
        if op.name in ("dot_general", "convolution"):
            products += trips * flops(op)
        elif op.name in FUNCTIONS:
            values += trips * op.results[0].type.size
    return count < ALIKE * len(kinds) and (values <= VALUES or products >= LIGHT * values)


def _slices(op: Op, module: Module) -> float:
    """What XLA cuts the operand of an all-to-all into."""
    return module.mesh.axes_size(op.attrs["axes"]) if sends(op) else math.inf
