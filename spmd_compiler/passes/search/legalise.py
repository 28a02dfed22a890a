"""Writes an assignment into the IR: layouts on values, and a `relayout` op wherever a user wants another layout."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...ir.graph import Block, Loc, Op, Value
from ...ir.layout import Layout
from ...ir.optable import ASKED

if TYPE_CHECKING:
    from .engine import Engine


def legalise(engine: Engine, body: Block, wanted: list[Any]) -> Block:
    """A copy of the function body in which every op has its operands in the layouts that its choice demands."""
    returns = [
        w if w is not None else engine.free_result(v.type, engine.layouts[v])
        for v, w in zip(body.returns, wanted, strict=True)
    ]
    return _Writer(engine).block(body, returns, {}, "the result leaves")


class _Writer:
    def __init__(self, engine: Engine):
        self.engine = engine
        self.parents: dict[Value, dict[Layout, Layout]] = {}

    def block(
        self, block: Block, returns: list[Layout], outer: dict[tuple[Value, Layout], Value], reason: str
    ) -> Block:
        env = dict(outer)
        out = Block([], [], [])
        for value in block.args:
            layout = self.engine.layouts[value]
            new = Value(value.type, layout, value.name)
            env[value, layout] = new
            out.args.append(new)
        for op in block.ops:
            self.op(op, out, env)
        last = block.ops[-1].loc if block.ops else Loc()
        out.returns = [
            self.get(v, layout, out, env, reason, last)
            for v, layout in zip(block.returns, returns, strict=True)
        ]
        return out

    def op(self, op: Op, out: Block, env: dict[tuple[Value, Layout], Value]) -> None:
        engine = self.engine
        choice = engine.choices[op]
        if op.name == "relayout":
            cause = op.attrs.get("cause", ASKED)
            value = self.get(op.operands[0], choice.demands[0], out, env, cause, op.loc)
            env[op.results[0], choice.results[0]] = value
            return
        operands = [
            self.get(v, layout, out, env, f"{op.name} needs it", op.loc)
            for v, layout in zip(op.operands, choice.demands, strict=True)
        ]
        results = [
            Value(v.type, layout, v.name) for v, layout in zip(op.results, choice.results, strict=True)
        ]
        for value, new in zip(op.results, results, strict=True):
            assert new.layout is not None
            env[value, new.layout] = new
        out.ops.append(Op(op.name, operands, results, op.attrs, self.regions(op, env), op.loc))

    def regions(self, op: Op, env: dict[tuple[Value, Layout], Value]) -> tuple[Block, ...]:
        engine = self.engine
        if op.name == "while":
            carries = list(engine.choices[op].demands)
            condition, body = op.regions
            return (
                self.block(condition, [Layout.replicated(0)], env, "the loop's condition needs it"),
                self.block(body, carries, env, "the loop carries it"),
            )
        if op.name in ("case", "if"):
            layouts = list(engine.choices[op].results)
            return tuple(self.block(r, layouts, env, "the branches agree on it") for r in op.regions)
        return op.regions

    def get(
        self,
        value: Value,
        layout: Layout,
        out: Block,
        env: dict[tuple[Value, Layout], Value],
        reason: str,
        loc: Loc,
    ) -> Value:
        """`value` in `layout`, made if it isn't there."""
        hit = env.get((value, layout))
        if hit is not None:
            return hit
        new = Value(value.type, layout)
        op = self.engine.remade.get(value)
        if op is not None and not layout.partial:
            operands = [self.get(v, Layout.replicated(0), out, env, reason, loc) for v in op.operands]
            again = Op(op.name, operands, [new], op.attrs, (), op.loc)
            if self.engine.book.rule(op).covers(again, self.engine.mesh):  # no rule cuts a dim of size 1
                out.ops.append(again)
                env[value, layout] = new
                return new
        source = self.get(value, self.parent(value, layout), out, env, reason, loc)
        out.ops.append(Op("relayout", [source], [new], {"cause": reason}, (), loc))
        env[value, layout] = new
        return new

    def parent(self, value: Value, layout: Layout) -> Layout:
        """From which layout to make another one: the plan that serves all users of the value together."""
        made = self.parents.get(value)
        if made is None:
            engine = self.engine
            _, how = engine.costs.distribute(value.type, engine.layouts[value], engine.wanted(value))
            made = self.parents[value] = {target: source for source, target in how}
        return made.get(layout, self.engine.layouts[value])
