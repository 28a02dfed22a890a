"""Estimates of a per-device program: operations, bytes touched, memory in use."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Container, Iterable, Iterator

from ..ir.graph import Block, Module, Op, Value
from ..ir.layout import local_type
from ..ir.memory_kinds import host_values
from ..ir.mesh import Mesh
from ..ir.optable import CONTROL_FLOW, ELEMENTWISE, SLICES, collective_kind, sends
from ..ir.trips import trip_count
from ..ir.types import TensorType, Type

TypeOf = Callable[[Value], Type]
_NOTHING = TensorType((0,), "i8")

PRODUCTS = ("dot_general", "convolution")
# what XLA does without touching memory
FREE = {
    "constant",
    "reshape",
    "while",
    "case",
    "if",
    "iota",
    "axis_index",
    "optimization_barrier",
    "broadcast_in_dim",
}
# how many of an op's operands are made its results in place; None is all
_IN_PLACE = {"dynamic_update_slice": 1, "optimization_barrier": None, "while": None}
# what XLA computes where it is read, instead of keeping it: for each reader; for one; and the readers for which it does
_AGAIN = frozenset({"broadcast_in_dim", "constant", "convert", "iota", "reshape"})
_FUSED = _AGAIN.union(ELEMENTWISE, ("dynamic_slice", "pad", "slice"))
_FUSING = _FUSED | {"concatenate", "dynamic_update_slice", "reduce", "transpose"}


def walk(block: Block, trips: int = 1) -> Iterator[tuple[Op, int]]:
    """Every op that runs, with how often it does; loops of unknown length count once, reducers not at all."""
    for op in block.ops:
        yield op, trips
        if op.name == "while":
            for region in op.regions:
                yield from walk(region, trips * (trip_count(op) or 1))
        elif op.name in ("case", "if"):
            for region in op.regions:
                yield from walk(region, trips)


def own_type(value: Value) -> Type:
    return value.type


def blocks_on(mesh: Mesh) -> TypeOf:
    """The type of a device's block of a value that has a layout."""
    return lambda value: local_type(value.type, value.layout, mesh) if value.layout else value.type


def without(values: Container[Value]) -> TypeOf:
    """The values' types, but of nothing for some, which lie elsewhere."""
    return lambda value: _NOTHING if value in values else value.type


def on_device(module: Module) -> TypeOf:
    """The type of what a device's own memory has of a value."""
    return without({*host_values(module)})


def flops(op: Op, type_of: TypeOf = own_type) -> float:
    """Floating point operations of one op. type_of: what a device has of a value."""
    result = type_of(op.results[0]) if op.results else None
    if not isinstance(result, TensorType):
        return 0.0
    if op.name == "dot_general":
        left = type_of(op.operands[0]).shape
        return 2.0 * result.size * math.prod(left[d] for d in op.attrs["contract"][0])
    if op.name == "convolution":
        kernel = type_of(op.operands[1]).shape
        return (
            2.0
            * result.size
            * math.prod(kernel)
            / max(1, kernel[op.attrs["kernel_output_feature_dimension"]])
        )
    if op.name in ELEMENTWISE:
        return float(result.size)
    if op.name in ("reduce", "reduce_window", "scatter"):
        return float(type_of(op.operands[0]).size)
    return 0.0


def product_flops(block: Block, type_of: TypeOf = own_type) -> float:
    """Floating point operations of all matrix products and convolutions, loops multiplied."""
    return sum(trips * flops(op, type_of) for op, trips in walk(block) if op.name in PRODUCTS)


def arithmetic(op: Op) -> str:
    """The element type that an op computes with: products of small floats run at their speed, in whatever type they are
    summed."""
    return (op.operands if op.name in PRODUCTS else op.results)[0].type.dtype


def touched(op: Op) -> int:
    """Bytes of memory that one op reads and writes; what slices leave as it is they don't touch."""
    if op.name in SLICES:
        return 2 * op.results[0].type.nbytes
    if op.name == "dynamic_update_slice":
        return 2 * op.operands[1].type.nbytes
    return sum(v.type.nbytes for v in (*op.operands, *op.results))


def work(module: Module) -> tuple[Counter[str], float]:
    """(operations by element type, bytes that ops read and write) of one call, on one device."""
    operations: Counter[str] = Counter()
    bytes_touched = 0.0
    for op, trips in walk(module.main.body):
        if count := flops(op):
            operations[arithmetic(op)] += int(count * trips)
        if op.name not in FREE and not collective_kind(op):
            bytes_touched += trips * touched(op)
    return operations, bytes_touched


def reads(op: Op) -> list[Value]:
    """The values that an op reads, those in its regions too."""
    if not op.regions:
        return [*op.operands]
    return [*op.operands, *(v for region in op.regions for v in read_in(region))]


def read_in(block: Block) -> list[Value]:
    """The values that a block reads, those that it returns too."""
    return [*(v for op in block.ops for v in reads(op)), *block.returns]


def readers(block: Block) -> dict[Value, list[Op]]:
    """Per value the ops of a block that read it, in the order in which they are written."""
    found: dict[Value, list[Op]] = {}
    for op in block.ops:
        for v in dict.fromkeys(reads(op)):
            found.setdefault(v, []).append(op)
    return found


def last_reads(block: Block) -> dict[Value, int]:
    """The position of the op that reads a value last; behind all ops if the block returns it."""
    last = {v: i for i, op in enumerate(block.ops) for v in reads(op)}
    return last | dict.fromkeys(block.returns, len(block.ops))


def peak_bytes(block: Block, donated: set[Value], type_of: TypeOf = own_type) -> int:
    """The most bytes that are live at once: arguments always, unless donated; other values from their definition to
    their last use. What a loop carries, an update of a slice, or a barrier, is made in place if nothing reads its operand
    later; what fuses with the one op that reads it takes none. It is about what XLA for CPUs allocates. type_of: what a device
    has of a value."""
    return max((sum(type_of(v).nbytes for v in block.args), *live_bytes(block, donated, type_of)))


def live_bytes(block: Block, donated: set[Value], type_of: TypeOf = own_type) -> list[int]:
    """The bytes that are live while each op runs; see `peak_bytes`."""
    stored = stored_values(block)
    last: dict[Value, int] = {}
    for i, op in enumerate(block.ops):
        if not is_fused(op, stored):
            for v in reads(op):
                for s in stored.get(v, (v,)):
                    last[s] = i
    kept = {*held(block.returns, stored), *(v for v in block.args if v not in donated)}
    last |= dict.fromkeys(kept, len(block.ops))
    ends: dict[int, list[Value]] = {}
    for v, i in last.items():
        ends.setdefault(i, []).append(v)
    live = sum(type_of(v).nbytes for v in block.args)
    known = set(block.args)
    during: list[int] = []
    for i, op in enumerate(block.ops):
        inside = inner_bytes(op, type_of)
        made = [v for v in op.results if v not in stored]
        dying, reused = [v for v in ends.get(i, ()) if v in known], 0
        if op.name in _IN_PLACE:
            pairs = zip(op.operands[: _IN_PLACE[op.name]], op.results, strict=False)
            passed_on = {v for v, result in pairs if result not in stored}
            reused = sum(type_of(v).nbytes for v in dying if v in passed_on)
        live += sum(type_of(v).nbytes for v in made)
        known.update(made)
        during.append(live - reused + inside)
        live -= sum(type_of(v).nbytes for v in (*dying, *(v for v in made if v not in last)))
    return during


def _fuses(op: Op, names: frozenset[str] = _FUSED) -> bool:
    """Whether XLA may compute an op where it is read, or what it reads. A relayout that sends nothing becomes a slice or a select."""
    if op.name != "relayout":
        return op.name in names
    source, target = op.operands[0].layout, op.results[0].layout
    if source is None or target is None:
        return False
    pairs = zip(source.dims, target.dims, strict=True)
    return {*source.partial} <= {*target.partial} and all(new[: len(old)] == old for old, new in pairs)


def is_light(op: Op) -> bool:
    """Whether XLA computes an op along with others."""
    return _fuses(op, _FUSING)


def stored_values(block: Block) -> dict[Value, tuple[Value, ...]]:
    """What lies in memory in place of values that don't themselves: what they are computed from where they are read, or what a
    loop was given that it passes on as it is."""
    readers: dict[Value, list[Op]] = {v: [] for op in block.ops for v in op.results}
    for op in block.ops:
        for v in reads(op):
            if v in readers:
                readers[v].append(op)
    left = set(block.returns)
    stored: dict[Value, tuple[Value, ...]] = {}
    for op in block.ops:
        if op.name == "while":
            body = op.regions[1]
            for k, v in enumerate(op.results):
                if body.returns[k] is body.args[k]:
                    stored[v] = held(op.operands[k : k + 1], stored)
        elif _fuses(op) and op.results[0] not in left:
            users = readers[op.results[0]]
            if (len(users) == 1 or op.name in _AGAIN) and all(map(is_light, users)):
                stored[op.results[0]] = held(op.operands, stored)
    return stored


def held(values: Iterable[Value], stored: dict[Value, tuple[Value, ...]]) -> tuple[Value, ...]:
    return tuple(dict.fromkeys(s for v in values for s in stored.get(v, (v,))))


def is_fused(op: Op, stored: dict[Value, tuple[Value, ...]]) -> bool:
    return op.name != "while" and len(op.results) == 1 and op.results[0] in stored


def inner_bytes(op: Op, type_of: TypeOf = own_type) -> int:
    """The most bytes that are live inside an op, beyond what it reads and makes. A gather of blocks that lie in pieces makes
    them side by side first, a scatter copies them so."""
    if op.name in ("all_gather", "reduce_scatter") and sends(op):
        larger = max(op.operands[0].type, op.results[0].type, key=lambda t: t.nbytes)
        return larger.nbytes if math.prod(larger.shape[: op.attrs["dim"]]) > 1 else 0
    if op.name not in CONTROL_FLOW:
        return 0
    return max(
        peak_bytes(r, set(r.args), type_of) - sum(type_of(v).nbytes for v in r.args) for r in op.regions
    )
