"""Trip counts of while loops, and flops of dots and convolutions."""

from __future__ import annotations

import math
import re

from .text import Computation, Instruction, Module

_KNOWN = re.compile(r'known_trip_count\\?"?\s*[:=]\s*\{\\?"?n\\?"?\s*[:=]\s*\\?"?(\d+)')
_SAME_VALUE = ("copy", "bitcast", "convert", "reshape")
_MIRRORED = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}


def trip_count(module: Module, comp: Computation, loop: Instruction) -> int | None:
    """How often a while loop runs: as XLA noted, else from a counter and its bound; None if neither."""
    m = _KNOWN.search(loop.attrs)
    if m:
        return int(m[1])
    condition = module.computations.get(loop.name_attr("condition"))
    body = module.computations.get(loop.name_attr("body"))
    if condition is None or body is None:
        return None
    test = _View(module, condition).root()
    if test.ins.op != "compare":
        return None
    direction = test.ins.attr("direction") or ""
    counter, bound = test.operand(0), test.operand(1)
    if _constant(counter) is not None:
        counter, bound, direction = bound, counter, _MIRRORED.get(direction, direction)
    limit = _constant(bound)
    if limit is None or counter is None or counter.op != "get-tuple-element":
        return None
    index = int(counter.attr("index") or 0)
    start = _start(comp, loop, index)
    step = _step(module, body, index)
    if start is None or not step:
        return None
    span = limit - start + {"LE": 1, "GE": -1}.get(direction, 0)
    if direction not in ("LT", "LE", "GT", "GE", "NE"):
        return None
    return max(0, -(-span // step)) if step > 0 else max(0, -(span // -step))


class _View:
    """An instruction, seen through the fusion that holds it."""

    def __init__(self, module: Module, comp: Computation, ins: Instruction | None = None):
        self.comp = self.outer = comp
        self.ins = ins or comp.root
        self._module = module
        self._arguments: dict[str, str] = {}

    def root(self) -> _View:
        """Looks into a fusion."""
        fused = (
            self._module.computations.get(self.ins.name_attr("calls")) if self.ins.op == "fusion" else None
        )
        if fused is not None:
            parameters = (i for i in fused.instructions if i.op == "parameter")
            self._arguments = {p.name: self.ins.operands[int(p.argument)] for p in parameters}
            self.comp, self.ins = fused, fused.root
        return self

    def operand(self, index: int) -> Instruction | None:
        ins = _through(self.comp, self.ins.operands[index])
        if ins is not None and ins.name in self._arguments:
            return _through(self.outer, self._arguments[ins.name])
        return ins


def _start(comp: Computation, loop: Instruction, index: int) -> int | None:
    init = _through(comp, loop.operands[0])
    if init is None or init.op != "tuple":
        return None
    return _constant(_through(comp, init.operands[index]))


def _step(module: Module, body: Computation, index: int) -> int | None:
    update = _through(body, body.root.operands[index]) if body.root.op == "tuple" else None
    if update is None:
        return None
    view = _View(module, body, update).root()
    if view.ins.op not in ("add", "subtract"):
        return None
    for i in range(2):
        step = _constant(view.operand(i))
        if step is not None:
            return step if view.ins.op == "add" else -step
    return None


def _through(comp: Computation, name: str) -> Instruction | None:
    ins = comp.by_name.get(name)
    while ins is not None and ins.op in _SAME_VALUE and ins.operands:
        ins = comp.by_name.get(ins.operands[0])
    return ins


def _constant(ins: Instruction | None) -> int | None:
    text = ins.argument.strip() if ins is not None and ins.op == "constant" else ""
    return int(text) if text.lstrip("-").isdigit() else None


def dot_flops(comp: Computation, ins: Instruction) -> int:
    lhs = comp.by_name.get(ins.operands[0])
    if lhs is None:
        return 0
    contracted = (int(d) for d in re.findall(r"\d+", ins.attr("lhs_contracting_dims") or ""))
    return 2 * math.prod(ins.shape[0][1]) * math.prod(lhs.shape[0][1][d] for d in contracted)


def conv_flops(comp: Computation, ins: Instruction) -> int:
    kernel, labels = comp.by_name.get(ins.operands[1]), ins.attr("dim_labels")
    if kernel is None or not labels:
        return 0
    of_kernel = labels.split("_")[1].split("->")[0]
    taps = math.prod(d for label, d in zip(of_kernel, kernel.shape[0][1], strict=True) if label != "o")
    return 2 * math.prod(ins.shape[0][1]) * taps
