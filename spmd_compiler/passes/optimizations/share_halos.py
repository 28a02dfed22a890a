"""What several permutes send of one value is sent once.

A stencil reads the neighbours' rows by one permute for each distance, though the widest brings them all; and corners by permuting
columns of what was put together of rows, most of which are columns of the value itself. Here the operands of permutes that go the
same way are traced back, through slices and concatenations, to boxes of the values that these cut from. Boxes that overlap
are sent as one, and what was permuted is put together again of what arrives.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

from ...ir.graph import Block, Op, Value
from ...ir.mesh import Mesh
from ...ir.optable import sends
from ..cost import prices
from ..emit.builder import Builder
from ..simplify import drop_unused

DEPTH = 8  # slices and concatenations, one behind the other, that are looked through
Box = tuple[tuple[int, int], ...]  # per dim where it begins and ends


class Piece(NamedTuple):
    """A box of a value."""

    source: Value
    box: Box


class Joined(NamedTuple):
    """What a concatenation puts together."""

    dim: int
    parts: tuple[Piece | Joined, ...]


Tree = Piece | Joined


def share_halos(block: Block, mesh: Mesh) -> None:
    """Changes a block that no one else holds, and the blocks inside."""
    groups: dict[object, list[Op]] = {}
    for op in block.ops:
        for region in op.regions:
            share_halos(region, mesh)
        if op.name == "collective_permute" and sends(op) and op.operands[0].type.nbytes:
            way = {name: value for name, value in op.attrs.items() if name != "cause"}
            groups.setdefault((tuple(way.items()), op.operands[0].type.dtype), []).append(op)
    made: dict[Value, Op] = {}
    for ops in groups.values():
        if len(ops) > 1:
            made = made or block.makers()
            if _share(block, mesh, ops, made):
                made = {}


def _share(block: Block, mesh: Mesh, ops: list[Op], made: dict[Value, Op]) -> bool:
    """Has permutes that go the same way send what they have in common once, if that is less; whether they do."""
    trees = {op: _traced(op.operands[0], _whole(op.operands[0]), made, DEPTH) for op in ops}
    boxes: dict[Value, list[Box]] = {}
    for tree in trees.values():
        for source, box in _pieces(tree):
            boxes[source] = _with(boxes.get(source, []), box)
    least = [_size(box) * source.type.nbytes / source.type.size for source in boxes for box in boxes[source]]
    saved = sum(op.operands[0].type.nbytes for op in ops) - sum(least)
    if saved <= max(0, len(least) - len(ops)) * prices(mesh).message:
        return False
    arrived: dict[Piece, Value] = {}
    new: dict[Op, list[Op]] = {}
    renamed: dict[Value, Value] = {}
    for op, tree in trees.items():
        b = Builder.beside(mesh, op)
        renamed[op.results[0]] = _assembled(b, op, tree, boxes, arrived)
        new[op] = b.block.ops
    block.ops[:] = [x for op in block.ops for x in new.get(op, (op,))]
    block.replace(renamed)
    drop_unused(block)
    return True


def _traced(value: Value, box: Box, made: dict[Value, Op], depth: int) -> Tree:
    """What a box of a value is cut from, and put together of."""
    op = made.get(value)
    if op is None or not depth:
        return Piece(value, box)
    if op.name == "slice" and all(s == 1 for s in op.attrs["strides"]):
        starts = op.attrs["start_indices"]
        inner = tuple([(a + s, e + s) for (a, e), s in zip(box, starts, strict=True)])
        return _traced(op.operands[0], inner, made, depth - 1)
    if op.name != "concatenate":
        return Piece(value, box)
    dim, at = op.attrs["dimension"], 0
    parts: list[Tree] = []
    for v in op.operands:
        size = v.type.shape[dim]
        begin, end = max(box[dim][0] - at, 0), min(box[dim][1] - at, size)
        if begin < end:
            parts.append(_traced(v, (*box[:dim], (begin, end), *box[dim + 1 :]), made, depth - 1))
        at += size
    return parts[0] if len(parts) == 1 else Joined(dim, tuple(parts))


def _pieces(tree: Tree) -> Iterator[Piece]:
    if isinstance(tree, Piece):
        yield tree
        return
    for part in tree.parts:
        yield from _pieces(part)


def _whole(value: Value) -> Box:
    return tuple([(0, n) for n in value.type.shape])


def _size(box: Box) -> int:
    return math.prod(end - begin for begin, end in box)


def _with(boxes: list[Box], new: Box) -> list[Box]:
    """The boxes and one more; two that are no smaller than what holds both become that."""
    for old in boxes:
        both = tuple([(min(a, b), max(c, d)) for (a, c), (b, d) in zip(old, new, strict=True)])
        if _size(both) <= _size(old) + _size(new):
            return _with([x for x in boxes if x is not old], both)
    return [*boxes, new]


def _assembled(
    b: Builder, permute: Op, tree: Tree, boxes: dict[Value, list[Box]], arrived: dict[Piece, Value]
) -> Value:
    """What a permute gives, of the boxes that arrive; those that haven't yet are sent."""
    if isinstance(tree, Joined):
        return b.concatenate([_assembled(b, permute, x, boxes, arrived) for x in tree.parts], tree.dim)
    holds = next(
        x
        for x in boxes[tree.source]
        if all(a <= c and d <= e for (a, e), (c, d) in zip(x, tree.box, strict=True))
    )
    key = Piece(tree.source, holds)
    if key not in arrived:
        operand = _cut(b, tree.source, holds)
        arrived[key] = b.op("collective_permute", [operand], operand.type, permute.attrs)
    return _cut(
        b, arrived[key], tuple([(c - a, d - a) for (a, _), (c, d) in zip(holds, tree.box, strict=True)])
    )


def _cut(b: Builder, value: Value, box: Box) -> Value:
    for d, (begin, end) in enumerate(box):
        value = b.slice(value, d, begin, end)
    return value
