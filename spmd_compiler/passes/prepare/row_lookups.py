"""Lookups of a gather or scatter that name their own row, `x[arange(n), i]`, become batching dims: rows then work by
themselves, and may be sharded with nothing to send."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...ir.graph import Op, Value
from ...ir.types import TensorType, is_integer, numpy_dtype
from .chains import Defs, fill_of


class _Names(NamedTuple):
    """What gather and scatter call the same things."""

    batching: str
    lookup_batching: str
    gone: str  # operand dims that the windows don't have
    indexed: str
    lookups: int  # the operand that is the index array, from the middle


def gather(op: Op, defs: Defs) -> list[Op] | None:
    names = _Names(
        "operand_batching_dims", "start_indices_batching_dims", "collapsed_slice_dims", "start_index_map", 1
    )
    return _batched(op, defs, names)


def scatter(op: Op, defs: Defs) -> list[Op] | None:
    names = _Names(
        "input_batching_dims",
        "scatter_indices_batching_dims",
        "inserted_window_dims",
        "scatter_dims_to_operand_dims",
        (len(op.operands) - 1) // 2,
    )
    return _batched(op, defs, names)


def _batched(op: Op, defs: Defs, names: _Names) -> list[Op] | None:
    at = op.attrs
    vector = at["index_vector_dim"]
    indices = defs.get(op.operands[names.lookups])
    if indices is None or indices.name != "concatenate" or indices.attrs["dimension"] != vector:
        return None
    parts = indices.operands
    if len(parts) != len(at[names.indexed]):  # some part holds several components
        return None
    batching = dict(zip(at.get(names.batching, ()), at.get(names.lookup_batching, ()), strict=True))
    shape = op.operands[0].type.shape
    for k, dim in enumerate(at[names.indexed]):
        row = row_of(parts[k], defs)
        if (
            row is None
            or row == vector
            or row in batching.values()
            or dim not in at[names.gone]
            or parts[k].type.shape[row] != shape[dim]
        ):
            continue
        left = [p for i, p in enumerate(parts) if i != k]
        pairs = sorted({**batching, dim: row}.items())
        attrs: dict[str, Any] = {
            **at,
            names.batching: tuple(d for d, _ in pairs),
            names.lookup_batching: tuple(r for _, r in pairs),
            names.gone: tuple(d for d in at[names.gone] if d != dim),
            names.indexed: tuple(d for d in at[names.indexed] if d != dim),
            "indices_are_sorted": False,
        }
        before, value = _joined(left, indices)
        operands = [value if i == names.lookups else v for i, v in enumerate(op.operands)]
        return [*before, Op(op.name, operands, op.results, attrs, op.regions, op.loc)]
    return None


def _joined(parts: list[Value], indices: Op) -> tuple[list[Op], Value]:
    if len(parts) == 1:
        return [], parts[0]
    d, type = indices.attrs["dimension"], indices.results[0].type
    assert isinstance(type, TensorType)
    joined = Value(type.with_shape((*type.shape[:d], len(parts), *type.shape[d + 1 :])))
    return [Op("concatenate", parts, [joined], indices.attrs, (), indices.loc)], joined


def row_of(value: Value, defs: Defs) -> int | None:
    """The dim along which each element of `value` is its own position; None if there is none, or none that shows."""
    op, type = defs.get(value), value.type
    if op is None or not isinstance(type, TensorType):
        return None
    if op.name == "iota":
        d = op.attrs["iota_dimension"]
        return d if holds(type.dtype, type.shape[d]) else None
    if op.name == "select":
        pred, _, other = op.operands
        return row_of(other, defs) if is_below_zero(pred, other, defs) else None
    if op.name not in ("broadcast_in_dim", "reshape", "convert"):
        return None
    inner = op.operands[0].type
    d = row_of(op.operands[0], defs)
    if d is None:
        return None
    n = inner.shape[d]
    if op.name == "convert":
        return d if holds(type.dtype, n) else None
    if op.name == "broadcast_in_dim":
        to = op.attrs["broadcast_dimensions"][d]
        return to if type.shape[to] == n else None
    real = [i for i, m in enumerate(inner.shape) if m != 1]
    there = [i for i, m in enumerate(type.shape) if m != 1]
    if [inner.shape[i] for i in real] != [type.shape[i] for i in there] or d not in real:
        return None
    return there[real.index(d)]


def holds(dtype: str, n: int) -> bool:
    """True if a type can number n positions."""
    return is_integer(dtype) and n - 1 <= np.iinfo(numpy_dtype(dtype)).max


def is_below_zero(pred: Value, value: Value, defs: Defs) -> bool:
    """True if `pred` is value < 0: what Python's negative indices are told by. A position never is."""
    op = defs.get(pred)
    if op is None or op.name != "compare" or op.attrs["comparison_direction"] != "LT":
        return False
    if op.operands[0] is not value:
        return False
    fill = fill_of(op.operands[1], defs)
    return fill is not None and not fill.any()
