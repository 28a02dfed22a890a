"""Traffic, memory and flops of a partitioned program, read from its optimized HLO.

Bytes are those that the busiest device sends under the ring model; n is the group size, B the bytes of the
per-device operand:

    all-reduce          2(n-1)/n * B
    all-gather            (n-1) * B          (the result has n * B)
    reduce-scatter      (n-1)/n * B
    all-to-all          (n-1)/n * B          B is the sum of the operands
    ragged-all-to-all   (n-1)/n * B          an upper bound
    collective-permute  B                    if any pair moves; `bytes_avg` has the mean over devices
    collective-broadcast, send  B

An instruction counts as often as the while loops around it run: the known_trip_count of the backend config,
else what the condition says, else `default_trip` (such loops are listed in `unknown_trips`). Of a conditional
the branch that sends most counts.

What XLA for TPUs makes of some reduce-scatters, a fusion that it calls all-reduce-scatter, counts as one.

`rs_bytes` is the same total with an all-reduce whose every use is a slice to 1/n of it charged as the
reduce-scatter that XLA makes of it on GPU and TPU; on CPU XLA has no such pass.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from typing import Any

from .groups import group_axes, parse_groups
from .loops import conv_flops, dot_flops, trip_count
from .text import Computation, Instruction, Leaf, Module, parse_shape, shape_bytes

KINDS = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "ragged-all-to-all",
    "collective-permute",
    "collective-broadcast",
    "send",
)
_LAYOUT_OPS = ("get-tuple-element", "bitcast", "copy", "reshape", "transpose", "convert")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")
_OP_NAME = re.compile(r'op_name="([^"]*)"')

Record = dict[str, Any]
Mesh = list[tuple[str, int]]


def analyze(
    text: str, num_devices: int | None = None, default_trip: int = 1, mesh: Mesh | None = None
) -> Record:
    """What the program of an HLO text sends and computes; `mesh` names the axes that groups span."""
    walk = _Walk(Module(text), num_devices, default_trip, mesh)
    found = walk.visit(walk.module.entry, 1, 0)
    ops = [op for op in found.ops if op["bytes"] > 0 or op["n"] > 1]
    by_kind: dict[str, Record] = {}
    for op in ops:
        kind = by_kind.setdefault(op["kind"], {"count": 0, "executed": 0, "bytes": 0.0})
        kind["count"] += 1
        kind["executed"] += op["mult"]
        kind["bytes"] += op["bytes"] * op["mult"]
    return {
        "num_devices": walk.devices,
        "by_kind": by_kind,
        "count": len(ops),
        "executed": sum(op["mult"] for op in ops),
        "bytes": sum(op["bytes"] * op["mult"] for op in ops),
        "rs_bytes": sum((op["bytes"] - op["rs_credit"]) * op["mult"] for op in ops),
        "bytes_avg": sum(op["bytes_avg"] * op["mult"] for op in ops),
        "loop_bytes": sum(op["bytes"] * op["mult"] for op in ops if op["depth"]),
        "dot_flops": found.flops,
        "unknown_trips": walk.unknown_trips,
        "conditional": walk.conditionals,
        "custom_calls": dict(walk.custom_calls),
        "ops": ops,
    }


def report(compiled: Any, mesh: Mesh | None = None) -> Record:
    """`analyze` of a compiled program, with its `memory` in bytes."""
    counted = analyze(compiled.as_text(), mesh=mesh)
    counted["memory"] = memory(compiled)
    return counted


def memory(compiled: Any) -> dict[str, int]:
    """XLA's memory analysis; {} where a backend has none."""
    stats = compiled.memory_analysis()
    if stats is None:
        return {}
    sizes = {
        "temp": stats.temp_size_in_bytes,
        "args": stats.argument_size_in_bytes,
        "output": stats.output_size_in_bytes,
        "alias": stats.alias_size_in_bytes,
    }
    peak = getattr(stats, "peak_memory_in_bytes", None)
    return sizes if peak is None else {**sizes, "peak": peak}


class _Found:
    def __init__(self) -> None:
        self.ops: list[Record] = []
        self.flops = 0.0

    @property
    def cost(self) -> tuple[float, float]:
        return sum(op["bytes"] * op["mult"] for op in self.ops), self.flops

    def add(self, other: _Found) -> None:
        self.ops += other.ops
        self.flops += other.flops


class _Walk:
    def __init__(self, module: Module, devices: int | None, default_trip: int, mesh: Mesh | None):
        self.module = module
        self.devices = devices or module.devices
        self.unknown_trips: list[str] = []
        self.conditionals: list[Record] = []
        self.custom_calls: dict[str, int] = defaultdict(int)
        self._default_trip = default_trip
        self._mesh = mesh
        # A TPU async collective is repeated in the fusions that start it, carry it and end it; only the copy
        # that feeds AsyncCollectiveStart counts.
        self._tpu_async = "AsyncCollectiveStart" in module.text

    def visit(self, name: str, mult: int, depth: int, fused: bool = False) -> _Found:
        found = _Found()
        comp = self.module.computations.get(name)
        for ins in comp.instructions if comp else ():
            assert comp is not None
            op = ins.op
            kind = op.removesuffix("-start")
            if kind in KINDS:
                if not (self._tpu_async and fused and self._repeated(comp, ins)):
                    found.ops += self._record(comp, ins, kind, mult, depth)
            elif op == "dot":
                found.flops += mult * dot_flops(comp, ins)
            elif op == "convolution":
                found.flops += mult * conv_flops(comp, ins)
            elif op == "while":
                trips = trip_count(self.module, comp, ins)
                if trips is None:
                    self.unknown_trips.append(ins.name)
                    trips = self._default_trip
                found.add(self.visit(ins.name_attr("body"), mult * trips, depth + 1))
                found.add(self.visit(ins.name_attr("condition"), mult * (trips + 1), depth + 1))
            elif op == "conditional":
                found.add(self._conditional(ins, mult, depth))
            elif op in ("fusion", "async-start"):
                found.add(self.visit(ins.name_attr("calls"), mult, depth, fused or op == "fusion"))
            elif op == "call":
                found.add(self.visit(ins.name_attr("to_apply"), mult, depth))
            elif op == "custom-call":
                self.custom_calls[ins.name_attr("custom_call_target")] += mult
                for called in ins.names_attr("called_computations"):
                    found.add(self.visit(called, mult, depth))
        return found

    def _repeated(self, comp: Computation, ins: Instruction) -> bool:
        if "chain_id" not in (ins.attr("frontend_attributes") or ""):
            return False
        users = comp.users.get(ins.name, [])
        return not any("AsyncCollectiveStart" in (u.attr("custom_call_target") or "") for u, _ in users)

    def _conditional(self, ins: Instruction, mult: int, depth: int) -> _Found:
        branches = ins.names_attr("branch_computations") or [
            ins.name_attr("true_computation"),
            ins.name_attr("false_computation"),
        ]
        found = [self.visit(branch, mult, depth) for branch in branches]
        if any(f.ops for f in found):
            bytes_ = [f.cost[0] for f in found]
            self.conditionals.append({"conditional": ins.name, "branch_bytes": bytes_})
        return max(found, key=lambda f: f.cost)

    def _record(self, comp: Computation, ins: Instruction, kind: str, mult: int, depth: int) -> list[Record]:
        if kind == "send" and ins.attr("is_host_transfer") == "true":
            return []
        if comp.name.startswith("all-reduce-scatter"):
            kind = "reduce-scatter"
        shapes = [comp.by_name[o].shape for o in ins.operands if o in comp.by_name]
        if not shapes:  # some printers write operand types inline
            shapes = [[leaf] for leaf in parse_shape(ins.argument)]
        # An in-place permute is (input, output, indices, indices).
        first_only = kind in ("send", "ragged-all-to-all") or (
            kind == "collective-permute" and len(shapes) == 4 and not ins.op.endswith("-start")
        )
        leaves = shapes[0] if first_only else [leaf for shape in shapes for leaf in shape]
        size = shape_bytes(leaves)
        axes = None
        if kind in ("collective-permute", "send"):
            n, sent, average = self._transfers(ins, kind, size)
        else:
            groups = parse_groups(ins.attrs, self.devices)
            n = max(len(g) for g in groups)
            sent = average = _ring_bytes(kind, n, size)
            axes = group_axes(groups, self._mesh) if self._mesh else None
        name = _OP_NAME.search(ins.attrs)
        record = {
            "kind": kind,
            "name": ins.name,
            "mult": mult,
            "depth": depth,
            "n": n,
            "operand_bytes": size,
            "bytes": sent,
            "bytes_avg": average,
            "shape": ins.shape_text[:200],
            "axes": axes,
            "op_name": name[1] if name else "",
            "rs_credit": 0.0,
        }
        if kind == "all-reduce" and n > 1:
            record["rs_credit"] = (n - 1) / n * self._scattered_bytes(comp, ins, leaves, len(shapes), n)
        return [record]

    def _transfers(self, ins: Instruction, kind: str, size: int) -> tuple[int, float, float]:
        text = ins.attr("source_target_pairs")
        if kind == "send" and not text:
            return 1, size, size
        moved = [(s, t) for s, t in _PAIR.findall(text or "") if s != t]
        fan: dict[str, int] = defaultdict(int)
        for source, _ in moved:
            fan[source] += 1
        sent = size * max(fan.values(), default=0)
        return (2 if moved else 1), sent, size * len(moved) / self.devices

    def _scattered_bytes(
        self, comp: Computation, ins: Instruction, leaves: list[Leaf], operands: int, n: int
    ) -> float:
        """Bytes of an all-reduce that could be a reduce-scatter."""
        elements = sum(math.prod(dims) for _, dims in leaves)
        if operands == 1:
            return shape_bytes(leaves) if self._only_sliced(comp, ins.name, n, elements) else 0.0
        parts = [u for u, _ in comp.users.get(ins.name, []) if u.op == "get-tuple-element"]
        return sum(
            shape_bytes(u.shape)
            for u in parts
            if self._only_sliced(comp, u.name, n, math.prod(u.shape[0][1]))
        )

    def _only_sliced(self, comp: Computation, name: str, n: int, elements: int, depth: int = 0) -> bool:
        """True if every use, through layout ops and fusions, is a dynamic-slice to at most elements / n."""
        users = comp.users.get(name, [])
        if not users or depth > 12 or comp.by_name[name].root:
            return False
        for user, position in users:
            if user.op == "dynamic-slice" and position == 0:
                if math.prod(user.shape[0][1]) * n > elements:
                    return False
            elif user.op in _LAYOUT_OPS:
                part = user.op == "get-tuple-element" and user.shape
                size = math.prod(user.shape[0][1]) if part else elements
                if not self._only_sliced(comp, user.name, n, size, depth + 1):
                    return False
            elif user.op == "fusion":
                inner = self.module.computations.get(user.name_attr("calls"))
                parameter = inner.parameter(position) if inner else None
                if inner is None or parameter is None:
                    return False
                if not self._only_sliced(inner, parameter, n, elements, depth + 1):
                    return False
            else:
                return False
        return True


def _ring_bytes(kind: str, n: int, size: int) -> float:
    if kind == "all-reduce":
        return 2 * (n - 1) / n * size
    if kind == "all-gather":
        return (n - 1) * size
    if kind in ("reduce-scatter", "all-to-all", "ragged-all-to-all"):
        return (n - 1) / n * size
    return size if n > 1 else 0
