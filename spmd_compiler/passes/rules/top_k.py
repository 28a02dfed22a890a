"""top_k: the other dims are batch. Along a sharded dim each device takes its own top k, and the top k of these candidates is the
result: of all of them, gathered, or, where another dim may be cut instead, of those of a device's own rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...ir.graph import Op, Value
from ...ir.types import TensorType, Type, is_float, numpy_dtype
from ..cost import Work
from ..emit.builder import INDEX, Builder, identity_value
from .base import R, Rule, Strategy, factored, numbered, shape_of
from .strategy import own_rows


def top_k(op: Op) -> Rule:
    shape = shape_of(op.operands[0])
    dims = numbered(shape)
    last = len(shape) - 1
    k = op.attrs["k"]

    def exchange(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        return (n - 1) * sum(t.nbytes for t in outs) * min(k, ins[0].shape[last]) / k, len(outs)

    merged: list[Strategy] = []
    if k and shape[last] > 1:
        merged = [Strategy((last,), (R, R), last, exchange)]
        merged += [Strategy((last,), (d, d), last, own_rows(exchange, shape[d], d, d)) for d in dims[:-1]]
    work = Work.over(op, 4)
    return factored([dims], [(*dims[:-1], None)] * 2, shape, _expand, whole=[last], extra=merged, work=work)


def lowest(dtype: str) -> Any:
    """What comes last in top_k's order: the negative NaN of the largest payload for floats, which are totally ordered."""
    if not is_float(dtype):
        return identity_value("max", dtype)
    raw = np.array(-1, f"int{8 * numpy_dtype(dtype).itemsize}")
    return raw.view(numpy_dtype(dtype))


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    source = op.operands[0]
    assert source.layout is not None and isinstance(source.type, TensorType)
    value = args[0]
    last = source.type.rank - 1
    axes = source.layout.dims[last]
    if not axes:
        return b.local(op, args)
    block = value.type.shape[last]
    k = min(op.attrs["k"], block)
    # a padded position loses against all others: they are not smaller, and come first
    value = b.masked(value, source.layout, source.type, (last,), lowest(source.type.dtype))
    values, indices = _local_top_k(b, value, k)
    offset = b.broadcast(b.offset(axes, block), indices.type.shape)
    indices = b.binary("add", indices, offset)
    # equal candidates come in the order of their indices, so that the lower index still wins
    result = op.results[0].layout
    assert result is not None
    if axes in result.dims:
        values, indices = (b.own_rows(v, axes, result.dims.index(axes), last) for v in (values, indices))
    else:
        values, indices = (b.all_gather(v, axes, last) for v in (values, indices))
    values, where = _local_top_k(b, values, op.attrs["k"])
    return [values, take_along(b, indices, where)]


def _local_top_k(b: Builder, value: Value, k: int) -> tuple[Value, Value]:
    shape = (*value.type.shape[:-1], k)
    types = [TensorType(shape, value.type.dtype), TensorType(shape, INDEX)]
    values, indices = b.multi("chlo.top_k", [value], types, {"k": k})
    return values, indices


def take_along(b: Builder, value: Value, where: Value) -> Value:
    """The positions `where` of the last dim; the other dims of both are the same."""
    batch = numbered(where.type.shape[:-1])
    last = len(batch)
    attrs = {
        "offset_dims": (),
        "collapsed_slice_dims": (last,),
        "operand_batching_dims": batch,
        "start_indices_batching_dims": batch,
        "start_index_map": (last,),
        "index_vector_dim": last + 1,
        "slice_sizes": (*(min(1, n) for n in where.type.shape[:-1]), 1),
    }
    return b.op("gather", [value, where], TensorType(where.type.shape, value.type.dtype), attrs)


RULES = {"chlo.top_k": top_k}
