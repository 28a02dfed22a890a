"""Matrix products whose collective is a ring of permutes: what is emitted (the decision is in `rings`).

Wang et al., "Overlap communication with dependent computation via decomposition in large deep learning models", ASPLOS
2023. Both directions of the ring are used, so that a piece takes half as many steps and links both ways are busy.
"""

from __future__ import annotations

from typing import NamedTuple

from ...ir.graph import Op, Value
from ...ir.types import TensorType, is_float
from ..emit.builder import Builder
from ..emit.dim_pieces import Cut, apply, mask, put, take


class Step(NamedTuple):
    """An op between collective and product, and how its operand and its result are cut."""

    op: Op
    before: Cut
    after: Cut


class Role(NamedTuple):
    """What the cut dim of one operand is in a product: the result's dim, None if it is summed over, and the cut of the
    other operand, None if that is needed whole."""

    result: int | None
    other: int | None


class Use(NamedTuple):
    """A product that reads a gathered value, through `steps`, as its operand `side`, which is cut so."""

    dot: Op
    side: int
    cut: Cut
    steps: tuple[Step, ...]


def role(dot: Op, side: int, dim: int) -> Role:
    """What a dim of one operand is in a dot_general."""
    batch, contract = dot.attrs["batch"], dot.attrs["contract"]
    other = 1 - side
    if dim in contract[side]:
        return Role(None, contract[other][contract[side].index(dim)])
    if dim in batch[side]:
        return Role(batch[side].index(dim), batch[other][batch[side].index(dim)])
    return Role(result_dims(dot)[side].index(dim), None)


def result_dims(dot: Op) -> tuple[list[int], list[int]]:
    """Per operand, the dim of it that each of the result's dims is; -1 where that is the other operand's."""
    batch, contract = dot.attrs["batch"], dot.attrs["contract"]
    free = [
        [d for d in range(v.type.rank) if d not in batch[i] and d not in contract[i]]
        for i, v in enumerate(dot.operands)
    ]
    left = [*batch[0], *free[0], *[-1] * len(free[1])]
    return left, [*batch[1], *[-1] * len(free[0]), *free[1]]


class Ring:
    """Positions on the ring of a collective's group, and names for what it sends."""

    def __init__(self, b: Builder, collective: Op, dots: list[Op]):
        self.b, self.axes = b, collective.attrs["axes"]
        self.size = b.mesh.axes_size(self.axes)
        self.ahead, self.back = self.size // 2, (self.size - 1) // 2  # steps each way
        self.loc = collective.loc
        lines = dict.fromkeys(str(dot.loc) for dot in dots if str(dot.loc))
        self.cause = f"ring of {collective.name} overlapped with dot_general {' '.join(lines)}".rstrip()
        if cause := collective.attrs.get("cause"):
            self.cause += f"; {cause}"

    def send(self, value: Value, by: int) -> Value:
        """To the device `by` further."""
        self.b.loc, self.b.cause = self.loc, self.cause
        return self.b.shift(value, self.axes, by, wrap=True)

    def start(self, offset: int, block: int) -> Value:
        """Where the block of the device `offset` further begins."""
        b, here = self.b, self.b.axis_index(self.axes)
        if offset % self.size:
            here = b.modulo(b.binary("add", here, b.index(offset % self.size)), self.size)
        return b.binary("multiply", here, b.index(block))


class Gather:
    """A decomposed all-gather: pieces that arrive one by one, and what is made of them."""

    def __init__(self, b: Builder, op: Op, dots: list[Op]):
        self.b = b
        self.ring = ring = Ring(b, op, dots)
        (operand,) = op.operands
        self.pieces: dict[int, Value] = {0: operand}  # by the offset of the device whose piece it is
        for k in range(1, ring.ahead + 1):
            self.pieces[-k] = ring.send(self.pieces[1 - k], 1)
            if k <= ring.back:
                self.pieces[k] = ring.send(self.pieces[k - 1], -1)
        dim, block = op.attrs["dim"], operand.type.shape[op.attrs["dim"]]
        self.cut = Cut(dim, block, block * ring.size)
        self.through: dict[tuple[Op, int], Value] = {}

    def whole(self) -> Value:
        """What the all-gather makes."""
        total: Value | None = None
        for k, piece in self.pieces.items():
            start = self.ring.start(k, self.cut.block)
            total = put(self.b, total, piece, self.cut, start, self.ring.size)
        assert total is not None
        return total

    def product(self, use: Use) -> Value:
        """What a product makes of all pieces."""
        b, (dot, side, cut, _) = self.b, use
        n, where = self.ring.size, role(dot, side, cut.dim)
        other = dot.operands[1 - side]
        total: Value | None = None
        for k in self.pieces:
            start = self.ring.start(k, cut.block)
            piece, factor = self._piece(use, k), other
            b.loc = dot.loc
            if where.other is not None:
                factor = take(b, other, cut._replace(dim=where.other), start, n)
            if where.result is None and cut.size < n * cut.block:
                piece = mask(b, piece, cut, start)
            if total is not None:
                total, piece = b.after(total, piece)
            part = _dot(b, dot, [piece, factor] if side == 0 else [factor, piece], where.result is None)
            if where.result is not None:
                total = put(b, total, part, cut._replace(dim=where.result), start, n)
            else:
                total = part if total is None else b.binary("add", total, part)
        assert total is not None
        return _convert(b, total, dot) if where.result is None else b.slice(total, where.result, 0, cut.size)

    def _piece(self, use: Use, k: int) -> Value:
        value = self.pieces[k]
        for op, before, after in use.steps:
            if (op, k) not in self.through:
                self.b.loc = op.loc
                start = self.ring.start(k, after.block)
                self.through[op, k] = apply(self.b, op, value, before, after, start)
            value = self.through[op, k]
        return value


def scatter(b: Builder, op: Op, dot: Op, cut: Cut, steps: tuple[Step, ...]) -> Value:
    """A reduce-scatter of a product whose result is cut so, through `steps`: sums that travel, to which each device adds
    its part of the block they are for."""
    ring = Ring(b, op, [dot])
    dims = [of_result[cut.dim] for of_result in result_dims(dot)]  # the cut one of each operand
    taken = 0 if dims[0] >= 0 else 1

    def factors(offset: int) -> list[Value]:
        b.loc = dot.loc
        start = ring.start(offset, cut.block)
        return [
            v if dim < 0 else take(b, v, cut._replace(dim=dim), start, ring.size)
            for v, dim in zip(dot.operands, dims, strict=True)
        ]

    def part(offset: int, operands: list[Value]) -> Value:
        b.loc = dot.loc
        value = _dot(b, dot, operands)
        for step, before, after in steps:
            b.loc = step.loc
            value = apply(b, step, value, before, after, ring.start(offset, after.block))
        return value

    # by turns, so that one way's sum travels while the other's term is computed: compilers fuse the adding into products
    steps_each_way = [((1, ring.ahead - k), (-1, ring.back - k)) for k in range(ring.ahead)]
    turns = [(way, k) for pair in steps_each_way for way, k in pair if k]
    sums: dict[int, Value] = {}  # by way, as they came
    operands = factors(turns[0][0] * turns[0][1])
    for (way, k), (next_way, next_k) in zip(turns, [*turns[1:], (0, 0)], strict=True):
        total = part(way * k, operands)
        total = total if way not in sums else b.binary("add", sums[way], total)
        operands = factors(next_way * next_k)
        total, operands[taken] = b.after(total, operands[taken])
        sums[way] = ring.send(total, way)
    total = part(0, operands)
    # else XLA adds one of the sums that come last within the product, which then waits for it
    total = b.op("optimization_barrier", [total], total.type)
    for came in sums.values():
        total = b.binary("add", total, came)
    return total


def _dot(b: Builder, dot: Op, operands: list[Value], summed: bool = False) -> Value:
    """A dot_general of pieces; `summed`: the first of many terms, so not rounded before they are added."""
    shapes: list[int] = []
    for left, right in zip(*result_dims(dot), strict=True):
        shapes.append(operands[0].type.shape[left] if left >= 0 else operands[1].type.shape[right])
    dtype = dot.result.type.dtype
    small = is_float(dtype) and dot.result.type.nbytes < 4 * dot.result.type.size
    if summed and small and dot.attrs.get("algorithm") is None:
        dtype = "f32"
    return b.op("dot_general", operands, TensorType(tuple(shapes), dtype), dot.attrs)


def _convert(b: Builder, total: Value, dot: Op) -> Value:
    type = dot.result.type
    return total if total.type is type else b.op("convert", [total], type)
