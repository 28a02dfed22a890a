"""sort: the other dims are batch. Along a sharded dim it is Leighton's columnsort (1985): four local sorts, and between them
exchanges that don't depend on the data: two all-to-alls of the block, and half a block to a neighbour and back.

The n blocks are the columns of a matrix; each has r rows, a multiple of n and at least 2(n - 1)^2, where shorter blocks are
padded. An element carries its position, which breaks ties: all elements are then different, and the result is the stable
one. Padding has positions beyond the end, and comes last. An operand that numbers the positions (attribute `positions`) is
not sent besides.
"""

from __future__ import annotations

from typing import NamedTuple

from ...ir.clone import clone_block, inline_block
from ...ir.graph import Block, Op, Value
from ...ir.layout import Axes, local_type
from ...ir.types import TensorType, Type, is_integer
from ..cost import Work
from ..emit.builder import INDEX, PRED, Builder, identity_value
from ..emit.halo import block_window, fetch_window, moves_price, window_moves
from .base import Rule, Strategy, factored, numbered, shape_of


def sort(op: Op) -> Rule:
    shape = shape_of(op.operands[0])
    work = Work.over(op, 4)
    n = len(op.operands)
    dims = numbered(shape)
    if not shape:
        return factored([dims] * n, [dims] * n, shape, _expand, work=work)
    d = op.attrs["dimension"]
    size = shape[d]
    positions = 0 if _interchangeable(op) else _position_bytes(size)
    given = op.attrs.get("positions")

    def exchange(shards: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        block = ins[0].shape[d]
        rows = _rows(block, shards)
        row = sum(t.nbytes for i, t in enumerate(ins) if i != given) / block
        carried = row + positions * (ins[0].size / block)
        sent = carried * rows * (2 * (shards - 1) / shards + 1)
        sorted_ = n - (given is not None)
        messages = 4 * (sorted_ + bool(positions))
        kept = row if given is None else carried
        back, more = moves_price(window_moves(shards, rows, block_window(outs[0].shape[d], size)), kept)
        return sent + back, messages + more * n

    # where equal elements may come in any order, it is the order that the backend gives them on one device
    exact = op.attrs.get("is_stable") or not positions
    along = [Strategy((d,) * n, (d,) * n, d, exchange)] if size > 1 and exact else []
    result = tuple(None if i == d else i for i in dims)
    return factored([dims] * n, [result] * n, shape, _expand, whole=[d], extra=along, work=work)


def _rows(block: int, columns: int) -> int:
    """How many rows the columns need."""
    return -(-max(block, 2 * (columns - 1) ** 2) // columns) * columns


def _position_bytes(size: int) -> int:
    return 2 if size < 1 << 16 else 4


def _interchangeable(op: Op) -> str | None:
    """LT or GT if the comparator is only that, of integers: equal elements are then the same. None else."""
    region = op.regions[0]
    if len(op.operands) > 1 or len(region.ops) != 1 or not is_integer(op.operands[0].type.dtype):
        return None
    (inner,) = region.ops
    if inner.name != "compare" or inner.operands != region.args or region.returns != inner.results:
        return None
    direction = inner.attrs["comparison_direction"]
    return direction if direction in ("LT", "GT") else None


class _Column(NamedTuple):
    """What a device holds along the sorted dim, and how to sort it."""

    b: Builder
    op: Op
    axes: Axes
    dim: int
    region: Block

    def sort(self, values: list[Value]) -> list[Value]:
        attrs = {"dimension": self.dim, "is_stable": False}
        return self.b.multi("sort", values, [v.type for v in values], attrs, (clone_block(self.region),))

    def deal(self, value: Value) -> Value:
        """Row i goes to column i mod n: a column-major walk becomes a row-major one."""
        n = self.b.mesh.axes_size(self.axes)
        shape, d = value.type.shape, self.dim
        split = self.b.reshape(value, (*shape[:d], shape[d] // n, n, *shape[d + 1 :]))
        return self.b.reshape(self.b.all_to_all(split, self.axes, d + 1, d), shape)

    def collect(self, value: Value) -> Value:
        """The inverse of `deal`."""
        shape, d = value.type.shape, self.dim
        split = self.b.reshape(value, (*shape[: d + 1], 1, *shape[d + 1 :]))
        return self.b.reshape(self.b.all_to_all(split, self.axes, d, d + 1), shape)

    def straddle(self, values: list[Value]) -> list[Value]:
        """Sorts each second half together with the first half of the next column."""
        b, d, axes = self.b, self.dim, self.axes
        rows = values[0].type.shape[d]
        half = rows // 2
        firsts = [b.slice(v, d, 0, half) for v in values]
        seconds = [b.slice(v, d, half, rows) for v in values]
        joined = [b.concatenate([s, b.shift(f, axes, -1)], d) for f, s in zip(firsts, seconds, strict=True)]
        merged = self.sort(joined)
        at = b.axis_index(axes)
        is_first = b.compare("EQ", at, b.index(0))
        is_last = b.compare("EQ", at, b.index(b.mesh.axes_size(axes) - 1))
        out: list[Value] = []
        for m, f, s in zip(merged, firsts, seconds, strict=True):
            low = b.shift(b.slice(m, d, rows - half, rows), axes, 1)
            high = b.slice(m, d, 0, rows - half)
            out.append(b.concatenate([b.select(is_first, f, low), b.select(is_last, s, high)], d))
        return out


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    source, result = op.operands[0], op.results[0]
    assert source.layout is not None and result.layout is not None
    d = op.attrs["dimension"]
    axes = source.layout.dims[d] if source.layout.dims else ()
    if not axes:
        return b.local(op, args, {k: v for k, v in op.attrs.items() if k != "positions"})
    size, block = source.type.shape[d], args[0].type.shape[d]
    rows = _rows(block, b.mesh.axes_size(axes))
    given = op.attrs.get("positions")
    carried = [arg for i, arg in enumerate(args) if i != given]
    direction = _interchangeable(op)
    if direction:
        last = identity_value("min" if direction == "LT" else "max", source.type.dtype)
        values = [b.masked(args[0], source.layout, source.type, (d,), last)]
        values = [
            b.pad(v, d, 0, rows - block, b.constant(last, TensorType((), v.type.dtype))) for v in values
        ]
        column = _Column(b, op, axes, d, op.regions[0])
    else:
        values = [b.pad(v, d, 0, rows - block) for v in carried]
        values.append(_positions(b, values[0].type.shape, d, axes, block, size))
        column = _Column(b, op, axes, d, _by_position(b, op, values[-1].type.dtype, size))
    values = column.sort(values)
    values = column.sort([column.deal(v) for v in values])
    values = column.sort([column.collect(v) for v in values])
    values = column.straddle(values)
    if given is None:
        values = values[: len(args)]
    own = local_type(result.type, result.layout, b.mesh).shape[d]
    if own != rows:
        values = [fetch_window(b, v, d, axes, block_window(own, size)) for v in values]
    if given is None:
        return values
    *values, at = values
    numbers = TensorType(at.type.shape, op.results[given].type.dtype)
    return [*values[:given], b.op("convert", [at], numbers), *values[given:]]


def _positions(b: Builder, shape: tuple[int, ...], dim: int, axes: Axes, block: int, size: int) -> Value:
    """The global position of each element, `size` for padding."""
    rows = shape[dim]
    index = TensorType((rows,), INDEX)
    local = b.iota(index, 0)
    at = b.binary("add", local, b.broadcast(b.offset(axes, block), (rows,)))
    inside = b.compare("LT", local, b.constant(block, index))
    at = b.binary("minimum", b.select(inside, at, b.constant(size, index)), b.constant(size, index))
    if _position_bytes(size) == 2:
        at = b.op("convert", [at], TensorType((rows,), "u16"))
    return b.broadcast(at, shape, (dim,))


def _by_position(b: Builder, op: Op, dtype: str, size: int) -> Block:
    """The comparator of elements with positions: of equal elements the one before comes first, and padding last."""
    region, given = op.regions[0], op.attrs.get("positions")
    scalar = TensorType((), dtype)
    args = [Value(v.type) for v in region.args]
    left, right = Value(scalar), Value(scalar)
    carried = [v for i, v in enumerate(args) if i // 2 != given]
    out = Block([*carried, left, right], [], [])
    swapped = [args[i ^ 1] for i in range(len(args))]
    (before,) = inline_block(region, args, out.ops)
    (behind,) = inline_block(region, swapped, out.ops)
    inner = Builder(b.mesh, out)
    how = "UNSIGNED" if dtype[0] == "u" else "SIGNED"

    def compare(direction: str, x: Value, y: Value) -> Value:
        attrs = {"comparison_direction": direction, "compare_type": how}
        return inner.op("compare", [x, y], TensorType((), PRED), attrs)

    end = inner.constant(size, scalar)
    tied = inner.op("not", [behind], behind.type)
    earlier = inner.binary("or", before, inner.binary("and", tied, compare("LT", left, right)))
    # the one on the left is real, and the other is padding or comes behind
    padding = compare("GE", right, end)
    out.returns = [inner.binary("and", compare("LT", left, end), inner.binary("or", padding, earlier))]
    return out


RULES = {"sort": sort}
