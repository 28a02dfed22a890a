"""dynamic_roll: along a sharded dim, blocks move by the bits of the shift, half the ring, a quarter …, then by a part of one.

On few devices an all-gather sends no more than that, nor is there another way where the blocks don't fill the dim.
"""

from __future__ import annotations

from ...ir.graph import Op, Value
from ...ir.layout import PARTIAL_KINDS, Axes, local_block
from ...ir.types import Type
from ..cost import Work
from ..emit.builder import Builder
from .base import R, Rule, Strategy, factored, numbered, shape_of
from .slicing import clamped


def dynamic_roll(op: Op) -> Rule:
    shape = shape_of(op.operands[0])
    dims, d = numbered(shape), op.attrs["dimension"]

    def price(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        if _by_bits(n, shape[d], ins[0].shape[d], outs[0].shape[d]):
            return _rounds(n) * ins[0].nbytes, _rounds(n)
        return (n - 1) * ins[0].nbytes, 1

    along = [Strategy((d, R), (d,), d, price)] if shape[d] > 1 else []
    placed = tuple(None if i == d else i for i in dims)
    return factored(
        [dims, ()],
        [placed],
        shape,
        _expand,
        whole=[d],
        linear=[((0,), PARTIAL_KINDS)],
        extra=along,
        work=Work.over(op),
    )


def _rounds(n: int) -> int:
    """Permutes of a block: one per bit of a number of blocks, and one for the rest."""
    return (n - 1).bit_length() + 1


def _by_bits(n: int, size: int, block: int, wanted: int) -> bool:
    return block == wanted and block * n == size and _rounds(n) < n - 1


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    source, target = op.operands[0].layout, op.results[0].layout
    assert source is not None and target is not None
    d = op.attrs["dimension"]
    value, size, axes = args[0], shape_of(op.operands[0])[d], source.dims[d]
    start = clamped(b, args[1], size)
    if not axes:
        return [b.dynamic_slice(b.concatenate([value, value], d), d, start, size)]
    n, block = b.mesh.axes_size(axes), local_block(target, d, size, b.mesh)
    if _by_bits(n, size, value.type.shape[d], block):
        return [_by_blocks(b, value, d, axes, start)]
    whole = b.slice(b.all_gather(value, axes, d), d, 0, size)
    own = b.modulo(b.binary("add", start, b.offset(axes, block)), size)
    return [b.dynamic_slice(b.concatenate([whole, whole], d), d, own, block)]


def _by_blocks(b: Builder, value: Value, dim: int, axes: Axes, start: Value) -> Value:
    n, block = b.mesh.axes_size(axes), value.type.shape[dim]
    blocks = b.modulo(b.binary("divide", start, b.index(block)), n)
    for bit in range(_rounds(n) - 1):
        there = b.shift(value, axes, -(1 << bit), wrap=True)
        flag = b.binary("and", blocks, b.index(1 << bit))
        value = b.select(b.compare("NE", flag, b.index(0)), there, value)
    both = b.concatenate([value, b.shift(value, axes, -1, wrap=True)], dim)
    return b.dynamic_slice(both, dim, b.modulo(start, block), block)


RULES = {"dynamic_roll": dynamic_roll}
