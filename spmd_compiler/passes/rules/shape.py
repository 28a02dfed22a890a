"""Ops that move data without computing: any partial passes through them."""

from __future__ import annotations

from ...ir.graph import Op
from ...ir.layout import PARTIAL_KINDS
from ..cost import Work
from ..emit.builder import Builder
from .base import Rule, factored, numbered, shape_of

ANY_PARTIAL = [((0,), PARTIAL_KINDS)]


def broadcast_in_dim(op: Op) -> Rule:
    """A new dim is a factor of the result alone: sharding it costs nothing."""
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    dims = op.attrs["broadcast_dimensions"]
    operand = [d if source[i] == target[d] and source[i] != 1 else None for i, d in enumerate(dims)]
    return factored(
        [operand], [numbered(target)], target, Builder.local, linear=ANY_PARTIAL, work=Work.over(op)
    )


def transpose(op: Op) -> Rule:
    shape = shape_of(op.operands[0])
    return factored(
        [numbered(shape)],
        [op.attrs["permutation"]],
        shape,
        Builder.local,
        linear=ANY_PARTIAL,
        work=Work.over(op),
    )


RULES = {"broadcast_in_dim": broadcast_in_dim, "transpose": transpose}
