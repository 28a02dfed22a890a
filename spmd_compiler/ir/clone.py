"""Copies of regions: fresh values, so that no value is defined twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from .graph import Block, Op, Value


def clone_regions(regions: tuple[Block, ...], env: Mapping[Value, Value] | None = None) -> tuple[Block, ...]:
    """Copies regions; `env` replaces values of the enclosing blocks."""
    return tuple(clone_block(region, env) for region in regions)


def clone_block(block: Block, env: Mapping[Value, Value] | None = None) -> Block:
    """A copy with values of its own; `env` replaces values of the enclosing blocks."""
    args = [Value(v.type, v.layout, v.name) for v in block.args]
    out = Block(args, [], [])
    out.returns = inline_block(block, args, out.ops, env)
    return out


def inline_block(
    block: Block, args: Sequence[Value], ops: list[Op], env: Mapping[Value, Value] | None = None
) -> list[Value]:
    """Appends copies of a block's ops to `ops`, with `args` for its arguments, and returns what the block returns."""
    inner = dict(env or {})
    inner.update(zip(block.args, args, strict=True))
    for op in block.ops:
        results = [Value(v.type, v.layout, v.name) for v in op.results]
        operands = [inner.get(v, v) for v in op.operands]
        ops.append(Op(op.name, operands, results, op.attrs, clone_regions(op.regions, inner), op.loc))
        inner.update(zip(op.results, results, strict=True))
    return [inner.get(v, v) for v in block.returns]
