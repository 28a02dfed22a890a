"""annotate: turns the layout constraints that a frontend wrote into the IR's own `relayout` ops."""

from __future__ import annotations

import re

from ..errors import LayoutError
from ..ir.graph import Block, Function, Module, Op, Raw
from ..ir.layout import Layout, check_layout

_DIM = re.compile(r"\{([^{}]*)\}")
_AXIS = re.compile(r'"([^"]+)"(:\(\d+\)\d+)?')


def parse_sdy(text: str, rank: int) -> tuple[Layout, tuple[int, ...]]:
    """(layout, open dims) of `#sdy.sharding<@mesh, [{"a", "b"}, {?}]>`."""
    body = text[text.index("[") + 1 :] if "[" in text else ""
    depth = body.find("]")
    dims_text = _DIM.findall(body[:depth]) if rank else []
    dims = tuple(tuple(n + s for n, s in _AXIS.findall(d)) for d in dims_text)
    opened = tuple(i for i, d in enumerate(dims_text) if "?" in d)
    return Layout(dims or ((),) * rank), opened


def annotate(module: Module) -> Module:
    """A module whose `sharding_constraint` ops are `relayout` ops with the layout on their result."""
    functions = {
        name: Function(name, _block(f.body, module), f.public, f.arg_attrs, f.result_attrs)
        for name, f in module.functions.items()
    }
    return Module(module.mesh, functions, module.name, module.attrs)


def _block(block: Block, module: Module) -> Block:
    return Block(block.args, [_op(op, module) for op in block.ops], block.returns)


def _op(op: Op, module: Module) -> Op:
    regions = tuple(_block(r, module) for r in op.regions)
    sharding = op.attrs.get("sharding")
    if op.name == "sharding_constraint" and isinstance(sharding, Raw):
        value = op.results[0]
        layout, opened = parse_sdy(sharding.text, value.type.rank)
        if len(opened) == value.type.rank and layout.is_replicated and opened:
            return Op("optimization_barrier", op.operands, op.results, {}, (), op.loc)
        try:
            check_layout(layout, value.type, module.mesh)
        except ValueError as error:
            raise LayoutError(f"{op.loc}: with_sharding_constraint: {error}") from None
        value.layout = layout
        return Op("relayout", op.operands, op.results, {"cause": "with_sharding_constraint"}, (), op.loc)
    return Op(op.name, op.operands, op.results, op.attrs, regions, op.loc) if regions else op


