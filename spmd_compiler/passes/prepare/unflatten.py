"""unflatten: what is laid out flat only in between keeps its dims: `x.reshape(-1, n) @ w` reshaped back, `x.ravel() @ y.ravel()`.

A reshape that merges dims is free on one device. Of a value that is cut along several of them, or along a minor one, the blocks
are no blocks of it laid out flat: all its elements would have to be exchanged, and back behind the reshape that splits the
dim again, though rows are only computed with one by one, or summed. So where a dim that was merged is split again as it was,
summed over, or contracted with one merged alike, all ops in between are done on the value's own dims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from operator import mul
from typing import ClassVar

from ...ir.graph import Block, Module, Op, Value
from ...ir.types import TensorType
from ..simplify import drop_unused
from .chains import Defs
from .split_dims import Sizes, Split, along, split_type, with_split

MOST = 200  # ops that are changed for one that asks for it


@dataclass(frozen=True)
class Unflatten:
    name: ClassVar[str] = "unflatten"

    def __call__(self, module: Module) -> Module:
        if not any(_merges(op) for op in module.main.body.walk()):
            return module
        body = _block(module.main.body)
        drop_unused(body)
        return module.with_body(body)


def _merges(op: Op) -> bool:
    """Whether a reshape makes one dim of several."""
    return op.name == "reshape" and bool(_merged(op, {}))


def _block(block: Block) -> Block:
    plan = _Plan(block)
    ops: list[Op] = []
    values: dict[Value, Value] = {}  # what is split, by what it was

    def given(value: Value, split: Split, op: Op) -> Value:
        if not split:
            return value
        if plan.splits.get(value) == split:
            return values[value]
        return reshaped(values.get(value, value), Value(split_type(value.type, split)), op)

    def reshaped(value: Value, result: Value, op: Op) -> Value:
        ops.append(Op("reshape", [value], [result], {}, (), op.loc))
        return result

    for op in block.ops:
        split = plan.splits.get(op.results[0], {}) if op.results else {}
        wants = plan.wants.get(op)
        if wants is None:
            if op.regions and op.name != "manual_computation":  # what that holds is per device already
                op = Op(op.name, op.operands, op.results, op.attrs, tuple(map(_block, op.regions)), op.loc)
            ops.append(op)
            continue
        operands = [given(v, s, op) for v, s in zip(op.operands, wants, strict=True)]
        results = [Value(split_type(v.type, split)) for v in op.results] if split else op.results
        if op.name != "reshape":
            ops += with_split(op, operands, wants, split, results)
        elif operands[0].type is results[0].type and split:
            results = operands
        else:
            reshaped(operands[0], results[0], op)
        if split:
            values.update(zip(op.results, results, strict=True))
            for old, new in zip(op.results, results, strict=True):
                reshaped(new, old, op)
    return Block(block.args, ops, block.returns)


class _Plan:
    """splits: of values. wants: how ops that change want their operands."""

    def __init__(self, block: Block):
        self.defs: Defs = {}
        self.splits: dict[Value, Split] = {}
        self.wants: dict[Op, list[Split]] = {}
        self._merged: dict[Value, Split] = {}  # the dims of values that are made of several somewhere before
        for op in block.ops:
            if asked := self._asked(op):
                together = [
                    {d: s for want in wants for d, s in want.items()} for wants in zip(*asked, strict=True)
                ]
                if not self._ask(op, together):
                    for wants in asked:
                        self._ask(op, wants)
            self.defs.update(dict.fromkeys(op.results, op))
            if merged := self._merged_in(op):
                self._merged.update(dict.fromkeys(op.results, merged))

    def _merged_in(self, op: Op) -> Split:
        """Of the results of an op, which have one shape if any dim goes on from its operands."""
        if op.name == "reshape":
            return _merged(op, self._merged.get(op.operands[0], {}))
        found: dict[int, Sizes] = {}
        if self._merged.keys().isdisjoint(op.operands) or not op.results:
            return found
        type = op.results[0].type
        for d in range(type.rank if isinstance(type, TensorType) else 0):
            for i, k in along(op, d) or ():
                if sizes := self._merged.get(op.operands[i], {}).get(k):
                    found.setdefault(d, sizes)
        return found

    def _asked(self, op: Op) -> list[list[Split]]:
        """For each dim of which an op ends that it is flat, how it would have its operands."""
        if op.name == "reduce":
            operands = op.operands[: len(op.operands) // 2]
            pairs = [[(i, d) for i in range(len(operands))] for d in op.attrs["dimensions"]]
        elif op.name == "dot_general":
            pairs = [[(0, a), (1, b)] for a, b in zip(*op.attrs["contract"], strict=True)]
        elif op.name == "reshape":
            pairs = [[(0, d)] for d in self._merged.get(op.operands[0], ())]
        else:
            return []
        asked: list[list[Split]] = []
        for pair in pairs:
            sizes = next((s for i, d in pair if (s := self._merged.get(op.operands[i], {}).get(d))), None)
            if sizes and (op.name != "reshape" or _splits(op, pair[0][1], sizes)):
                places = dict(pair)
                asked.append([{places[i]: sizes} if i in places else {} for i in range(len(op.operands))])
        return asked

    def _ask(self, op: Op, wants: Sequence[Split]) -> bool:
        """Has all change that has to, so that an op gets its operands so, if that is possible; whether it is."""
        splits, changed = dict[Value, Split](), dict[Op, list[Split]]()
        todo = [(op, wants)]
        while todo:
            user, wants = todo.pop()
            before = changed.get(user) or self.wants.get(user) or [{}] * len(wants)
            both = [_joined(a, b) for a, b in zip(before, wants, strict=True)]
            if None in both or len(changed) > MOST:
                return False
            changed[user] = [x or {} for x in both]
            for v, want in zip(user.operands, changed[user], strict=True):
                have = splits.get(v) or self.splits.get(v) or {}
                if (split := _joined(have, want)) == have:
                    continue
                maker = self.defs.get(v)
                needed = None if maker is None or split is None else _needed(maker, split)
                if maker is None or split is None or needed is None:
                    return False
                splits.update(dict.fromkeys(maker.results, split))
                todo.append((maker, needed))
        self.splits.update(splits)
        self.wants.update(changed)
        return True


def _cuts(sizes: Sequence[int]) -> list[int]:
    """Where dims begin and end in the order in which elements are laid out: what lies outside of them, as a product."""
    return list(accumulate(sizes, mul, initial=1))


def _pieces(cuts: Iterable[int], begin: int, end: int) -> Sizes | None:
    """The sizes of the pieces in which cuts leave a dim; None if it isn't cut, or not into whole numbers."""
    ends = [begin, *sorted({c for c in cuts if begin < c < end}), end]
    whole = all(b % a == 0 for a, b in pairwise(ends))
    return tuple([b // a for a, b in pairwise(ends)]) if whole and len(ends) > 2 else None


def _merged(reshape: Op, before: Split) -> Split:
    """The dims of a reshape's result that are made of several, with the sizes of these; `before`: those of its operand."""
    shape, flat = reshape.operands[0].type.shape, reshape.results[0].type.shape
    if 0 in shape:
        return {}
    cuts = _cuts([n for d, size in enumerate(shape) for n in before.get(d, (size,))])
    ends, there = _cuts(flat), set(cuts)
    found = {d: _pieces(cuts, ends[d], ends[d + 1]) for d in range(len(flat))}
    return {d: x for d, x in found.items() if x and ends[d] in there and ends[d + 1] in there}


def _splits(reshape: Op, dim: int, sizes: Sizes) -> bool:
    """Whether a reshape splits a dim of its operand that is made of several, of these sizes, between some of them."""
    begin = _cuts(reshape.operands[0].type.shape)[dim]
    inside = {c for c in _cuts(reshape.results[0].type.shape) if begin < c < begin * prod(sizes)}
    return bool(inside) and inside.issubset([begin * c for c in _cuts(sizes)])


def _needed_by(reshape: Op, split: Split) -> list[Split] | None:
    """As `_needed`: dims of the operand are cut where the result's are."""
    ends = _cuts(reshape.results[0].type.shape)
    cuts = {ends[d] * c for d, sizes in split.items() for c in _cuts(sizes)}
    needed: dict[int, Sizes] = {}
    for d, (begin, end) in enumerate(pairwise(_cuts(reshape.operands[0].type.shape))):
        if any(begin < c < end for c in cuts.difference(ends)):
            pieces = _pieces(cuts.union(ends), begin, end)
            if pieces is None:
                return None
            needed[d] = pieces
    return [needed]


def _joined(a: Split, b: Split) -> Split | None:
    """All that is split in one or the other; None if they disagree."""
    found = dict(a)
    for d, sizes in b.items():
        pieces = _pieces({*_cuts(a.get(d, sizes)), *_cuts(sizes)}, 1, prod(sizes))
        if pieces is None:
            return None
        found[d] = pieces
    return found


def _needed(op: Op, split: Split) -> list[Split] | None:
    """How an op would have its operands, so that its results are split; None if it can't give these so."""
    if op.name == "reshape":
        return _needed_by(op, split)
    needed: list[dict[int, Sizes]] = [{} for _ in op.operands]
    for d, sizes in split.items():
        found = along(op, d)
        if found is None or any(needed[i].setdefault(k, sizes) != sizes for i, k in found):
            return None
    return list(needed)
