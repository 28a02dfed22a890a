"""A dim cut into equal pieces: how these pass one by one through ops that keep the dim's positions in order.

All functions return None for an op that mixes pieces.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from ...ir.graph import Op, Value
from ...ir.optable import ELEMENTWISE
from ...ir.types import TensorType
from .builder import Builder


class Cut(NamedTuple):
    """`dim` is cut into pieces of `block` positions, of all of which the first `size` are the value's; the rest is
    padding."""

    dim: int
    block: int
    size: int


def cut_after(op: Op, cut: Cut, pieces: int) -> Cut | None:
    """How the result is cut where the operand is cut so."""
    dim, block, size = cut
    if op.name == "transpose":
        return cut._replace(dim=op.attrs["permutation"].index(dim))
    if op.name == "reshape":
        return _reshaped(op.operands[0].type.shape, op.results[0].type.shape, cut, pieces)
    if op.name == "slice" and op.attrs["start_indices"][dim] == 0 and op.attrs["strides"][dim] == 1:
        return Cut(dim, block, min(size, op.attrs["limit_indices"][dim]))
    return cut if _is_unary(op) else None


def cut_before(op: Op, cut: Cut, pieces: int) -> Cut | None:
    """How the operand is cut where the result is cut so."""
    if op.name == "transpose":
        return cut._replace(dim=op.attrs["permutation"][cut.dim])
    if op.name == "reshape":
        return _reshaped(op.results[0].type.shape, op.operands[0].type.shape, cut, pieces)
    if op.name == "pad":
        low, inner, high = (
            op.attrs[k] for k in ("edge_padding_low", "interior_padding", "edge_padding_high")
        )
        added = high[cut.dim]
        alone = not any((*low, *inner, *high[: cut.dim], *high[cut.dim + 1 :]))
        whole = cut.size == pieces * cut.block
        return cut._replace(size=cut.size - added) if alone and whole and added >= 0 else None
    return cut if _is_unary(op) else None


def _is_unary(op: Op) -> bool:
    return ELEMENTWISE.get(op.name) == 1 and op.operands[0].type.shape == op.results[0].type.shape


def _reshaped(source: tuple[int, ...], target: tuple[int, ...], cut: Cut, pieces: int) -> Cut | None:
    """The dim of `target` that begins where the cut one of `source` does; its pieces are the same elements."""
    before = math.prod(source[: cut.dim])
    padded = cut.size != pieces * cut.block
    for dim, size in enumerate(target):
        if math.prod(target[:dim]) != before or (size == 1 and source[cut.dim] != 1):
            continue
        if size == source[cut.dim]:
            return cut._replace(dim=dim)
        return None if padded or size % pieces else Cut(dim, size // pieces, size)
    return None


def apply(b: Builder, op: Op, operand: Value, before: Cut, after: Cut, start: Value) -> Value:
    """The piece of an op's result that a piece of its operand gives; `start`: the position of the result's piece."""
    type = op.results[0].type
    assert isinstance(type, TensorType)
    shape = (*type.shape[: after.dim], after.block, *type.shape[after.dim + 1 :])
    if op.name == "pad":
        return mask(b, operand, before, start, op.operands[1])
    attrs: dict[str, Any] = op.attrs
    if op.name == "slice":
        limits = op.attrs["limit_indices"]
        attrs = attrs | {"limit_indices": (*limits[: after.dim], after.block, *limits[after.dim + 1 :])}
    return b.op(op.name, [operand], type.with_shape(shape), attrs)


def mask(b: Builder, piece: Value, cut: Cut, start: Value, fill: Value | None = None) -> Value:
    """A piece, which begins at `start`, with `fill` or zeros for its padding."""
    shape = piece.type.shape
    left = b.binary("subtract", b.index(cut.size), start)
    positions = b.iota(TensorType(shape, "i32"), cut.dim)
    inside = b.compare("LT", positions, b.broadcast(left, shape))
    assert isinstance(piece.type, TensorType)
    return b.select(inside, piece, b.constant(0, piece.type) if fill is None else b.broadcast(fill, shape))


def take(b: Builder, value: Value, cut: Cut, start: Value, pieces: int) -> Value:
    """The piece of a whole value that begins at `start`; its padding is zero."""
    padded = b.pad(value, cut.dim, 0, pieces * cut.block - cut.size)
    return b.dynamic_slice(padded, cut.dim, start, cut.block)


def put(b: Builder, whole: Value | None, piece: Value, cut: Cut, start: Value, pieces: int) -> Value:
    """`whole`, padded to whole pieces, or zeros if it is None, with `piece` from `start` on."""
    if whole is None:
        type = piece.type
        assert isinstance(type, TensorType)
        shape = (*type.shape[: cut.dim], pieces * cut.block, *type.shape[cut.dim + 1 :])
        whole = b.constant(0, type.with_shape(shape))
    return b.dynamic_update_slice(whole, piece, cut.dim, start)
