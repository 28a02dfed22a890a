"""merge_moves: chains of slices, pads, concatenations and transposes become one op each, pads join the windows that read them,
updates of known windows become pads, lookups at known places slices, lookups of rows by their own number batching dims, and
dims of one element don't come and go.

What a chain moves between devices is then fetched once, straight from where the data lies: `pad(x)[:-1]` needs a row of a
neighbour, while `pad(x)` alone would shift every block. The values stay the same, bit for bit, but for the order in which is added
up what is scattered to one place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from ...ir.graph import Block, Module, Op, Value, constant
from ...ir.types import TensorType
from ..simplify import drop_unused
from . import known_lookups, known_updates, pad_windows, row_lookups, unit_moves
from .chains import (
    FEW,
    Defs,
    fill_of,
    pad_of_pad,
    pad_of_slice,
    repeated,
    reverse_of_slice,
    slice_of_joined,
    slice_of_pad,
    slice_of_slice,
    slice_of_splice,
    transpose_of_transpose,
)


@dataclass(frozen=True)
class MergeMoves:
    """Introduces `splice`, the concatenation along `dimension` of positions [starts[i], limits[i]) of operand i,
    `dynamic_roll`, which starts at a traced place of an operand and goes around, and `padded_select_and_scatter`, which
    pads its first operand with its last one, and crops the result."""

    name: ClassVar[str] = "merge_moves"

    def __call__(self, module: Module) -> Module:
        merger = _Merger()
        body = merger.block(module.main.body)
        if not merger.changed:
            return module
        drop_unused(body)
        return module.with_body(body)


_IDENTITIES = {"slice", "pad", "reshape", "reverse", "broadcast_in_dim", "concatenate", "transpose"}


class _Merger:
    """Copies blocks; ops that nothing concerns are shared with the original."""

    def __init__(self) -> None:
        self.defs: Defs = {}
        self.env: dict[Value, Value] = {}
        self.changed = False

    def block(self, block: Block) -> Block:
        ops: list[Op] = []
        for op in block.ops:
            self.op(op, ops)
        return Block(block.args, ops, [self.env.get(v, v) for v in block.returns])

    def op(self, op: Op, ops: list[Op]) -> None:
        op = self.renamed(op)
        if op.regions and op.name != "manual_computation":  # what that holds is per device already
            regions = tuple(self.block(r) for r in op.regions)
            op = Op(op.name, op.operands, op.results, op.attrs, regions, op.loc)
        while new := _merged(op, self.defs):
            self.changed = True
            *before, op = new
            for x in before:
                self.op(x, ops)
            op = self.renamed(op)
        if op.name in _IDENTITIES and _is_identity(op):
            self.env[op.results[0]] = op.operands[0]
            self.changed = True
            return
        ops.append(op)
        for v in op.results:
            self.defs[v] = op

    def renamed(self, op: Op) -> Op:
        env = self.env
        if not any(v in env for v in op.operands):
            return op
        return Op(op.name, [env.get(v, v) for v in op.operands], op.results, op.attrs, op.regions, op.loc)


def _merged(op: Op, defs: Defs) -> list[Op] | None:
    """The ops that take an op's place, of which the last one makes its results; None if it stays."""
    return next((found for merge in _MERGES.get(op.name, ()) if (found := merge(op, defs))), None)


def _is_identity(op: Op) -> bool:
    if op.results[0].type is not op.operands[0].type:
        return False
    at = op.attrs
    if op.name == "pad":
        return not any(at["edge_padding_low"]) and not any(at["edge_padding_high"])
    if op.name == "reverse":
        return all(op.results[0].type.shape[d] <= 1 for d in at["dimensions"])
    if op.name == "broadcast_in_dim":
        return at["broadcast_dimensions"] == tuple(range(op.results[0].type.rank))
    if op.name == "transpose":
        return at["permutation"] == tuple(range(op.results[0].type.rank))
    return True


def _fills_to_pad(op: Op, defs: Defs) -> list[Op] | None:
    """A concatenation with constants at its ends is a pad."""
    d = op.attrs["dimension"]
    fills = [fill_of(v, defs) for v in op.operands]
    inner = [i for i, f in enumerate(fills) if f is None]
    if not inner or len(inner) == len(fills):
        return None
    first, last = inner[0], inner[-1]
    ends = [f for f in (*fills[:first], *fills[last + 1 :]) if f is not None]
    if not ends or any(f.tobytes() != ends[0].tobytes() for f in ends):
        return None
    kept = op.operands[first : last + 1]
    result = op.results[0]
    assert isinstance(result.type, TensorType)
    fill = constant(TensorType((), result.type.dtype), ends[0])
    new: list[Op] = [fill]
    value = kept[0]
    if len(kept) > 1:
        shape = result.type.shape
        size = sum(v.type.shape[d] for v in kept)
        value = Value(TensorType((*shape[:d], size, *shape[d + 1 :]), result.type.dtype))
        new.append(Op("concatenate", kept, [value], op.attrs, (), op.loc))

    def at(x: int) -> tuple[int, ...]:
        return tuple(x if i == d else 0 for i in range(result.type.rank))

    attrs = {
        "edge_padding_low": at(sum(v.type.shape[d] for v in op.operands[:first])),
        "edge_padding_high": at(sum(v.type.shape[d] for v in op.operands[last + 1 :])),
        "interior_padding": at(0),
    }
    return [*new, Op("pad", [value, fill.results[0]], [result], attrs, (), op.loc)]


def _to_splice(op: Op, defs: Defs) -> list[Op] | None:
    """A concatenation of parts of one value (a roll, a periodic boundary), unless it holds little of it."""
    d = op.attrs["dimension"]
    parts: list[tuple[Value, int, int]] = []
    for v in op.operands:
        parts += _parts(v, d, defs)
    source = parts[0][0]
    # of a value that is doubled again and again they are exponentially many
    most = max(FEW, len(op.operands))
    if not 1 < len(parts) <= most or any(v is not source for v, _, _ in parts):
        return None
    if 2 * sum(limit - start for _, start, limit in parts) < source.type.shape[d]:
        return None
    attrs: dict[str, Any] = {
        "dimension": d,
        "starts": tuple(start for _, start, _ in parts),
        "limits": tuple(limit for _, _, limit in parts),
    }
    return [Op("splice", [source] * len(parts), op.results, attrs, (), op.loc)]


def _parts(value: Value, d: int, defs: Defs) -> list[tuple[Value, int, int]]:
    """(source, start, limit): what a value is made of along one dim."""
    op = defs.get(value)
    if op is not None and op.name == "slice":
        at = op.attrs
        shape = op.operands[0].type.shape
        if at["strides"][d] == 1 and all(
            i == d or n == m for i, (n, m) in enumerate(zip(shape, value.type.shape, strict=True))
        ):
            return [(op.operands[0], at["start_indices"][d], at["limit_indices"][d])]
    if op is not None and op.name == "splice" and op.attrs["dimension"] == d:
        return list(zip(op.operands, op.attrs["starts"], op.attrs["limits"], strict=True))
    if op is not None and op.name == "concatenate" and op.attrs["dimension"] == d and len(op.operands) <= FEW:
        return [part for v in op.operands for part in _parts(v, d, defs)]
    return [(value, 0, value.type.shape[d])]


def _roll(op: Op, defs: Defs) -> list[Op] | None:
    """As much as there is of a value that is there twice: a roll."""
    twice = defs.get(op.operands[0])
    if twice is None or twice.name != "splice" or len(twice.operands) != 2:
        return None
    d, source = twice.attrs["dimension"], twice.operands[0]
    size = source.type.shape[d]
    if twice.attrs["starts"] != (0, 0) or twice.attrs["limits"] != (size, size):
        return None
    if source.type is not op.results[0].type:
        return None
    return [Op("dynamic_roll", [source, op.operands[1 + d]], op.results, {"dimension": d}, (), op.loc)]


_MERGES: dict[str, tuple[Callable[[Op, Defs], list[Op] | None], ...]] = {
    "slice": (slice_of_slice, slice_of_pad, slice_of_joined, slice_of_splice, pad_windows.cropped_scatter),
    "pad": (pad_of_slice, pad_of_pad),
    "reshape": (repeated, unit_moves.reshape_of_units),
    "reduce": (unit_moves.reduce_of_units,),
    "broadcast_in_dim": (unit_moves.broadcast_of_units,),
    "reverse": (reverse_of_slice,),
    "transpose": (transpose_of_transpose,),
    "concatenate": (_fills_to_pad, _to_splice),
    "reduce_window": (pad_windows.reduce_window,),
    "convolution": (pad_windows.convolution,),
    "dynamic_slice": (_roll,),
    "dynamic_update_slice": (known_updates.dynamic_update_slice,),
    "gather": (known_lookups.gather, row_lookups.gather),
    "scatter": (known_updates.scatter, known_lookups.scatter, row_lookups.scatter),
}
