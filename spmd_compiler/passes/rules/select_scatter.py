"""select_and_scatter: a device fetches the sources whose windows touch its block, and the operand under these windows;
what neighbours have in common, each of them computes. Places beyond the operand hold what never wins, but against a NaN.

`padded_select_and_scatter` has one more operand, a scalar that pads the first one before it selects.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...ir.clone import clone_regions
from ...ir.graph import Block, Op, Value
from ...ir.layout import Axes, local_type
from ...ir.optable import reducer_kind
from ...ir.types import TensorType, Type
from ..cost import Work
from ..emit.builder import Builder, identity_value
from ..emit.halo import Window, fetch_window, lookup, moves_price, window_moves
from .base import R, Rule, Strategy, factored, numbered, shape_of
from .windows import placed


class _Dim(NamedTuple):
    """One dim: operand size, number of sources, and how windows lie."""

    size: int
    sources: int
    window: int
    stride: int
    low: int

    @property
    def trivial(self) -> bool:
        return (self.window, self.stride, self.low, self.sources) == (1, 1, 0, self.size)

    @property
    def leaves(self) -> bool:
        """True if some window sticks out of the operand."""
        return self.low > 0 or (self.sources - 1) * self.stride - self.low + self.window > self.size

    def source_window(self, block: int) -> Window:
        """The sources whose windows touch a block of the operand; as many as any block has."""
        if block % self.stride:
            count = (block + self.window - 2) // self.stride + 1
        else:  # windows lie the same way on every block
            count = -((-block - self.low) // self.stride) - (self.low - self.window) // self.stride - 1
        return Window(block, self.low - self.window + self.stride, count, 0, self.sources, self.stride)

    def operand_window(self, block: int) -> Window:
        """A range that holds the windows of these sources, wherever in it they start."""
        count = self.source_window(block).length
        slack = 0 if block % self.stride == 0 else self.stride - 1
        first = self.first(0, block) if not slack else 1 - self.window
        limit = min(self.size, (self.sources - 1) * self.stride - self.low + self.window)
        return Window(block, first, (count - 1) * self.stride + self.window + slack, max(0, -self.low), limit)

    def first(self, k: int, block: int) -> int:
        """Where in the operand the windows of device k start."""
        w = self.source_window(block)
        return (k * w.stride + w.offset) // w.per * self.stride - self.low


def _dims(op: Op) -> list[_Dim]:
    at = op.attrs
    shape, sources = shape_of(op.operands[0]), shape_of(op.operands[1])
    rank = len(shape)
    window = at.get("window_dimensions") or (1,) * rank
    strides = at.get("window_strides") or (1,) * rank
    padding = at.get("padding") or ((0, 0),) * rank
    return [_Dim(shape[d], sources[d], window[d], strides[d], padding[d][0]) for d in range(rank)]


def select_and_scatter(op: Op) -> Rule:
    shape = shape_of(op.operands[0])
    dims = numbered(shape)
    along = _dims(op)
    moved = [d for d, x in enumerate(along) if not x.trivial]
    adds = reducer_kind(op.regions[1])
    never = _never_selected(op.regions[0], op.operands[0].type.dtype)
    padded = op.name != "select_and_scatter"
    scalars = len(op.operands) - 2
    extra = [
        Strategy((d, d, *(R,) * scalars), (d,), d, _price(along[d], d))
        for d in moved
        if shape[d] > 1
        and along[d].sources > 1
        and adds is not None
        and (padded or never is not None or not along[d].leaves)
    ]
    where = placed(dims, moved)
    return factored(
        [where, where, *[()] * scalars],
        [where],
        shape,
        _expand,
        whole=moved,
        extra=extra,
        work=Work.over(op, 2),
    )


def region_key(op: Op) -> Any:
    """What the rule depends on in the regions."""
    never = _never_selected(op.regions[0], op.operands[0].type.dtype)
    return None if never is None else float(never), reducer_kind(op.regions[1])


def _never_selected(block: Block, dtype: str) -> Any:
    """A value that loses against all others, if the region is a plain comparison."""
    if len(block.ops) != 1 or block.ops[0].name != "compare" or block.ops[0].operands != block.args:
        return None
    direction = block.ops[0].attrs["comparison_direction"]
    kind = {"GE": "max", "GT": "max", "LE": "min", "LT": "min"}.get(direction)
    return None if kind is None else identity_value(kind, dtype)


def _price(x: _Dim, d: int) -> Any:
    def price(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        block = outs[0].shape[d]
        total, messages = 0.0, 0
        for t, window in zip(ins, (x.operand_window(block), x.source_window(block)), strict=False):
            have = t.shape[d]
            sent, count = moves_price(window_moves(n, have, window), t.nbytes / have)
            total, messages = total + sent, messages + count
        return total, messages

    return price


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    layout = op.results[0].layout
    assert layout is not None
    want = local_type(op.results[0].type, layout, b.mesh)
    value, source, init, *fill = args
    padding = [tuple(p) for p in op.attrs.get("padding") or ((0, 0),) * want.rank]
    zero = identity_value(reducer_kind(op.regions[1]) or "sum", source.type.dtype)
    never = fill[0] if fill else _never_selected(op.regions[0], value.type.dtype)
    shape = list(want.shape)
    cuts: list[tuple[int, Axes, list[int], int]] = []
    for d, x in enumerate(_dims(op)):
        axes = layout.dims[d]
        if not axes or x.trivial:
            if fill:
                (low, high), size = padding[d], value.type.shape[d]
                value = b.pad(value, d, low, high, fill[0])
                padding[d], shape[d] = (0, 0), shape[d] + low + high
                cuts.append((d, (), [low], size))
            continue
        block, n = want.shape[d], b.mesh.axes_size(axes)
        sources, rows = x.source_window(block), x.operand_window(block)
        first = [x.first(k, block) for k in range(n)]
        starts = [(k * sources.stride + sources.offset) // sources.per for k in range(n)]
        source = _only(b, fetch_window(b, source, d, axes, sources), d, axes, starts, x.sources, zero)
        value = fetch_window(b, value, d, axes, rows)
        begin = [k * rows.stride + rows.offset for k in range(n)]
        if x.leaves:
            value = _only(b, value, d, axes, begin, x.size, never)
        length = (sources.length - 1) * x.stride + x.window
        lead = [f - s for f, s in zip(first, begin, strict=True)]
        value = _cut(b, value, d, axes, lead, length)
        padding[d] = (0, 0)
        shape[d] = length
        cuts.append((d, axes, [k * block - f for k, f in enumerate(first)], block))
    attrs = {**op.attrs, "padding": tuple(padding)}
    type = TensorType(tuple(shape), want.dtype)
    out = b.op("select_and_scatter", [value, source, init], type, attrs, clone_regions(op.regions))
    for d, axes, lead, block in cuts:
        low = max(0, -min(lead))
        high = max(0, max(lead) + block - out.type.shape[d])
        out = b.pad(out, d, low, high, init)  # positions between windows that don't meet
        out = _cut(b, out, d, axes, [x + low for x in lead], block)
    return [out]


def _only(b: Builder, row: Value, dim: int, axes: Axes, starts: list[int], size: int, fill: Any) -> Value:
    """`row`, whose positions count from this device's start, with `fill` where there is nothing."""
    type = TensorType(row.type.shape, "i32")
    index = b.binary("add", b.iota(type, dim), b.broadcast(lookup(b, axes, starts), type.shape))
    below = b.compare("LT", index, b.constant(np.int32(size), type))
    ok = b.binary("and", b.compare("GE", index, b.constant(np.int32(0), type)), below)
    return b.select(ok, row, b.full(row.type, fill))


def _cut(b: Builder, value: Value, dim: int, axes: Axes, starts: list[int], length: int) -> Value:
    if len(set(starts)) == 1:
        return b.slice(value, dim, starts[0], starts[0] + length)
    return b.dynamic_slice(value, dim, lookup(b, axes, starts), length)


RULES = {"select_and_scatter": select_and_scatter, "padded_select_and_scatter": select_and_scatter}
