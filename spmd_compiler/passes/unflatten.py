"""unflatten: what is laid out flat only in between keeps its dims: `x.reshape(-1, n) @ w` reshaped back, `x.ravel() @ y.ravel()`.

A reshape that merges dims is free on one device. Of a value that is cut along several of them, or along a minor one, the blocks
are no blocks of it laid out flat: all its elements would have to be exchanged, and back behind the reshape that splits the
dim again, though rows are only computed with one by one, or summed. So where a dim that was merged is split again as it was,
summed over, or contracted with one merged alike, all ops in between are done on the value's own dims.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Block, Module, Op, Value
from ..ir.types import TensorType
from .chains import Defs
from .simplify import drop_unused
from .split_dims import Along, Sizes, Split, along, parts_of, split_type, with_split

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
    return op.name == "reshape" and any(_merged_of(op, d) for d in range(op.results[0].type.rank))


def _merged_of(op: Op, dim: int) -> Sizes | None:
    """The sizes of those that a dim of a reshape's result is made of; None if it isn't made of several."""
    shape, flat = op.operands[0].type.shape, op.results[0].type.shape
    parts = parts_of(shape, flat, dim) if 0 not in shape else None
    return tuple([shape[d] for d in parts]) if parts and len(parts) > 1 else None


def _block(block: Block) -> Block:
    plan = _Plan(block)
    ops: list[Op] = []
    values: dict[Value, Value] = {}  # what is split, by what it was

    def given(value: Value, split: Split, op: Op) -> Value:
        if not split:
            return value
        if plan.splits.get(value) == split:
            return values[value]
        return reshaped(value, Value(split_type(value.type, split)), op)

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
            if wants := self._asked(op):
                self._ask(op, wants)
            self.defs.update(dict.fromkeys(op.results, op))
            for v in op.results:
                if isinstance(v.type, TensorType) and (merged := self._merged_in(op, v.type.rank)):
                    self._merged[v] = merged

    def _merged_in(self, op: Op, rank: int) -> Split:
        found: dict[int, Sizes] = {}
        for d in range(rank) if op.name == "reshape" or any(v in self._merged for v in op.operands) else ():
            sizes = _merged_of(op, d) if op.name == "reshape" else None
            for i, k in () if sizes else _along(op, d) or ():
                sizes = sizes or self._merged.get(op.operands[i], {}).get(k)
            if sizes:
                found[d] = sizes
        return found

    def _asked(self, op: Op) -> list[Split]:
        """How an op that ends what is flat would have its operands; [] if it ends nothing."""
        if op.name == "reduce":
            operands = op.operands[: len(op.operands) // 2]
            pairs = [[(i, d) for i in range(len(operands))] for d in op.attrs["dimensions"]]
        elif op.name == "dot_general":
            pairs = [[(0, a), (1, b)] for a, b in zip(*op.attrs["contract"], strict=True)]
        elif op.name == "reshape":
            pairs = [[(0, d)] for d in self._merged.get(op.operands[0], ())]
        else:
            return []
        wants: list[dict[int, Sizes]] = [{} for _ in op.operands]
        for pair in pairs:
            sizes = next((s for i, d in pair if (s := self._merged.get(op.operands[i], {}).get(d))), None)
            if sizes and (op.name != "reshape" or sizes == _split_by(op, pair[0][1])):
                for i, d in pair:
                    wants[i][d] = sizes
        return list(wants) if any(wants) else []

    def _ask(self, op: Op, wants: Sequence[Split]) -> None:
        """Has all change that has to, so that an op gets its operands so, if that is possible."""
        splits, changed = dict[Value, Split](), dict[Op, list[Split]]()
        todo = [(op, wants)]
        while todo:
            user, wants = todo.pop()
            before = changed.get(user) or self.wants.get(user) or [{}] * len(wants)
            both = [_joined(a, b) for a, b in zip(before, wants, strict=True)]
            if None in both or len(changed) > MOST:
                return
            changed[user] = [x or {} for x in both]
            for v, want in zip(user.operands, changed[user], strict=True):
                have = splits.get(v) or self.splits.get(v) or {}
                if (split := _joined(have, want)) == have:
                    continue
                maker = self.defs.get(v)
                needed = None if maker is None or split is None else _needed(maker, split)
                if maker is None or split is None or needed is None:
                    return
                splits.update(dict.fromkeys(maker.results, split))
                todo.append((maker, needed))
        self.splits.update(splits)
        self.wants.update(changed)


def _along(op: Op, dim: int) -> Along | None:
    """As `along`, also through a reshape that leaves the dim as it is."""
    if op.name != "reshape":
        return along(op, dim)
    shape, size = op.operands[0].type.shape, op.results[0].type.shape[dim]
    parts = parts_of(shape, op.results[0].type.shape, dim)
    return [(0, parts[0])] if parts and len(parts) == 1 and shape[parts[0]] == size else None


def _split_by(reshape: Op, dim: int) -> Sizes | None:
    """The sizes of those that a reshape makes of a dim of its operand."""
    shape = reshape.results[0].type.shape
    parts = parts_of(shape, reshape.operands[0].type.shape, dim)
    return None if parts is None else tuple([shape[d] for d in parts])


def _joined(a: Split, b: Split) -> Split | None:
    """All that is split in one or the other; None if they disagree."""
    return None if any(a.get(d, sizes) != sizes for d, sizes in b.items()) else {**a, **b}


def _needed(op: Op, split: Split) -> list[Split] | None:
    """How an op would have its operands, so that its results are split; None if it can't give these so."""
    needed: list[dict[int, Sizes]] = [{} for _ in op.operands]
    for d, sizes in split.items():
        if op.name == "reshape" and _merged_of(op, d) == sizes:
            continue
        found = _along(op, d)
        if found is None or any(needed[i].setdefault(k, sizes) != sizes for i, k in found):
            return None
    return list(needed)
