"""simplify: inlines calls and the branches that are known to be taken, merges equal pure ops, drops unused ones, and converts
that convert to the type that there is. The values computed stay the same, bit for bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import UnsupportedError
from ..ir.graph import UNKNOWN_LOC, Block, Loc, Module, Op, Value
from ..ir.optable import CALLS, CONTROL_FLOW, is_pure, may_merge, reducer_kind
from ..ir.types import TensorType, numpy_dtype

_INDICES = (TensorType((), "i32"), TensorType((), "i1"))  # what tells a branch


@dataclass(frozen=True)
class Simplify:
    """Leaves only `main`, and the functions that custom calls refer to. Running it twice changes nothing more.
    Raises UnsupportedError for a function that calls itself."""

    name: ClassVar[str] = "simplify"

    def __call__(self, module: Module) -> Module:
        body = _Copier(module).function(module.main.body)
        drop_unused(body)
        out = module.with_body(body)
        called = {
            name
            for op in body.walk()
            if op.name == "custom_call"
            for name in op.attrs.get("called_computations", ())
        }
        out.functions = {n: f for n, f in out.functions.items() if n == "main" or n in called}
        return out


class _Copier:
    """Copies ops into new blocks; a call's callee is copied in its place, and an op that is already there is shared."""

    def __init__(self, module: Module):
        self.module = module
        self.env: dict[Value, Value] = {}
        self.numbers: dict[Value, int] = {}  # integers that are known, in the copy
        self.calling = ["main"]  # the functions that are being copied, outermost first
        self.composite = ""  # the names of the composites that are being copied, as a scope of their ops
        self.caller = UNKNOWN_LOC  # of the calls that are being copied, the innermost that has a line

    def function(self, body: Block) -> Block:
        return self.block(body, {}, keep_layouts=True)

    def block(self, block: Block, known: dict[Any, list[Value]], keep_layouts: bool = False) -> Block:
        """`known`: values that the block may share with those around it."""
        env = self.env
        args = [Value(v.type, v.layout if keep_layouts else None, v.name) for v in block.args]
        env.update(zip(block.args, args, strict=True))
        ops: list[Op] = []
        known = dict(known)
        self.copy(block.ops, ops, known)
        return Block(args, ops, [env.get(v, v) for v in block.returns])

    def copy(self, source: list[Op], ops: list[Op], known: dict[Any, list[Value]]) -> None:
        env = self.env
        for op in source:
            operands = [env.get(v, v) for v in op.operands]
            callee = CALLS.get(op.name)
            if callee is not None:
                name = op.attrs[callee]
                if name in self.calling:
                    raise UnsupportedError(f"{op.loc}: @{name} calls itself; write the recursion as a loop")
                self.calling.append(name)
                body = self.module.functions[name].body
                env.update(zip(body.args, operands, strict=True))
                outer = self.caller, self.composite
                self.caller = op.loc if op.loc.file else self.caller
                if op.name == "composite":
                    self.composite += f"{op.attrs['name']}/"
                self.copy(body.ops, ops, known)
                self.caller, self.composite = outer
                self.calling.pop()
                env.update(zip(op.results, [env.get(v, v) for v in body.returns], strict=True))
                continue
            taken = self.taken(op, operands)
            if taken is not None:
                self.copy(taken.ops, ops, known)
                env.update(zip(op.results, [env.get(v, v) for v in taken.returns], strict=True))
                continue
            if op.name == "convert" and op.results[0].type == operands[0].type:
                env[op.results[0]] = operands[0]
                continue
            key = self.key(op, operands)
            hit = known.get(key) if key is not None else None
            if hit is not None:
                env.update(zip(op.results, hit, strict=True))
                continue
            results = [Value(v.type, v.layout, v.name) for v in op.results]
            shared = known_inside(op, known) if op.regions else {}
            regions = tuple(self.block(r, shared) for r in op.regions)
            env.update(zip(op.results, results, strict=True))
            loc = op.loc
            if (
                not loc.file and self.caller.file
            ):  # JAX's own functions are not the user's lines, their calls are
                loc = Loc(self.caller.file, self.caller.line, loc.scope, self.caller.column)
            if self.composite:
                loc = loc._replace(scope=self.composite + loc.scope)
            ops.append(Op(op.name, operands, results, op.attrs, regions, loc))
            if key is not None:
                known[key] = results
            self.note(op, operands, results)

    def note(self, op: Op, operands: list[Value], results: list[Value]) -> None:
        """Records a result that is a known integer."""
        if not results or results[0].type not in _INDICES:
            return
        if op.name == "constant":
            self.numbers[results[0]] = int(op.attrs["value"].array)
        elif op.name in ("convert", "clamp") and all(v in self.numbers for v in operands):
            low, number, high = (self.numbers[operands[i % len(operands)]] for i in range(3))
            number = np.array(min(max(number, low), high))
            self.numbers[results[0]] = int(number.astype(numpy_dtype(results[0].type.dtype)))

    def taken(self, op: Op, operands: list[Value]) -> Block | None:
        """The branch that runs, if that is known. An index out of range takes the last one."""
        if op.name not in ("case", "if"):
            return None
        index, last = self.numbers.get(operands[0]), len(op.regions) - 1
        if index is None:
            return op.regions[0] if not last else None
        if op.name == "if":
            index = not index
        return op.regions[index if 0 <= index <= last else last]

    def key(self, op: Op, operands: list[Value]) -> Any:
        """Equal keys, equal values; None for ops that must stay apart."""
        if not op.results or not may_merge(op):
            return None
        layout = op.results[0].layout
        if op.regions:
            kind = reducer_kind(op.regions[0])
            if kind is None or len(op.regions) > 1:
                return None
            return (op.name, tuple(operands), tuple(op.attrs.items()), op.results[0].type, kind)
        return (op.name, tuple(operands), tuple(op.attrs.items()), op.results[0].type, layout)


def known_inside(op: Op, known: dict[Any, list[Value]]) -> dict[Any, list[Value]]:
    """What the blocks of an op share with the code around it. Constants stay inside, where a loop's trip count is read
    from them; reducers are closed, and what a manual region holds is per device."""
    if op.name not in CONTROL_FLOW:
        return {}
    return {key: values for key, values in known.items() if key[0] != "constant"}


def drop_unused(block: Block, live: set[Value] | None = None) -> None:
    """Removes pure ops that nothing uses, in a block that no one else holds; `live`: what enclosing blocks keep."""
    live = live if live is not None else set()
    live.update(block.returns)
    kept: list[Op] = []
    for op in reversed(block.ops):
        if not any(v in live for v in op.results) and is_pure(op):
            continue
        live.update(op.operands)
        for region in op.regions:
            drop_unused(region, live)
        kept.append(op)
    block.ops[:] = reversed(kept)
