"""gather, with all its dimension numbers.

Dims of the index array that enumerate lookups, window dims taken whole and batching dims are parallel. A dim of the
operand that is indexed may be sharded too: each device looks up what is in its block, and the result is partial.
"""

from __future__ import annotations

from ...ir.graph import Op, Value
from ...ir.layout import PARTIAL_KINDS, local_block
from ...ir.types import TensorType
from ..cost import Work
from ..emit.builder import Builder, identity_value
from .base import Rule, factored, shape_of
from .lookups import clamped, index_dims, localise, take_apart
from .slicing import owner_kind


class Factors:
    """Numbers factors while a rule's dims are laid out."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1


def window_dims(op: Op, rank: int, gone: str, batching: str) -> list[int]:
    """The operand dims that the result (or the updates) have, in order."""
    missing = {*op.attrs[gone], *op.attrs.get(batching, ())}
    return [d for d in range(rank) if d not in missing]


def gather(op: Op) -> Rule:
    at = op.attrs
    operand, indices, result = (shape_of(v) for v in (op.operands[0], op.operands[1], op.results[0]))
    sizes = at["slice_sizes"]
    f = Factors()
    operand_dims: list[int | None] = [None] * len(operand)
    lookup_dims: list[int | None] = [None] * len(indices)
    result_dims: list[int | None] = [None] * len(result)
    lookups = index_dims(op, len(indices))
    for d, r in zip(lookups, [r for r in range(len(result)) if r not in at["offset_dims"]], strict=True):
        lookup_dims[d] = result_dims[r] = f.new(indices[d])
    for o, d in zip(
        at.get("operand_batching_dims", ()), at.get("start_indices_batching_dims", ()), strict=True
    ):
        operand_dims[o] = lookup_dims[d]
    window = window_dims(op, len(operand), "collapsed_slice_dims", "operand_batching_dims")
    for d, r in zip(window, at["offset_dims"], strict=True):
        if sizes[d] == operand[d]:
            operand_dims[d] = result_dims[r] = f.new(operand[d])
    kind = owner_kind(op.results[0].type.dtype)
    reduced: dict[int, str] = {}
    for d in at["start_index_map"]:
        if kind is not None and 0 < sizes[d] < operand[d]:
            factor = operand_dims[d] = f.new(operand[d])
            reduced[factor] = kind
    return factored(
        [operand_dims, lookup_dims],
        [result_dims],
        f.sizes,
        _expand,
        reduced=reduced,
        linear=[((0,), PARTIAL_KINDS)],
        work=Work(2 * op.results[0].type.nbytes),
    )


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    at = dict(op.attrs)
    source, layout = op.operands[0], op.operands[0].layout
    assert layout is not None
    operand, indices = args
    shape, sizes = source.type.shape, list(at["slice_sizes"])
    cut = [(k, d) for k, d in enumerate(at["start_index_map"]) if layout.dims[d] and sizes[d] != shape[d]]
    for d, n in enumerate(shape):
        if layout.dims[d] and sizes[d] == n:
            sizes[d] = operand.type.shape[d]
    if not cut:
        return b.local(op, args, {**at, "slice_sizes": tuple(sizes)})
    lookups = take_apart(b, op, indices, at.get("start_indices_batching_dims", ()))
    limits = [shape[d] - at["slice_sizes"][d] for d in at["start_index_map"]]
    lookups = lookups._replace(parts=[clamped(b, p, n) for p, n in zip(lookups.parts, limits, strict=True)])
    window = window_dims(op, len(shape), "collapsed_slice_dims", "operand_batching_dims")
    offset_dims = list(at["offset_dims"])
    taken = dict(zip(window, offset_dims, strict=True))
    for k, d in sorted(cut, key=lambda x: taken.get(x[1], -1)):
        if d in taken:  # a window becomes lookups of its positions, whose results have the same place
            place = taken[d]
            before = sum(r < place for r in offset_dims)
            lookups = lookups.unrolled(b, k, sizes[d], place - before)
            offset_dims.remove(place)
            sizes[d] = 1
    mask: Value | None = None
    for k, d in cut:
        block = local_block(layout, d, shape[d], b.mesh)
        lookups.parts[k], inside = localise(b, lookups.parts[k], b.offset(layout.dims[d], block), block)
        mask = inside if mask is None else b.binary("and", mask, inside)
    assert mask is not None
    at |= {
        "offset_dims": tuple(offset_dims),
        "collapsed_slice_dims": tuple(sorted({*at["collapsed_slice_dims"], *(d for _, d in cut)})),
        "start_indices_batching_dims": tuple(lookups.batching),
        "index_vector_dim": len(lookups.shape),
        "slice_sizes": tuple(sizes),
        "indices_are_sorted": False,
    }
    (result,) = b.local(op, [operand, lookups.joined(b)], at)
    type = result.type
    assert isinstance(type, TensorType)
    found = tuple(r for r in range(type.rank) if r not in offset_dims)
    nothing = b.constant(identity_value("sum", type.dtype), type)
    return [b.select(b.broadcast(mask, type.shape, found), result, nothing)]


RULES = {"gather": gather}
