"""Units: custom calls that stand for functions which run whole on every device, on its blocks.

The passes see a custom call with a sharding rule; what it computes is told by whoever made the program, who can make the
function's ops for blocks of any shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from ..ir.clone import inline_block
from ..ir.graph import Block, Op, Value
from ..ir.layout import Layout, local_type
from ..ir.verify import VerifyError
from .emit.builder import Builder
from .relayout.emission import emit_relayout
from .rules.custom import cleaned


class Local(NamedTuple):
    """What each device runs: a block of local ops, and the layouts that it takes and gives. `fallback`: why it runs on whole
    values though it need not by its rule."""

    body: Block
    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    fallback: str = ""


Localize = Callable[[Op], Local]  # of a call whose operands and results have layouts
Units = Mapping[str, Localize]  # by the calls' backend_config


def unit_of(op: Op, units: Units) -> Localize | None:
    if op.name != "custom_call" or not isinstance(op.attrs.get("backend_config"), str):
        return None
    return units.get(op.attrs["backend_config"])


def expand_unit(b: Builder, op: Op, args: list[Value], local: Local) -> list[Value]:
    """The unit's ops on local values. It may ask for other layouts than propagation chose: they are relaid here."""
    given = [
        _relaid(b, x, v, v.layout, layout)
        for x, v, layout in zip(cleaned(b, op, args), op.operands, local.operands, strict=True)
    ]
    for v, arg in zip(given, local.body.args, strict=True):
        if v.type is not arg.type:
            raise VerifyError(f"{op.name} ({op.loc}) takes {arg.type} on a device, not {v.type}")
    outs = inline_block(local.body, given, b.block.ops)
    for v, out, layout in zip(op.results, outs, local.results, strict=True):
        if out.type is not local_type(v.type, layout, b.mesh):
            raise VerifyError(f"{op.name} ({op.loc}) gives {out.type} on a device for {v.type} {layout}")
    return [
        _relaid(b, x, v, layout, v.layout)
        for x, v, layout in zip(outs, op.results, local.results, strict=True)
    ]


def _relaid(b: Builder, x: Value, v: Value, source: Layout | None, target: Layout | None) -> Value:
    assert source is not None and target is not None
    if source is target:
        return x
    b.cause = f"a function that partitions itself: {source} -> {target}"
    return emit_relayout(b, x, v.type, source, target)
