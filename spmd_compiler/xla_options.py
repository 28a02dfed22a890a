"""What XLA is told about how to compile a program, beside the program.

XLA for CPUs has two emitters. The newer one compiles each kernel by itself, through MLIR: kernels that read the same are compiled
once, and one that writes over its operand is vectorized. The older one makes a few LLVM modules of all kernels, mostly in half to
four fifths of the time. Which suits a program is told from its ops: the newer one where many are equal, as the slices of an all-to-all
are, where exp, divide and their like weigh against the matrix products, since the older one may compute these one by one,
where large operands of products by vectors are transposed, as the caches of decoding are, where scatters and gathers in loops weigh,
which the older one turns into loops, and where elementwise ops do that stand between products, since these write over what products
made, or are all that there is: they are one kernel then, and share no module with others. Where there are hardly any products among
much else XLA makes few kernels of that, which suit the older one.
Of LLVM's levels the second is enough, and takes nine tenths of the third one's time; but random bits are made a fifth faster by
that, rows scattered in up to a fourth of the time, and by the newer emitter with it a tenth faster the stencils in loops, whose
kernels read blocks with their neighbours' rows beside them. Where products weigh, which LLVM does not compile, the first is enough,
in a sixteenth less time.
XLA of JAX 0.12 has no older emitter any more, and says so; it is told nothing of these, since there the second level rounds
otherwise than `jax.jit` does.

In which order it runs the program is told apart from that (`xla_schedules`), and whether it cuts kernels among threads
(`xla_threads`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from . import xla_threads
from .ir.graph import Module, Op
from .ir.optable import COLLECTIVES, ELEMENTWISE, FEW_SLICES, sends
from .passes.estimate import FREE, PRODUCTS, flops, walk
from .passes.optimizations.xla_kernels import SLOW
from .passes.optimizations.xla_schedules import saves_memory

NEWER = "xla_cpu_use_fusion_emitters"
MODULES = "xla_cpu_parallel_codegen_split_count"
LEVEL = "xla_backend_optimization_level"
SCHEDULER = "xla_cpu_scheduler_type"
BY_RESULTS = "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"
OPTIONS = (NEWER, MODULES, LEVEL, SCHEDULER, xla_threads.DISABLED)
ALIKE = 4  # ops for each different one, from which on equal kernels are many
VALUES, SLOW_VALUES = 1 << 20, 1 << 17  # of elementwise ops in a call, and of slow ones, that weigh nothing
LIGHT, SLOW_LIGHT = 90, 100  # operations of products for each, below which more values weigh
FEW_PRODUCTS = 10  # the same, below which hardly anything is multiplied
MANY_PRODUCTS = 20  # the same, from which on little else is computed
KERNELS = 4  # that are compiled no sooner with less optimization
_BITWISE = {"and", "not", "or", "xor", "shift_left", "shift_right_arithmetic", "shift_right_logical"}
JOINED = 1 << 19  # values that concatenates in loops make, which weigh nothing
ONCE = 4  # operations for each number that a product reads, below which it is one by a vector
READ = 1 << 17  # numbers that such products read in a call, which weigh nothing
PLACES = 64  # that scatters update in a call, and gathers read in loops, which weigh nothing
PLACES_LIGHT = 1 << 11  # operations of products for each, from which on these weigh little
CARRIED = 4  # times more slow ops weigh in loops, where more is written in place


class _Weights(NamedTuple):
    """products: operations of matrix products in a call; read: numbers that products by vectors read, if they are
    batched: XLA transposes these; places: that scatters update, and that gathers read in loops; values: that elementwise
    ops make; slow, bits: of these those of slow ops, and of bitwise ones; joined: that concatenates in loops make; kernels: how many there are, about; repetitive: many of
    them are equal; single: there is but one."""

    products: float
    read: int
    places: int
    values: int
    slow: int
    bits: int
    joined: int
    kernels: int
    repetitive: bool
    single: bool

    @property
    def level(self) -> int:
        bits = self.bits > VALUES and self.products < FEW_PRODUCTS * self.bits
        if bits or self.is_stencil or self.looks_up:
            return 3
        others = self.kernels < KERNELS or self.products < max(1, MANY_PRODUCTS * self.values)
        return 2 if others else 1

    @property
    def is_stencil(self) -> bool:
        return self.joined > JOINED and self.products < FEW_PRODUCTS * self.joined

    @property
    def looks_up(self) -> bool:
        return self.places > PLACES and self.products < PLACES_LIGHT * self.places

    @property
    def suits_older_emitter(self) -> bool:
        computes_slowly = self.slow > SLOW_VALUES and self.products < SLOW_LIGHT * self.slow
        if self.repetitive or self.single or self.is_stencil or self.looks_up or computes_slowly:
            return False
        if self.read > READ:
            return False
        elementwise = self.values > VALUES and self.products < LIGHT * self.values
        return not elementwise or self.products < FEW_PRODUCTS * self.values


def xla_options(module: Module, platform: str | None, devices: Sequence[Any]) -> list[dict[str, Any]]:
    """Options for XLA on a platform, by their names in XLA_FLAGS, in groups; one that lacks any of a group does without the group. So
    does one that is told of any by XLA_FLAGS. `module`: what each of the `devices` runs."""
    if platform != "cpu":
        return []
    groups = [_codegen(_weigh(module))]
    if xla_threads.are_busy(devices):
        groups.append(xla_threads.WHOLE)
    if saves_memory(module.main.body):
        groups.append({SCHEDULER: BY_RESULTS})
    told = os.environ.get("XLA_FLAGS", "")
    return [group for group in groups if not any(name in told for name in group)]


def _codegen(weights: _Weights) -> dict[str, Any]:
    if not weights.suits_older_emitter:
        return {NEWER: True, LEVEL: weights.level}
    return {NEWER: False, LEVEL: weights.level, MODULES: max(2, min(8, os.cpu_count() or 1))}


def _weigh(module: Module) -> _Weights:
    kinds, count, cut, single = set[Any](), 0, 0, True
    products, read, places, values, slow, bits, joined = 0.0, 0, 0, 0, 0, 0, 0
    for op, trips in walk(module.main.body):
        if op.name in ELEMENTWISE:
            made = trips * op.results[0].type.size
            values += made
            if op.name in SLOW:
                slow += made * (CARRIED if trips > 1 else 1)
            bits += made if op.name in _BITWISE else 0
        elif op.name in PRODUCTS:
            operations = flops(op)
            products += trips * operations
            numbers = sum(v.type.size for v in op.operands) if any(op.attrs.get("batch", ())) else 0
            read += trips * numbers if operations < ONCE * numbers else 0
        elif op.name == "scatter" or (op.name == "gather" and trips > 1):
            indices, vectors = op.operands[1].type, op.attrs["index_vector_dim"]
            places += trips * math.prod(n for d, n in enumerate(indices.shape) if d != vectors)
        elif op.name == "concatenate" and trips > 1:
            joined += trips * op.results[0].type.size
        if op.name == "all_to_all":
            cut, single = cut + _slices(op, module), False
        elif op.name not in FREE:
            count, single = count + 1, single and (op.name in ELEMENTWISE or op.name in COLLECTIVES)
            kinds.add((op.name, tuple(op.attrs.items()), tuple([v.type for v in op.operands])))
    repetitive = cut > count or count >= ALIKE * len(kinds)
    return _Weights(products, read, places, values, slow, bits, joined, count, repetitive, single)


def _slices(op: Op, module: Module) -> int:
    """What XLA cuts the operand of an all-to-all into, and compiles apart."""
    slices = module.mesh.axes_size(op.attrs["axes"]) if sends(op) else op.attrs["split_count"]
    return slices if slices > FEW_SLICES else 0
