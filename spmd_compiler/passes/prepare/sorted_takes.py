"""sorted_takes: `x[argsort(k)]` sorts x along with k.

A sort whose operand numbers the positions along the sorted dim returns a permutation. Where an array of the same shape is
looked up by that, it joins the sort as one more operand: the exchange that sorts brings its elements to their places too,
while lookups anywhere would need the whole of it. The attribute `positions` tells which operand of a sort numbers positions;
these need not be sent besides those that make a sort stable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ...ir.clone import clone_block
from ...ir.graph import Block, Module, Op, Value
from ...ir.types import TensorType
from ..simplify import drop_unused
from .chains import Defs
from .row_lookups import holds, is_below_zero, row_of


@dataclass(frozen=True)
class SortedTakes:
    name: ClassVar[str] = "sorted_takes"

    def __call__(self, module: Module) -> Module:
        if not any(op.name == "sort" for op in module.main.body.walk()):
            return module
        body = _block(module.main.body, {})
        drop_unused(body)
        return module.with_body(body)


def _block(block: Block, outer: Defs) -> Block:
    defs: Defs = dict(outer)
    places: dict[Value, int] = {}  # of the ops that define values
    takes: dict[Op, list[Op]] = {}  # per sort the gathers that join it
    for i, op in enumerate(block.ops):
        for v in op.results:
            defs[v], places[v] = op, i
        if op.name == "sort" and _positions(op, defs) is not None:
            takes[op] = []
        elif op.name == "gather":
            sort = _order(op, defs)
            if sort in takes and places.get(op.operands[0], -1) < places[sort.results[0]]:
                takes[sort].append(op)
    gone = {op for joining in takes.values() for op in joining}
    ops: list[Op] = []
    for op in block.ops:
        if op in takes:
            ops.append(_joined(op, defs, takes[op]))
        elif op.regions and op.name != "manual_computation":  # what that holds is per device already
            regions = tuple(_block(r, defs) for r in op.regions)
            ops.append(Op(op.name, op.operands, op.results, op.attrs, regions, op.loc))
        elif op not in gone:
            ops.append(op)
    return Block(block.args, ops, block.returns)


def _positions(sort: Op, defs: Defs) -> int | None:
    """The operand of a stable sort that numbers positions, and that the comparator does not look at."""
    if not sort.attrs.get("is_stable") or len(sort.operands) < 2:
        return None
    region = sort.regions[0]
    used = {v for op in region.walk() for v in op.operands}.union(region.returns)
    for i, value in enumerate(sort.operands):
        if row_of(value, defs) == sort.attrs["dimension"] and used.isdisjoint(region.args[2 * i : 2 * i + 2]):
            return i
    return None


def _order(gather: Op, defs: Defs) -> Op | None:
    """The sort by whose positions a gather takes each element of an array of the same shape."""
    at, shape = gather.attrs, gather.operands[0].type.shape
    value, rank = _source(gather.operands[1], defs), len(shape)
    sort = None if value is None else defs.get(value)
    if sort is None or sort.name != "sort" or value is None or value.type.shape != shape:
        return None
    d = sort.attrs["dimension"]
    others = tuple(i for i in range(rank) if i != d)
    if (
        sort.results.index(value) != _positions(sort, defs)
        or at["index_vector_dim"] != rank
        or at["offset_dims"]
        or at["start_index_map"] != (d,)
        or at["collapsed_slice_dims"] != (d,)
        or tuple(at.get("operand_batching_dims", ())) != others
        or tuple(at.get("start_indices_batching_dims", ())) != others
    ):
        return None
    return sort


def _source(value: Value, defs: Defs) -> Value | None:
    """What an index array is made of, if it is that but for its type, dims of size 1 at the end, and what is done about
    negative indices: positions are none."""
    op = defs.get(value)
    if op is None or op.name == "sort":
        return value
    inner = op.operands[0] if op.operands else value
    shape = inner.type.shape
    if op.name == "select":
        pred, _, other = op.operands
        return _source(other, defs) if is_below_zero(pred, other, defs) else None
    if op.name == "convert":
        return _source(inner, defs) if holds(value.type.dtype, max(shape, default=0)) else None
    grown = value.type.shape in (shape, (*shape, 1))
    if op.name == "reshape" and grown:
        return _source(inner, defs)
    if (
        op.name == "broadcast_in_dim"
        and grown
        and op.attrs["broadcast_dimensions"] == tuple(range(len(shape)))
    ):
        return _source(inner, defs)
    return None


def _joined(sort: Op, defs: Defs, takes: list[Op]) -> Op:
    region = clone_block(sort.regions[0])
    operands, results = list(sort.operands), list(sort.results)
    for take in takes:
        type = take.operands[0].type
        assert isinstance(type, TensorType)
        operands.append(take.operands[0])
        results.append(take.results[0])
        region.args += [Value(TensorType((), type.dtype)) for _ in range(2)]
    attrs = {**sort.attrs, "positions": _positions(sort, defs)}
    return Op(sort.name, operands, results, attrs, (region,), sort.loc)
