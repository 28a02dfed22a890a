"""Makes a failing program smaller while it fails in the same way."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from ...ir.clone import inline_block
from ...ir.graph import Block, Function, Module, Op, Value
from ...ir.layout import Layout
from ...ir.mesh import Mesh
from ...ir.optable import CALLS, CONTROL_FLOW
from .check import failure, kind


def shrink(module: Module, seconds: float = 60.0, judge: Callable[[Module], str] = failure) -> Module:
    """The smallest program found within `seconds` that fails in the same way: `judge(module)` says how."""
    wanted = kind(judge(module))
    end = time.monotonic() + seconds
    again = True
    while again and time.monotonic() < end:
        again = False
        for candidate in _smaller(module):
            if time.monotonic() > end:
                break
            if kind(judge(candidate)) == wanted:
                module, again = candidate, True
                break
    return module


def _smaller(module: Module) -> Iterator[Module]:
    main, body = module.main, module.main.body
    returns = list(zip(body.returns, main.result_attrs, strict=True))
    yield from _pruned(module)
    if len(returns) > 1:
        for pair in returns:
            yield _with(module, body.args, body.ops, [pair])
    for op in reversed(body.ops[:-1]):  # something earlier is returned instead
        for v in op.results:
            if v not in body.returns:
                yield _with(module, body.args, body.ops, [(v, {})])
    for op in body.ops:  # a value that is made becomes an argument
        rest = [o for o in body.ops if o is not op]
        fresh = [
            Value(v.type, Layout.replicated(v.type.rank), f"y{len(body.args) + i}")
            for i, v in enumerate(op.results)
        ]
        yield _replaced(
            module, [*body.args, *fresh], rest, returns, dict(zip(op.results, fresh, strict=True))
        )
    for v in body.args:  # an argument loses its layout
        if v.layout is not None and v.layout.axes:
            plain = Value(v.type, Layout.replicated(v.type.rank), v.name)
            args = [plain if a is v else a for a in body.args]
            yield _replaced(module, args, body.ops, returns, {v: plain})
    for i, (v, attrs) in enumerate(returns):
        if attrs:
            yield _with(module, body.args, body.ops, [*returns[:i], (v, {}), *returns[i + 1 :]])
    for op in body.ops:
        if op.name in ("relayout", "optimization_barrier"):
            rest = [o for o in body.ops if o is not op]
            yield _replaced(module, body.args, rest, returns, dict(zip(op.results, op.operands, strict=True)))
    for k, op in enumerate(body.ops):  # what an op holds runs in its place, once
        for block in _held(module, op):
            ops = body.ops[:k]
            made = inline_block(block, op.operands if block.args else [], ops)
            ops += body.ops[k + 1 :]
            yield _replaced(module, body.args, ops, returns, dict(zip(op.results, made, strict=True)))


def _held(module: Module, op: Op) -> list[Block]:
    """Blocks that can stand for an op of control flow or a call."""
    if op.name in CALLS:
        return [module.functions[op.attrs[CALLS[op.name]]].body]
    return list(op.result_regions) if op.name in CONTROL_FLOW else []


def _pruned(module: Module) -> Iterator[Module]:
    """Without what nothing uses, if there is such."""
    body = module.main.body
    live = set(body.returns)
    ops: list[Op] = []
    for op in reversed(body.ops):
        if not live.isdisjoint(op.results):
            ops.append(op)
            live.update(op.operands)
            for region in op.regions:
                live.update(region.returns)
                for inner in region.walk():
                    live.update(inner.operands)
                    live.update(v for r in inner.regions for v in r.returns)
    args = [v for v in body.args if v in live]
    if len(ops) < len(body.ops) or len(args) < len(body.args):
        yield _with(module, args, ops[::-1], list(zip(body.returns, module.main.result_attrs, strict=True)))


def _with(module: Module, args: list[Value], ops: list[Op], returns: list[tuple[Value, dict]]) -> Module:
    body = Block(list(args), list(ops), [v for v, _ in returns])
    functions = {"main": Function("main", body, True, None, [attrs for _, attrs in returns])}
    waiting = [body]
    while waiting:
        for op in waiting.pop().walk():
            name = op.attrs.get(CALLS.get(op.name, ""))
            if name is not None and name not in functions:
                functions[name] = module.functions[name]
                waiting.append(functions[name].body)
    return Module(Mesh(module.mesh.axes), functions)


def _replaced(
    module: Module,
    args: list[Value],
    ops: list[Op],
    returns: list[tuple[Value, dict]],
    to: dict[Value, Value],
) -> Module:
    def block(b: Block) -> Block:
        return Block(b.args, [one(o) for o in b.ops], [to.get(v, v) for v in b.returns])

    def one(op: Op) -> Op:
        operands = [to.get(v, v) for v in op.operands]
        return Op(op.name, operands, op.results, op.attrs, tuple(block(r) for r in op.regions), op.loc)

    return _with(module, args, [one(o) for o in ops], [(to.get(v, v), a) for v, a in returns])
