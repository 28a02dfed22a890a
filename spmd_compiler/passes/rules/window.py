"""reduce_window and select_and_scatter: dims whose window is a single position shard."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.graph import Op, Value
from ..builder import Builder
from ..cost import WORK
from .base import Rule, factored, numbered, shape_of
from .regions import Scalars, is_identity, reducer_kind


def _windowed(op: Op, shape: Sequence[int]) -> list[int]:
    """The dims along which results depend on more than their own position."""
    rank = len(shape)
    ones = (1,) * rank
    at = op.attrs
    window = at.get("window_dimensions", ones)
    strides = at.get("window_strides", ones)
    base = at.get("base_dilations", ones)
    padding = at.get("padding", ((0, 0),) * rank)
    return [
        d
        for d in range(rank)
        if window[d] != 1 or strides[d] != 1 or base[d] != 1 or tuple(padding[d]) != (0, 0)
    ]


def reduce_window(op: Op, scalars: Scalars) -> Rule:
    n = len(op.operands) // 2
    shape = shape_of(op.operands[0])
    dims = numbered(shape)
    kind = reducer_kind(op.regions[0]) if n == 1 else None
    # a partial sum passes if the init adds nothing
    linear = [((0,), (kind,))] if kind and is_identity(kind, op.operands[1], scalars) else []
    return factored(
        [dims] * n + [()] * n,
        [dims] * n,
        shape,
        _expand,
        whole=_windowed(op, shape),
        linear=linear,
        work=WORK * 4 * sum(v.type.nbytes for v in op.operands + op.results),
    )


def select_and_scatter(op: Op) -> Rule:
    shape = shape_of(op.operands[0])
    dims = numbered(shape)
    return factored(
        [dims, dims, ()],
        [dims],
        shape,
        _expand,
        whole=_windowed(op, shape),
        work=WORK * 4 * sum(v.type.nbytes for v in op.operands + op.results),
    )


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    return b.local(op, args)


RULES = {"reduce_window": reduce_window, "select_and_scatter": select_and_scatter}
