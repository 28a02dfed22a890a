"""dynamic_slice and dynamic_update_slice: dims that are taken whole keep their sharding, the others are whole."""

from __future__ import annotations

from ...ir.graph import Op, Value
from ...ir.layout import PARTIAL_KINDS
from ..builder import Builder
from ..cost import WORK
from .base import Rule, factored, numbered, shape_of


def dynamic_slice(op: Op) -> Rule:
    source = shape_of(op.operands[0])
    dims = numbered(source)
    cut = [d for d in dims if op.attrs["slice_sizes"][d] != source[d]]
    operands = [dims] + [()] * (len(op.operands) - 1)
    work = WORK * 2 * op.results[0].type.nbytes
    return factored(
        operands, [dims], source, _expand_slice, whole=cut, linear=[((0,), PARTIAL_KINDS)], work=work
    )


def _expand_slice(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    layout = op.results[0].layout
    assert layout is not None
    sizes = tuple(
        n if layout.dims[d] else op.attrs["slice_sizes"][d] for d, n in enumerate(args[0].type.shape)
    )
    return b.local(op, args, {**op.attrs, "slice_sizes": sizes})


def dynamic_update_slice(op: Op) -> Rule:
    """Operand and update are partial together. In place: what is written counts, not what stays."""
    source, update = shape_of(op.operands[0]), shape_of(op.operands[1])
    dims = numbered(source)
    cut = [d for d in dims if source[d] != update[d]]
    operands = [dims, dims] + [()] * (len(op.operands) - 2)
    work = WORK * 2 * op.operands[1].type.nbytes
    return factored(operands, [dims], source, _expand, whole=cut, linear=[((0, 1), PARTIAL_KINDS)], work=work)


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    return b.local(op, args)


RULES = {"dynamic_slice": dynamic_slice, "dynamic_update_slice": dynamic_update_slice}
