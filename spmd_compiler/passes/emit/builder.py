"""Emits per-device ops: the shorthand that the rules' expansions are written in.

A `Builder` fills one block of the per-device program. Values it makes have local types and no layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np

from ...ir.graph import UNKNOWN_LOC, Block, Dense, Loc, Op, Value
from ...ir.layout import Axes, Layout, block_size, local_block, local_type
from ...ir.mesh import Mesh
from ...ir.optable import COMBINE
from ...ir.types import TensorType, Type, is_complex, is_float, numpy_dtype
from .permute_in_groups import permute_in_groups

PRED = "i1"
INDEX = "i32"


def identity_value(kind: str, dtype: str) -> Any:
    """The neutral element of a reduction, bit for bit: what a device without a term contributes."""
    np_dtype = numpy_dtype(dtype)
    if kind == "sum" and (is_float(dtype) or is_complex(dtype)):  # 0.0 would turn a -0.0 into 0.0
        zero = complex(-0.0, -0.0) if is_complex(dtype) else -0.0
        return np.array(zero).astype(np_dtype)[()]
    if kind in ("sum", "xor", "or"):
        return np.zeros((), np_dtype)[()]
    if kind == "mul":
        return np.ones((), np_dtype)[()]
    if kind == "and":
        return np.array(True) if dtype == "i1" else np.array(-1).astype(np_dtype)[()]
    if is_float(dtype) or is_complex(dtype):
        limit = np.array(-np.inf if kind == "max" else np.inf).astype(np_dtype)[()]
        if not np.isnan(limit):
            return limit
        finite = ml_dtypes.finfo(np_dtype)  # some types of 8 bits have no infinities
        return finite.min if kind == "max" else finite.max
    if dtype == "i1":
        return np.array(kind == "min")
    info = ml_dtypes.iinfo(np_dtype)
    return np.array(info.min if kind == "max" else info.max).astype(np_dtype)[()]


def is_neutral(kind: str, value: Any, dtype: str) -> bool:
    """Whether a number is the neutral element of a reduction, whatever a zero's sign; False if it is None, unknown."""
    return value is not None and bool(np.array_equal(value, identity_value(kind, dtype)))


def combiner(kind: str, type: TensorType, results: int = 1) -> Block:
    """A region that combines two scalars by a reduction of a kind, and returns the outcome `results` times."""
    a, b, combined = Value(type), Value(type), Value(type)
    return Block([a, b], [Op(COMBINE[kind], [a, b], [combined])], [combined] * results)


def is_zeros(block: Block, value: Value) -> bool:
    """Whether a value is made in a block as zeros, of either sign, everywhere."""
    op = next((op for op in reversed(block.ops) if value in op.results), None)
    if op is None or op.name not in ("constant", "broadcast_in_dim"):
        return False
    return is_zeros(block, op.operands[0]) if op.operands else not op.attrs["value"].array.any()


class Builder:
    """`divergent`: not all devices come through the block equally often."""

    def __init__(self, mesh: Mesh, block: Block, divergent: bool = False):
        self.mesh = mesh
        self.block = block
        self.divergent = divergent
        self.loc: Loc = UNKNOWN_LOC
        self.cause = ""
        self._memo: dict[Any, Value] = {}

    @classmethod
    def beside(cls, mesh: Mesh, op: Op) -> Builder:
        """Of a block of its own, for ops that replace `op` or stand next to it: they come from where it does."""
        b = cls(mesh, Block([], [], []))
        b.loc = op.loc
        return b

    def gives(self, results: list[Value]) -> None:
        """The last op makes these values, instead of new ones."""
        self.block.ops[-1].results = results

    # ------------------------------------------------------------------------------------------ ops
    def op(
        self,
        name: str,
        operands: Sequence[Value],
        type: Type,
        attrs: dict[str, Any] | None = None,
        regions: tuple[Block, ...] = (),
    ) -> Value:
        value = Value(type)
        self.block.ops.append(Op(name, list(operands), [value], attrs, regions, self.loc))
        return value

    def multi(
        self,
        name: str,
        operands: Sequence[Value],
        types: Sequence[Type],
        attrs: dict[str, Any] | None = None,
        regions: tuple[Block, ...] = (),
    ) -> list[Value]:
        values = [Value(t) for t in types]
        self.block.ops.append(Op(name, list(operands), values, attrs, regions, self.loc))
        return values

    def local(self, op: Op, args: Sequence[Value], attrs: dict[str, Any] | None = None) -> list[Value]:
        """The same op on local values, its results in their local types."""
        types = [local_type(v.type, v.layout, self.mesh) for v in op.results if v.layout is not None]
        return self.multi(op.name, args, types, op.attrs if attrs is None else attrs, op.regions)

    def constant(self, value: Any, type: TensorType) -> Value:
        """A constant; a scalar fills the type. Scalars and splats are made once per block."""
        array = np.asarray(value)
        array = array.astype(numpy_dtype(type.dtype)) if array.dtype != numpy_dtype(type.dtype) else array
        if array.shape != ():
            return self.op("constant", [], type, {"value": Dense(array)})
        key = ("constant", array.tobytes(), type)
        hit = self._memo.get(key)
        if hit is None:
            attrs = {"value": Dense(array, splat=type.shape != ())}
            hit = self._memo[key] = self.op("constant", [], type, attrs)
        return hit

    def binary(self, name: str, a: Value, b: Value) -> Value:
        return self.op(name, [a, b], a.type)

    def combine(self, kind: str, a: Value, b: Value) -> Value:
        return self.binary(COMBINE[kind], a, b)

    def compare(self, direction: str, a: Value, b: Value) -> Value:
        attrs = {"comparison_direction": direction, "compare_type": "SIGNED"}
        return self.op("compare", [a, b], TensorType(a.type.shape, PRED), attrs)

    def select(self, pred: Value, a: Value, b: Value) -> Value:
        return self.op("select", [pred, a, b], a.type)

    def broadcast(self, value: Value, shape: tuple[int, ...], dims: tuple[int, ...] = ()) -> Value:
        """broadcast_in_dim: dim i of `value` becomes dim `dims[i]`."""
        type = TensorType(shape, value.type.dtype)
        return self.op("broadcast_in_dim", [value], type, {"broadcast_dimensions": tuple(dims)})

    def reshape(self, value: Value, shape: tuple[int, ...]) -> Value:
        if value.type.shape == shape:
            return value
        return self.op("reshape", [value], TensorType(shape, value.type.dtype))

    def transpose(self, value: Value, order: Sequence[int]) -> Value:
        """Dim i of the result is dim `order[i]` of `value`."""
        if list(order) == list(range(len(order))):
            return value
        shape = tuple(value.type.shape[d] for d in order)
        type = TensorType(shape, value.type.dtype)
        return self.op("transpose", [value], type, {"permutation": tuple(order)})

    def blocks(self, value: Value, dim: int, count: int) -> Value:
        """`value` cut along `dim` into `count` blocks, along a first dim of their own."""
        shape = value.type.shape
        cut = self.reshape(value, (*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]))
        return self.transpose(cut, [dim, *(d for d in range(len(shape) + 1) if d != dim)])

    def side_by_side(self, blocks: Value, dim: int) -> Value:
        """Blocks along a first dim of their own, one behind the other along what is dim `dim` of each."""
        count, *shape = blocks.type.shape
        order = (*range(1, dim + 1), 0, *range(dim + 1, len(shape) + 1))
        whole = (*shape[:dim], count * shape[dim], *shape[dim + 1 :])
        return self.reshape(self.transpose(blocks, order), whole)

    def iota(self, type: TensorType, dim: int) -> Value:
        key = ("iota", type, dim)
        hit = self._memo.get(key)
        if hit is None:
            hit = self._memo[key] = self.op("iota", [], type, {"iota_dimension": dim})
        return hit

    def after(self, first: Value, then: Value) -> tuple[Value, Value]:
        """Both as they are; what reads the second runs after the first is there. XLA's GPU compiler else merges products
        of one operand into a product of what the other operands are together."""
        x, y = self.multi("optimization_barrier", [first, then], [first.type, then.type])
        return x, y

    # ------------------------------------------------------------------------------------------ indices
    def index(self, value: int) -> Value:
        return self.constant(np.int32(value), TensorType((), INDEX))

    def axis_index(self, axes: Axes) -> Value:
        """i32[]: this device's row-major position on `axes`."""
        key = ("axis_index", axes)
        hit = self._memo.get(key)
        if hit is None:
            hit = self._memo[key] = self.op("axis_index", [], TensorType((), INDEX), {"axes": axes})
        return hit

    def offset(self, axes: Axes, block: int) -> Value:
        """i32[]: where this device's block of a dim sharded on `axes` starts."""
        if not axes:
            return self.index(0)
        key = ("offset", axes, block)
        hit = self._memo.get(key)
        if hit is None:
            hit = self._memo[key] = self.binary("multiply", self.axis_index(axes), self.index(block))
        return hit

    def slice(self, value: Value, dim: int, start: int, limit: int) -> Value:
        """Positions start..limit of one dim."""
        shape = value.type.shape
        if start == 0 and limit == shape[dim]:
            return value
        starts = tuple(start if d == dim else 0 for d in range(len(shape)))
        limits = tuple(limit if d == dim else n for d, n in enumerate(shape))
        new = (*shape[:dim], limit - start, *shape[dim + 1 :])
        attrs = {"start_indices": starts, "limit_indices": limits, "strides": (1,) * len(shape)}
        return self.op("slice", [value], TensorType(new, value.type.dtype), attrs)

    def dynamic_slice(self, value: Value, dim: int, start: Value, size: int) -> Value:
        shape = value.type.shape
        zero = self.index(0)
        starts = [start if d == dim else zero for d in range(len(shape))]
        sizes = (*shape[:dim], size, *shape[dim + 1 :])
        return self.op(
            "dynamic_slice", [value, *starts], TensorType(sizes, value.type.dtype), {"slice_sizes": sizes}
        )

    def dynamic_update_slice(self, value: Value, update: Value, dim: int, start: Value) -> Value:
        """`value` with `update` from `start` on in one dim."""
        zero = self.index(0)
        starts = [start if d == dim else zero for d in range(len(value.type.shape))]
        return self.op("dynamic_update_slice", [value, update, *starts], value.type)

    def modulo(self, value: Value, n: int) -> Value:
        return self.binary("remainder", value, self.index(n))

    def pad(self, value: Value, dim: int, low: int, high: int, fill: Any = None, between: int = 0) -> Value:
        """Pads one dim (negative: crops), also between its elements. fill: a scalar value or a number; None is zero."""
        if low == high == between == 0:
            return value
        shape = value.type.shape
        dtype = value.type.dtype
        if not isinstance(fill, Value):
            number = np.zeros((), numpy_dtype(dtype)) if fill is None else fill
            fill = self.constant(number, TensorType((), dtype))
        zero = (0,) * len(shape)
        attrs = {
            "edge_padding_low": (*zero[:dim], low, *zero[dim + 1 :]),
            "edge_padding_high": (*zero[:dim], high, *zero[dim + 1 :]),
            "interior_padding": (*zero[:dim], between, *zero[dim + 1 :]),
        }
        size = shape[dim] + between * max(0, shape[dim] - 1) + low + high
        new = (*shape[:dim], size, *shape[dim + 1 :])
        return self.op("pad", [value, fill], TensorType(new, dtype), attrs)

    def concatenate(self, values: Sequence[Value], dim: int) -> Value:
        if len(values) == 1:
            return values[0]
        shape = values[0].type.shape
        new = (*shape[:dim], sum(v.type.shape[dim] for v in values), *shape[dim + 1 :])
        return self.op("concatenate", values, TensorType(new, values[0].type.dtype), {"dimension": dim})

    # ------------------------------------------------------------------------------------------ padding
    def valid(self, value: Value, layout: Layout, type: Type, dims: Sequence[int]) -> Value | None:
        """i1 of the value's local shape: not padding on any of `dims`; None if nothing there is padding."""
        mask: Value | None = None
        for d in dims:
            axes = layout.dims[d]
            if not axes:
                continue
            block = local_block(layout, d, type.shape[d], self.mesh)
            if block * self.mesh.axes_size(axes) == type.shape[d]:
                continue
            key = ("valid", value.type.shape, d, axes, block, type.shape[d])
            inside = self._memo.get(key)
            if inside is None:
                index_type = TensorType(value.type.shape, INDEX)
                limit = self.binary("subtract", self.index(type.shape[d]), self.offset(axes, block))
                inside = self.compare("LT", self.iota(index_type, d), self.broadcast(limit, value.type.shape))
                self._memo[key] = inside
            mask = inside if mask is None else self.binary("and", mask, inside)
        return mask

    def masked(self, value: Value, layout: Layout, type: Type, dims: Sequence[int], fill: Any) -> Value:
        """`value` with the padding of `dims` replaced by the scalar `fill` (a Value or a number)."""
        mask = self.valid(value, layout, type, dims)
        if mask is None:
            return value
        return self.select(mask, value, self.full(value.type, fill))

    def full(self, type: Type, fill: Any) -> Value:
        """A scalar `fill` (a Value or a number) everywhere."""
        assert isinstance(type, TensorType)
        return self.broadcast(fill, type.shape) if isinstance(fill, Value) else self.constant(fill, type)

    # ------------------------------------------------------------------------------------------ collectives
    def all_reduce(self, value: Value, axes: Axes, kind: str) -> Value:
        return self._collective("all_reduce", value, value.type, axes, kind=kind)

    def all_gather(self, value: Value, axes: Axes, dim: int) -> Value:
        shape = value.type.shape
        n = self.mesh.axes_size(axes)
        new = (*shape[:dim], shape[dim] * n, *shape[dim + 1 :])
        return self._collective("all_gather", value, TensorType(new, value.type.dtype), axes, dim=dim)

    def reduce_scatter(self, value: Value, axes: Axes, dim: int, kind: str) -> Value:
        shape = value.type.shape
        n = self.mesh.axes_size(axes)
        new = (*shape[:dim], shape[dim] // n, *shape[dim + 1 :])
        return self._collective(
            "reduce_scatter", value, TensorType(new, value.type.dtype), axes, dim=dim, kind=kind
        )

    def pad_to_split(self, value: Value, dim: int, block: int, axes: Axes) -> Value:
        """`value` with `dim` padded at the end, to be split by a collective into a `block` per device on `axes`."""
        size = block * self.mesh.axes_size(axes)
        padded = self.pad(value, dim, 0, size - value.type.shape[dim])
        if padded is value:
            return value
        # XLA splits pads: a piece may then be `value` itself, or one of the pieces that made it, as they came by another
        # collective. These lie in memory in other ways than the rest, and XLA refuses its own collective for that.
        return self.op("optimization_barrier", [padded], padded.type)

    def all_to_all(self, value: Value, axes: Axes, split_dim: int, concat_dim: int) -> Value:
        shape = list(value.type.shape)
        n = self.mesh.axes_size(axes)
        shape[split_dim] //= n
        shape[concat_dim] *= n
        type = TensorType(tuple(shape), value.type.dtype)
        return self._collective("all_to_all", value, type, axes, split_dim=split_dim, concat_dim=concat_dim)

    def own_rows(self, value: Value, axes: Axes, rows: int, dim: int) -> Value:
        """This device's part of the dim `rows` of what all devices on `axes` have, side by side along `dim`."""
        block = block_size(value.type.shape[rows], self.mesh.axes_size(axes))
        return self.all_to_all(self.pad_to_split(value, rows, block, axes), axes, rows, dim)

    def shift(self, value: Value, axes: Axes, by: int, wrap: bool = False) -> Value:
        """What the device `by` positions before this one on `axes` holds; zeros where there is none."""
        n = self.mesh.axes_size(axes)
        if by % n == 0 and (wrap or by == 0):
            return value
        if not wrap and abs(by) >= n:
            return self.constant(0, value.type) if isinstance(value.type, TensorType) else value
        return self._collective("collective_permute", value, value.type, axes, shift=by, wrap=wrap)

    def send(self, value: Value, axes: Axes, pairs: Sequence[tuple[int, int]]) -> Value:
        """What the sender of this device's pair (sender, receiver) holds, as positions on `axes`; zeros where there is
        no pair."""
        return self._collective("collective_permute", value, value.type, axes, pairs=tuple(pairs))

    def permute(self, value: Value, axes: Axes, target_axes: Axes) -> Value:
        return self._collective("collective_permute", value, value.type, axes, target_axes=target_axes)

    def _collective(self, name: str, value: Value, type: Type, axes: Axes, **attrs: Any) -> Value:
        if self.divergent and name == "collective_permute":
            return permute_in_groups(self, value, axes, attrs)
        return self.op(name, [value], type, {"axes": axes, **attrs, "cause": self.cause})
