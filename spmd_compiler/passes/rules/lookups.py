"""The index arrays of gather and scatter, per device: lookups relative to a block, windows as single positions."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ...ir.graph import Op, Value
from ...ir.types import TensorType, numpy_dtype
from ..emit.builder import INDEX, PRED, Builder


def index_dims(op: Op, rank: int) -> list[int]:
    """The dims of the index array, of `rank`, that enumerate lookups."""
    return [d for d in range(rank) if d != op.attrs["index_vector_dim"]]


class Lookups(NamedTuple):
    """An index array taken apart: one array per indexed operand dim, all of the lookups' shape. `batching`: the lookup
    dims that run along with a batching dim of the operand."""

    parts: list[Value]
    batching: list[int]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.parts[0].type.shape

    def unrolled(self, b: Builder, k: int, size: int, at: int) -> Lookups:
        """Lookups of windows of `size` along indexed dim k become lookups of single positions: a new dim, the `at`-th,
        enumerates them."""
        shape = (*self.shape[:at], size, *self.shape[at:])
        dims = tuple(d for d in range(len(shape)) if d != at)
        parts = [b.broadcast(p, shape, dims) for p in self.parts]
        index = TensorType(shape, parts[k].type.dtype)
        parts[k] = b.binary("add", parts[k], b.iota(index, at))
        return Lookups(parts, [d + (d >= at) for d in self.batching])

    def joined(self, b: Builder) -> Value:
        """The index array again, its vectors on the last dim."""
        wide = "i64" if any(p.type.dtype == "i64" for p in self.parts) else INDEX
        parts = [p if p.type.dtype == wide else b.op("convert", [p], _as(p, wide)) for p in self.parts]
        return b.concatenate([b.reshape(p, (*self.shape, 1)) for p in parts], len(self.shape))


def _as(value: Value, dtype: str) -> TensorType:
    return TensorType(value.type.shape, dtype)


def take_apart(b: Builder, op: Op, indices: Value, batching: tuple[int, ...]) -> Lookups:
    """The parts of an index array; `batching` are its dims that run along with batching dims."""
    shape = indices.type.shape
    vector = op.attrs["index_vector_dim"]
    if vector == len(shape):
        return Lookups([indices], list(batching))
    rest = (*shape[:vector], *shape[vector + 1 :])
    parts = [b.reshape(b.slice(indices, vector, k, k + 1), rest) for k in range(shape[vector])]
    return Lookups(parts, [d - (d > vector) for d in batching])


def signed(b: Builder, value: Value) -> Value:
    """Lookups as i32 or i64, whatever type they have."""
    return value if value.type.dtype in ("i32", "i64") else b.op("convert", [value], _as(value, "i64"))


def clamped(b: Builder, value: Value, limit: int) -> Value:
    """Lookups as i32 or i64, clamped to [0, limit]."""
    dtype = value.type.dtype
    top = min(limit, int(np.iinfo(numpy_dtype(dtype)).max))
    scalar = TensorType((), dtype)
    value = b.op("clamp", [b.constant(0, scalar), value, b.constant(top, scalar)], value.type)
    return value if dtype in ("i32", "i64") else b.op("convert", [value], _as(value, INDEX))


def between(b: Builder, value: Value, limit: int) -> Value:
    """i1: in [0, limit)."""
    type = value.type
    assert isinstance(type, TensorType)
    low, high = b.compare("GE", value, b.constant(0, type)), b.compare("LT", value, b.constant(limit, type))
    return b.op("and", [low, high], TensorType(type.shape, PRED))


def localise(b: Builder, lookup: Value, offset: Value, block: int) -> tuple[Value, Value]:
    """(lookup relative to this device's block, i1: it falls into the block)."""
    type = lookup.type
    if type.dtype != INDEX:
        offset = b.op("convert", [offset], TensorType((), type.dtype))
    mine = b.binary("subtract", lookup, b.broadcast(offset, type.shape))
    return mine, between(b, mine, block)


def count(lookups: Lookups) -> int:
    return math.prod(lookups.shape)
