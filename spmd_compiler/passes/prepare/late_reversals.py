"""late_reversals: a reversed array that is reduced, maybe behind elementwise ops, is reduced as it came; of what that leaves the dims
are reversed that are still there. A dim that is reduced in any order need not be reversed at all.

Along a sharded dim a reversal sends all that it reverses, so that it should be little. XLA's simplifier does the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ...ir.graph import Block, Module, Op, Value
from ...ir.optable import ELEMENTWISE, reducer_kind
from ..estimate import read_in
from ..post_order import post_order
from ..simplify import Simplify

Dims = frozenset[int]


@dataclass(frozen=True)
class LateReversals:
    name: ClassVar[str] = "late_reversals"

    def __call__(self, module: Module) -> Module:
        body = module.main.body
        if all(op.name != "reverse" for op in body.walk()):
            return module
        late = dict(_late(body))
        return Simplify()(module.with_body(body.with_ops(late))) if late else module


def _late(block: Block) -> Iterator[tuple[Op, list[Op]]]:
    """The reductions of a block, and of those inside, that a reversal may be behind, with what does the same."""
    uses, makers = Counter(read_in(block)), block.makers()
    for op in block.ops:
        if op.name == "reduce" and (ops := _Reduction(op, makers, uses).late()):
            yield op, ops
        for region in op.regions:
            yield from _late(region)


class _Reduction:
    """A reduction of a block, the ops that make its values, and how often these are read."""

    def __init__(self, op: Op, makers: dict[Value, Op], uses: Counter[Value]):
        self.op, self.makers, self.uses = op, makers, uses
        self.made: list[Op] = []
        self.as_it_came: dict[Value, Value | None] = {}

    def late(self) -> list[Op]:
        """What does the same, with the reversal behind it; nothing if its operands aren't reversed alike."""
        op = self.op
        arrays, inits = op.operands[: len(op.results)], op.operands[len(op.results) :]
        dims = next((d for v in arrays if (d := self.reversed(v))), None)
        reduced = op.attrs["dimensions"]
        if dims is None or (reducer_kind(op.regions[0]) is None and not dims.isdisjoint(reduced)):
            return []
        taken = [self.before(v, dims) for v in arrays]
        if None in taken:
            return []
        kept = [d for d in range(arrays[0].type.rank) if d not in reduced]
        still = tuple(k for k, d in enumerate(kept) if d in dims)
        results = [Value(v.type) for v in op.results] if still else op.results
        again = Op("reduce", [*(v for v in taken if v), *inits], results, op.attrs, op.regions, op.loc)
        turned = zip(results, op.results, strict=True) if still else ()
        reversals = [Op("reverse", [x], [y], {"dimensions": still}, (), op.loc) for x, y in turned]
        return [*self.made, again, *reversals]

    def reversed(self, value: Value) -> Dims | None:
        """The dims along which a value is reversed, maybe before elementwise ops that nothing else reads."""
        found = (frozenset(op.attrs["dimensions"]) for op in self.chain(value) if op.name == "reverse")
        return next(filter(None, found), None)

    def before(self, value: Value, dims: Dims) -> Value | None:
        """The value as it is without the reversal; None if it isn't reversed along these dims alone."""
        for op in self.chain(value):
            (result,) = op.results
            if result in self.as_it_came:
                continue
            if op.name == "reverse":
                came = op.operands[0] if frozenset(op.attrs["dimensions"]) == dims else None
            elif _is_symmetric(op, dims):
                came = result
            else:
                came = self.again(op)
            self.as_it_came[result] = came
        return self.as_it_came.get(value)

    def chain(self, value: Value) -> list[Op]:
        """The elementwise ops that make a value and that nothing else reads, with what they begin with, in order."""

        def needs(op: Op) -> list[Op]:
            return [self.makers[v] for v in op.operands if v in self.makers] if self.passes(op) else []

        op = self.makers.get(value)
        return [] if op is None else [x for x in post_order([op], needs) if len(x.results) == 1]

    def passes(self, op: Op) -> bool:
        """Whether a reversal may be behind an op instead of before it."""
        return op.name in ELEMENTWISE and self.uses[op.results[0]] == 1

    def again(self, op: Op) -> Value | None:
        """An elementwise op on its operands as they are without the reversal."""
        if not self.passes(op):
            return None
        operands = [v if not v.type.rank else self.as_it_came.get(v) for v in op.operands]
        if None in operands:
            return None
        result = Value(op.results[0].type)
        self.made.append(Op(op.name, [v for v in operands if v], [result], op.attrs, (), op.loc))
        return result


def _is_symmetric(op: Op, dims: Dims) -> bool:
    """Whether what an op makes is the same if it is reversed."""
    if op.name == "constant":
        return not op.results[0].type.rank or op.attrs["value"].splat
    if op.name == "iota":
        return op.attrs["iota_dimension"] not in dims
    return op.name == "broadcast_in_dim" and dims.isdisjoint(op.attrs["broadcast_dimensions"])
