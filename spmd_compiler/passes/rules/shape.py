"""Ops that move data without computing: any partial passes through them."""

from __future__ import annotations

from ...ir.graph import Op, Value
from ...ir.layout import PARTIAL_KINDS
from ..builder import Builder
from ..cost import WORK
from .base import Rule, factored, numbered, shape_of

ANY_PARTIAL = [((0,), PARTIAL_KINDS)]


def _work(op: Op) -> float:
    return WORK * sum(v.type.nbytes for v in op.operands + op.results)


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    return b.local(op, args)


def broadcast_in_dim(op: Op) -> Rule:
    """A new dim is a factor of the result alone: sharding it costs nothing."""
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    dims = op.attrs["broadcast_dimensions"]
    operand = [d if source[i] == target[d] and source[i] != 1 else None for i, d in enumerate(dims)]
    return factored([operand], [numbered(target)], target, _expand, linear=ANY_PARTIAL, work=_work(op))


def transpose(op: Op) -> Rule:
    shape = shape_of(op.operands[0])
    return factored(
        [numbered(shape)], [op.attrs["permutation"]], shape, _expand, linear=ANY_PARTIAL, work=_work(op)
    )


def reverse(op: Op) -> Rule:
    shape = shape_of(op.operands[0])
    dims = numbered(shape)
    return factored(
        [dims], [dims], shape, _expand, whole=op.attrs["dimensions"], linear=ANY_PARTIAL, work=_work(op)
    )


def concatenate(op: Op) -> Rule:
    """The operands are partial together; the concatenated dim is whole."""
    shape = shape_of(op.results[0])
    dims = numbered(shape)
    n = len(op.operands)
    whole = [op.attrs["dimension"]] if n > 1 else []
    linear = [(tuple(range(n)), PARTIAL_KINDS)]
    return factored([dims] * n, [dims], shape, _expand, whole=whole, linear=linear, work=_work(op))


def slice_(op: Op) -> Rule:
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    dims = numbered(source)
    cut = [d for d in dims if source[d] != target[d]]
    return factored([dims], [dims], source, _expand_slice, whole=cut, linear=ANY_PARTIAL, work=_work(op))


def _expand_slice(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    """Dims that are taken whole are taken whole of the shard."""
    whole, local = op.operands[0].type.shape, args[0].type.shape
    limits = tuple(
        n if n != w else limit for n, w, limit in zip(local, whole, op.attrs["limit_indices"], strict=True)
    )
    return b.local(op, args, {**op.attrs, "limit_indices": limits})


def pad(op: Op) -> Rule:
    source = shape_of(op.operands[0])
    dims = numbered(source)
    low, high, inside = (op.attrs[k] for k in ("edge_padding_low", "edge_padding_high", "interior_padding"))
    padded = [d for d in dims if low[d] or high[d] or (inside[d] and source[d] > 1)]
    linear = [((0, 1), PARTIAL_KINDS)]
    return factored([dims, ()], [dims], source, _expand, whole=padded, linear=linear, work=_work(op))


RULES = {
    "broadcast_in_dim": broadcast_in_dim,
    "transpose": transpose,
    "reverse": reverse,
    "concatenate": concatenate,
    "slice": slice_,
    "pad": pad,
}
