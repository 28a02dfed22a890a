"""Lookups along one dim at places that are known, as NumPy arrays as indices and resizing to the nearest make them: slices, reversed
or with a stride, joined and repeated, where few of these make it up. So devices find what they need at home and with their neighbours,
while nobody knows which rows a lookup takes. And what is summed up there, as gradients are, is reduced and padded instead.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...ir.graph import Block, Op, Value, constant
from ...ir.optable import COMBINE, reducer_kind
from ...ir.types import TensorType
from ..emit.builder import combiner, identity_value
from .chains import FEW, Defs
from .known_values import known_integers


class _Run(NamedTuple):
    """Places start, start + step, …"""

    start: int
    step: int
    length: int

    @property
    def low(self) -> int:
        return min(self.start, self.start + self.step * (self.length - 1))


class _Places(NamedTuple):
    """What an index array looks up along a dim of an operand: some runs, each place of which comes `times` times in a row. shape: of the
    index array, without the dim of the index itself."""

    dim: int
    runs: list[_Run]
    times: int
    shape: tuple[int, ...]


def gather(op: Op, defs: Defs) -> list[Op] | None:
    """Places out of bounds are those at the ends."""
    at, (x, indices) = op.attrs, op.operands
    sizes = tuple(1 if d in at["start_index_map"] else n for d, n in enumerate(x.type.shape))
    if tuple(at["slice_sizes"]) != sizes or at.get("operand_batching_dims"):
        return None
    places = _places(op, x, indices, at["start_index_map"], at["collapsed_slice_dims"], defs, clamps=True)
    if places is None:
        return None
    made, dim, shape = _Made(op), places.dim, x.type.shape
    value = made.joined([made.run(x, dim, run) for run in places.runs], dim)
    if places.times > 1:
        wide = (*value.type.shape[: dim + 1], places.times, *shape[dim + 1 :])
        dims = tuple(d + (d > dim) for d in range(len(shape)))
        value = made.op("broadcast_in_dim", [value], wide, {"broadcast_dimensions": dims})
    value = made.op("reshape", [value], (*shape[:dim], *places.shape, *shape[dim + 1 :]), {})
    order = _order(at["offset_dims"], dim, op.results[0].type.rank)
    return made.ending(op, "transpose", [value], permutation=tuple(np.argsort(order).tolist()))


def scatter(op: Op, defs: Defs) -> list[Op] | None:
    """One that combines by a reduction, at places within bounds of which none comes again later."""
    at, kind = op.attrs, reducer_kind(op.regions[0])
    if len(op.operands) != 3 or kind is None or at.get("input_batching_dims"):
        return None
    x, indices, update = op.operands
    mapped = at["scatter_dims_to_operand_dims"]
    windows = [n for d, n in enumerate(x.type.shape) if d not in mapped]
    if windows != [update.type.shape[d] for d in at["update_window_dims"]]:
        return None
    places = _places(op, x, indices, mapped, at["inserted_window_dims"], defs, clamps=False)
    if places is None or len(places.runs) > 1:
        return None
    made, dim, shape, (run,) = _Made(op), places.dim, x.type.shape, places.runs
    order = _order(at["update_window_dims"], dim, update.type.rank)
    turned = tuple(update.type.shape[d] for d in order)
    value = made.op("transpose", [update], turned, {"permutation": order})
    value = made.op("reshape", [value], (*shape[:dim], run.length, places.times, *shape[dim + 1 :]), {})
    scalar = TensorType((), made.dtype)
    neutral = made.constant(scalar, identity_value(kind, scalar.dtype))
    value = made.op(
        "reduce",
        [value, neutral],
        (*shape[:dim], run.length, *shape[dim + 1 :]),
        {"dimensions": (dim + 1,)},
        (combiner(kind, scalar),),
    )
    if run.step < 0:
        value = made.op("reverse", [value], value.type.shape, {"dimensions": (dim,)})

    def along(n: int) -> tuple[int, ...]:
        return tuple(n if d == dim else 0 for d in range(len(shape)))

    step = abs(run.step)
    behind = shape[dim] - run.low - step * (run.length - 1) - 1
    sides = along(run.low), along(behind), along(step - 1)
    names = "edge_padding_low", "edge_padding_high", "interior_padding"
    value = made.op("pad", [value, neutral], shape, dict(zip(names, sides, strict=True)))
    return made.ending(op, COMBINE[kind], [x, value])


class _Made:
    """Ops that stand for a lookup."""

    def __init__(self, op: Op):
        self.ops: list[Op] = []
        self.dtype, self.loc = op.results[0].type.dtype, op.loc

    def op(
        self,
        name: str,
        operands: list[Value],
        shape: tuple[int, ...],
        attrs: dict[str, Any],
        regions: tuple[Block, ...] = (),
    ) -> Value:
        self.ops.append(Op(name, operands, [Value(TensorType(shape, self.dtype))], attrs, regions, self.loc))
        return self.ops[-1].result

    def ending(self, op: Op, name: str, operands: list[Value], **attrs: Any) -> list[Op]:
        """The ops, the last of which makes what `op` does."""
        return [*self.ops, Op(name, operands, op.results, attrs, (), self.loc)]

    def constant(self, type: TensorType, value: Any) -> Value:
        self.ops.append(constant(type, value))
        return self.ops[-1].result

    def run(self, x: Value, dim: int, run: _Run) -> Value:
        starts, strides = [0] * x.type.rank, [1] * x.type.rank
        limits, shape = [*x.type.shape], [*x.type.shape]
        starts[dim], strides[dim], shape[dim] = run.low, abs(run.step), run.length
        limits[dim] = run.low + abs(run.step) * (run.length - 1) + 1
        cut = {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": tuple(strides)}
        value = self.op("slice", [x], tuple(shape), cut)
        return self.op("reverse", [value], tuple(shape), {"dimensions": (dim,)}) if run.step < 0 else value

    def joined(self, parts: list[Value], dim: int) -> Value:
        if len(parts) == 1:
            return parts[0]
        shape = parts[0].type.shape
        size = sum(v.type.shape[dim] for v in parts)
        return self.op("concatenate", parts, (*shape[:dim], size, *shape[dim + 1 :]), {"dimension": dim})


def _order(windows: tuple[int, ...], dim: int, rank: int) -> tuple[int, ...]:
    """The dims of what is looked up, those of the lookups in the place of the operand's dim."""
    lookups = [d for d in range(rank) if d not in windows]
    return (*windows[:dim], *lookups, *windows[dim:])


def _places(
    op: Op, x: Value, indices: Value, mapped: tuple[int, ...], gone: tuple[int, ...], defs: Defs, clamps: bool
) -> _Places | None:
    """None if they are not known, not few runs, or out of bounds and not clamped."""
    if len(mapped) != 1 or tuple(gone) != tuple(mapped):
        return None
    (dim,), vector = mapped, op.attrs["index_vector_dim"]
    shape = tuple(n for d, n in enumerate(indices.type.shape) if d != vector)
    known, last = known_integers(indices, defs), x.type.shape[dim] - 1
    if known is None or not known.size:
        return None
    places = known.reshape(-1).astype(np.int64)
    bounded = places.clip(0, last)
    if not clamps and not np.array_equal(places, bounded):
        return None
    changes = np.flatnonzero(np.diff(bounded)) + 1
    lengths = np.diff(np.concatenate(([0], changes, [bounded.size])))
    times = int(lengths[0]) if (lengths == lengths[0]).all() else 1
    runs = _runs(bounded[::times].tolist())
    return _Places(dim, runs, times, shape) if runs else None


def _runs(places: list[int]) -> list[_Run]:
    """Those that make up the places, in turn; none at all if there are more than a few."""
    runs: list[_Run] = []
    i = 0
    while i < len(places):
        step = places[i + 1] - places[i] if i + 1 < len(places) else 1
        count = 1
        while step and i + count < len(places) and places[i + count] - places[i + count - 1] == step:
            count += 1
        if count == 2 and abs(step) > 1 and len(places) > 2:
            count = 1  # the next one may begin a longer run
        runs.append(_Run(places[i], step if count > 1 else 1, count))
        i += count
        if len(runs) > FEW:
            return []
    return runs
