"""Calls that XLA keeps: what it must not fuse with what is around it, nor run before what it is given is there."""

from __future__ import annotations

from collections.abc import Sequence

from ...ir.clone import inline_block
from ...ir.graph import Block, Function, Loc, Module, Op, Raw, Value

_KEPT = Raw('{inlineable = "false"}')  # XLA's word for it


def kept_call(name: str, block: Block, results: Sequence[Value], module: Module, loc: Loc) -> Op:
    """A call, of what the block reads as its arguments, for `results`, of what it returns. `name`: how that of the function begins,
    which the module, that no one else holds, gets."""
    args = [Value(v.type) for v in block.args]
    body = Block(args, [], [])
    body.returns = inline_block(block, args, body.ops)
    name = f"{name}_{len(module.functions)}"
    module.functions[name] = Function(name, body, public=False)
    attrs = {"callee": name, "mhlo.frontend_attributes": _KEPT}
    return Op("call", [*block.args], [*results], attrs, (), loc)
