"""Dims that are summed over together are one, wherever they lie one behind the other, between the reshapes that make and end them.

What `x.reshape(-1, n)` lays out flat keeps its dims while layouts are searched (`unflatten`). On a device, whose blocks are laid out
flat as well as any, they are merged again: XLA for CPUs sees no softmax behind a product over several dims, and keeps what it makes
twice, and sums along short dims take longer. Attention in windows, or to all places of an image, takes 0.65 to 0.8 of the time so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, cast

from networkx.utils import UnionFind

from ...ir.graph import Block, Dense, Op, Value
from ...ir.optable import ELEMENTWISE
from ...ir.types import TensorType
from ..estimate import read_in
from ..prepare.split_dims import along
from .renumber import RENUMBERED, Places, renumber

# per dim of a value what it is in an op: dims of one label are the same; None: it must stay as it is
Labels = list[object]


class Pair(NamedTuple):
    """A dim and the one behind it."""

    value: Value
    dim: int


def merge_dims(block: Block) -> None:
    """Changes a block that no one else holds, and the blocks inside."""
    for op in block.ops:
        for region in op.regions:
            merge_dims(region)
    summed = [pair for op in block.ops for pair in _summed(op)]
    if summed and (merged := _merged(block, summed)):
        made = {v: Value(_merged_type(v, places)) for v, places in merged.items()}
        block.ops[:] = [new for op in block.ops for new in _with_merged(op, merged, made)]


def _with_merged(op: Op, merged: Mapping[Value, Places], made: Mapping[Value, Value]) -> list[Op]:
    """The op on what values became."""
    if made.keys().isdisjoint((*op.operands, *op.results)):
        return [op]
    if op.name == "transpose":
        return _turned(op, merged, made)
    operands, results = ([made.get(v, v) for v in values] for values in (op.operands, op.results))
    attrs = op.attrs
    if op.name == "constant":
        attrs = {**attrs, "value": _reshaped(attrs["value"], results[0])}
    elif op.name in RENUMBERED:
        attrs = renumber(op, lambda v: merged.get(v) or _own(v))
    return [Op(op.name, operands, results, attrs, op.regions, op.loc)]


def _turned(op: Op, merged: Mapping[Value, Places], made: Mapping[Value, Value]) -> list[Op]:
    """A transpose of dims of which those are one that it leaves together: what it brings together becomes one behind it, what it
    takes apart is that before it."""
    (operand,), (result,) = op.operands, op.results
    at = merged.get(operand) or _own(operand)
    behind = {pair.dim + 1 for pair, others in _pairs_in(op) if others and pair.value is operand}
    places = _places(operand, {d for d in behind if at[d] == at[d - 1]})
    attrs = renumber(op, lambda v: places)
    type = _merged_type(operand, places)
    turned = type.with_shape(tuple(type.shape[d] for d in attrs["permutation"]))
    value, ops = made.get(operand, operand), list[Op]()
    for name, to, given in (
        ("reshape", type, {}),
        ("transpose", turned, attrs),
        ("reshape", made.get(result, result).type, {}),
    ):
        if name == "transpose" or to != value.type:
            ops.append(Op(name, [value], [Value(to)], given, loc=op.loc))
            value = ops[-1].results[0]
    ops[-1].results = [made.get(result, result)]
    return ops


def _summed(op: Op) -> list[Pair]:
    """What an op sums over."""
    dims = {*op.attrs["dimensions"]} if op.name == "reduce" else set()
    return [pair for v in op.operands for pair in _pairs(v) if {pair.dim, pair.dim + 1} <= dims]


def _merged(block: Block, summed: Sequence[Pair]) -> dict[Value, Places]:
    """Of the values some of whose dims become one, where their dims are then. summed: the pairs that are to be one."""
    alike, fixed = UnionFind(), set[Pair]()
    inside = (v for op in block.ops for region in op.regions for v in read_in(region))
    for v in (*block.args, *block.returns, *inside):
        fixed.update(_pairs(v))
    for op in block.ops:
        for pair, others in _pairs_in(op):
            alike.union(pair, *others)
            if not others and op.name != "transpose":
                fixed.add(pair)
    kept, merged = ({alike[pair] for pair in pairs} for pairs in (fixed, summed))
    merged -= kept
    # the other dims too, of products and sums over such
    for op in block.ops:
        if op.name in ("dot_general", "reduce"):
            found = {alike[pair] for pair, _ in _pairs_in(op)}
            if not found.isdisjoint(merged):
                merged |= found - kept
    behind: dict[Value, set[int]] = {}
    for pair in list(alike):
        if alike[pair] in merged:
            behind.setdefault(pair.value, set()).add(pair.dim + 1)
    return {v: _places(v, dims) for v, dims in behind.items()}


def _pairs(v: Value) -> Iterator[Pair]:
    for d in range(len(_own(v)) - 1):
        yield Pair(v, d)


def _pairs_in(op: Op) -> Iterator[tuple[Pair, list[Pair]]]:
    """Per pair in operands and results those that are the same one; none where it must stay as it is."""
    values, labels = [*op.operands, *op.results], _labels(op)
    behind = [dict(pairwise(x)) for x in labels]
    for v, of in zip(values, labels, strict=True):
        for pair in _pairs(v):
            first, second = of[pair.dim : pair.dim + 2]
            there = [k for k, x in enumerate(labels) if first in x or second in x]
            if None in (first, second) or any(behind[k].get(first) != second for k in there):
                yield pair, []
            else:
                yield pair, [Pair(values[k], labels[k].index(first)) for k in there]


def _places(v: Value, behind: set[int]) -> Places:
    """Where dims are, of which some are one with the dim before them."""
    at, places = -1, dict[int, int]()
    for d in _own(v):
        at += d not in behind
        places[d] = at
    return places


def _own(v: Value) -> Places:
    return {d: d for d in range(v.type.rank if isinstance(v.type, TensorType) else 0)}


def _labels(op: Op) -> list[Labels]:
    """Of the dims of operands and results."""
    values = [*op.operands, *op.results]
    if op.name in ("constant", "reshape"):
        return [[(i, d) for d in _own(v)] for i, v in enumerate(values)]
    labels: list[Labels] = [[None] * len(_own(v)) for v in values]
    if op.name not in ELEMENTWISE and op.name not in RENUMBERED:
        return labels
    for d in _own(op.results[0]):
        found = along(op, d)
        # one element that is made many stays a dim of its own
        if found is None or (not found and d in op.attrs.get("broadcast_dimensions", ())):
            continue
        for i, k in (*found, *((i, d) for i in range(len(op.operands), len(values)))):
            labels[i][k] = d
    # what is summed over
    if op.name == "reduce":
        for of in labels[: len(op.operands) // 2]:
            for d in op.attrs["dimensions"]:
                of[d] = ("sum", d)
    elif op.name == "dot_general":
        for a, b in zip(*op.attrs["contract"], strict=True):
            labels[0][a] = labels[1][b] = ("sum", a)
    return labels


def _merged_type(v: Value, places: Places) -> TensorType:
    type = cast(TensorType, v.type)
    shape: dict[int, int] = {}
    for d, at in places.items():
        shape[at] = shape.get(at, 1) * type.shape[d]
    return type.with_shape(tuple(shape.values()))


def _reshaped(data: Dense, v: Value) -> Dense:
    return data if data.splat else Dense(data.array.reshape(v.type.shape))
