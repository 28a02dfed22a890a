"""Copies of regions: fresh values, so that no value is defined twice."""

from __future__ import annotations

from collections.abc import Mapping

from .graph import Block, Op, Value


def clone_regions(regions: tuple[Block, ...], env: Mapping[Value, Value] | None = None) -> tuple[Block, ...]:
    """Copies regions; `env` replaces values of the enclosing blocks."""
    return tuple(clone_block(region, env) for region in regions)


def clone_block(block: Block, env: Mapping[Value, Value] | None = None) -> Block:
    inner = dict(env or {})
    args = [Value(v.type, v.layout, v.name) for v in block.args]
    inner.update(zip(block.args, args, strict=True))
    ops: list[Op] = []
    for op in block.ops:
        results = [Value(v.type, v.layout, v.name) for v in op.results]
        operands = [inner.get(v, v) for v in op.operands]
        ops.append(Op(op.name, operands, results, op.attrs, clone_regions(op.regions, inner), op.loc))
        inner.update(zip(op.results, results, strict=True))
    return Block(args, ops, [inner.get(v, v) for v in block.returns])
