"""Combines small collectives of one block into few: they cost latency, not bytes.

A collective may run anywhere between its operand's definition and its first use. Those of one kind, axes and type whose
ranges have a point in common are packed into one buffer there, sent at once, and unpacked. So that ranges are long, small
ops behind small collectives first move to where their results are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ..ir.graph import Block, Op, Value
from ..ir.mesh import Mesh
from ..ir.optable import COLLECTIVES, is_pure
from ..ir.types import TensorType
from .builder import Builder
from .estimate import reads

SMALL = 64 * 1024  # bytes of an operand up to which latency outweighs the copies of packing


def combine_collectives(block: Block, mesh: Mesh) -> None:
    """Changes a block that no one else holds, and the blocks inside."""
    for op in block.ops:
        for region in op.regions:
            combine_collectives(region, mesh)
    delayed = Block(block.args, _delayed(block), block.returns)
    groups = list(_groups(delayed))
    if not groups:
        return
    block.ops[:] = delayed.ops
    # at one place, the group of the op that is there comes last: it may need what the others make
    groups.sort(key=lambda g: g[0] < len(block.ops) and block.ops[g[0]] in g[1])
    renamed: dict[Value, Value] = {}
    packed: dict[int, list[Op]] = {}
    gone: set[Op] = set()
    for position, ops in groups:
        inside = Block([], [], [])
        renamed.update(_pack(Builder(mesh, inside), ops))
        packed.setdefault(position, []).extend(inside.ops)
        gone.update(ops)
    new: list[Op] = []
    for i, op in enumerate(block.ops):
        new += packed.get(i, [])
        if op not in gone:
            new.append(op)
    new += packed.get(len(block.ops), [])
    block.ops[:] = new
    _rename(block, renamed)


def _delayed(block: Block) -> list[Op]:
    """The ops in an order in which small ones that wait for small collectives come where they are needed."""
    waiting: dict[Value, tuple[int, Op]] = {}  # what makes a value, with its place
    late: set[Value] = set()  # results of small collectives, and of what waits for them
    new: list[Op] = []

    def place(wanted: list[Value]) -> None:
        held: dict[int, Op] = {}
        while wanted:
            if found := waiting.get(wanted.pop()):
                held[found[0]] = found[1]
                for v in found[1].results:
                    del waiting[v]
                wanted += reads(found[1])
        new.extend(held[i] for i in sorted(held))

    for i, op in enumerate(block.ops):
        small = all(v.type.nbytes <= SMALL for v in (*op.operands, *op.results))
        moves = is_pure(op) and op.name not in COLLECTIVES
        waits = small and moves and any(v in late for v in op.operands)
        if waits or _key(op) is not None:
            late.update(op.results)
        if waits:
            waiting.update(dict.fromkeys(op.results, (i, op)))
        else:
            place(reads(op))
            new.append(op)
    place(list(waiting))
    return new


def _groups(block: Block) -> Iterator[tuple[int, list[Op]]]:
    """(position in the block before which to run, collectives that can run there together)."""
    defined: dict[Value, int] = {}
    used: dict[Value, int] = {}
    waiting: dict[Any, list[tuple[int, int, Op]]] = {}
    for i, op in enumerate(block.ops):
        for v in reads(op):
            used.setdefault(v, i)
        for v in op.results:
            defined[v] = i
    end = len(block.ops)
    keys = [_key(op) for op in block.ops]
    moved = {op.results[0] for op, key in zip(block.ops, keys, strict=True) if key is not None}
    for i, (op, key) in enumerate(zip(block.ops, keys, strict=True)):
        if key is not None:
            # what a collective that moves itself makes is there when it is used, and no sooner
            ready = i if op.operands[0] in moved else defined.get(op.operands[0], -1) + 1
            waiting.setdefault(key, []).append((used.get(op.results[0], end), ready, op))
    for ranges in waiting.values():
        ranges.sort(key=lambda r: r[:2])
        while len(ranges) > 1:
            last = ranges[0][0]  # the first that must be done: whatever is ready by then goes with it
            together = [r for r in ranges if r[1] <= last]
            if len(together) > 1:
                yield max(r[1] for r in together), [r[2] for r in together]
            ranges = [r for r in ranges if r[1] > last]


def _key(op: Op) -> Any:
    """What collectives must share to go together; None for all other ops."""
    if op.name not in _PACK or "axes" not in op.attrs:
        return None
    type = op.operands[0].type
    if not isinstance(type, TensorType) or not 0 < type.nbytes <= SMALL:
        return None
    return op.name, op.attrs["axes"], op.attrs.get("kind"), type.dtype


def _pack(b: Builder, ops: list[Op]) -> dict[Value, Value]:
    """Emits one collective for all; returns what replaces their results."""
    first = ops[0]
    b.loc = first.loc
    b.cause = f"{len(ops)} combined; {first.attrs.get('cause', '')}"
    made = _PACK[first.name](b, ops, first.attrs["axes"])
    for old, new in made.items():
        new.layout = old.layout  # of a result of the program
    return made


def _all_reduce(b: Builder, ops: list[Op], axes: tuple[str, ...]) -> dict[Value, Value]:
    rows = [b.reshape(op.operands[0], (op.operands[0].type.size,)) for op in ops]
    total = b.all_reduce(b.concatenate(rows, 0), axes, ops[0].attrs["kind"])
    parts = _split(b, total, 0, [r.type.size for r in rows])
    return {op.results[0]: b.reshape(p, op.results[0].type.shape) for op, p in zip(ops, parts, strict=True)}


def _all_gather(b: Builder, ops: list[Op], axes: tuple[str, ...]) -> dict[Value, Value]:
    n = b.mesh.axes_size(axes)
    rows = [b.reshape(op.operands[0], (1, op.operands[0].type.size)) for op in ops]
    parts = _split(b, b.all_gather(b.concatenate(rows, 1), axes, 0), 1, [r.type.size for r in rows])
    out: dict[Value, Value] = {}
    for op, part in zip(ops, parts, strict=True):
        dim, shape = op.attrs["dim"], op.operands[0].type.shape
        stacked = b.reshape(part, (n, *shape))
        order = (*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1))
        out[op.results[0]] = b.reshape(b.transpose(stacked, order), op.results[0].type.shape)
    return out


def _reduce_scatter(b: Builder, ops: list[Op], axes: tuple[str, ...]) -> dict[Value, Value]:
    n = b.mesh.axes_size(axes)
    rows: list[Value] = []
    for op in ops:
        dim, shape = op.attrs["dim"], op.operands[0].type.shape
        cut = b.reshape(op.operands[0], (*shape[:dim], n, shape[dim] // n, *shape[dim + 1 :]))
        order = (dim, *(d for d in range(len(shape) + 1) if d != dim))
        rows.append(b.reshape(b.transpose(cut, order), (n, math.prod(shape) // n)))
    total = b.reduce_scatter(b.concatenate(rows, 1), axes, 0, ops[0].attrs["kind"])
    parts = _split(b, total, 1, [r.type.shape[1] for r in rows])
    return {op.results[0]: b.reshape(p, op.results[0].type.shape) for op, p in zip(ops, parts, strict=True)}


_PACK: dict[str, Callable[[Builder, list[Op], tuple[str, ...]], dict[Value, Value]]] = {
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
}


def _split(b: Builder, value: Value, dim: int, sizes: list[int]) -> list[Value]:
    parts: list[Value] = []
    start = 0
    for size in sizes:
        parts.append(b.slice(value, dim, start, start + size))
        start += size
    return parts


def _rename(block: Block, renamed: dict[Value, Value]) -> None:
    for op in block.ops:
        op.operands = [renamed.get(v, v) for v in op.operands]
        for region in op.regions:
            _rename(region, renamed)
    block.returns = [renamed.get(v, v) for v in block.returns]
