"""chlo.scan, which JAX 0.12 lowers cumulative sums, products, maxima and minima to on GPUs: the other dims are batch. Along a
sharded dim devices exchange their totals, as for windows that are whole prefixes (`cumulative`)."""

from __future__ import annotations

from ...ir.graph import Block, Op, Value
from ...ir.optable import reducer_kind
from ...ir.types import TensorType, Type
from ..cost import Work
from ..emit.builder import Builder, combiner, identity_value
from .base import R, Rule, Strategy, factored, numbered, shape_of
from .cumulative import Beyond, totals_price


def scan(op: Op) -> Rule | None:
    """None for scans that are not known to be associative, and those of several arrays."""
    kind = scan_kind(op)
    if kind is None:
        return None
    shape, d = shape_of(op.operands[0]), op.attrs["dimension"]
    dims = numbered(shape)
    carry = (*dims[:d], *dims[d + 1 :])
    price = totals_price(d)

    def exchange(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        return price(n, ins[:1], outs[:1])

    def expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
        return _expand(b, op, args, kind)

    return factored(
        [dims, carry],
        [dims, carry],
        shape,
        expand,
        whole=[d],
        linear=[((0, 1), (kind,))],
        extra=[Strategy((d, R), (d, kind), d, exchange)] if shape[d] > 1 else [],
        work=Work.over(op, 2),
    )


def scan_kind(op: Op) -> str | None:
    """What a scan of one array combines by ("sum", "max", ...), if it does nothing else."""
    (body,) = op.regions
    if len(op.operands) != 2 or len(body.returns) != 2 or body.returns[0] is not body.returns[1]:
        return None
    if not op.attrs.get("is_associative"):
        return None
    return reducer_kind(Block(body.args, body.ops, body.returns[:1]))


def _expand(b: Builder, op: Op, args: list[Value], kind: str) -> list[Value]:
    source = op.operands[0]
    layout, d = source.layout, op.attrs["dimension"]
    value, init = args
    assert layout is not None and isinstance(source.type, TensorType)
    axes = layout.dims[d]
    if not axes:
        return _local(b, op, value, init, kind)
    before = not op.attrs.get("is_reverse", False)
    scalar = TensorType((), source.type.dtype)
    # XLA's GPU compiler makes a loop of a scan, unless it starts from the constant that JAX has and nobody reads its end
    neutral = b.constant(0 if kind == "sum" else identity_value(kind, scalar.dtype), scalar)
    value = b.masked(value, layout, source.type, (d,), neutral)
    shape = init.type.shape
    result, _ = _local(b, op, value, b.broadcast(neutral, shape), kind)
    last = result.type.shape[d] - 1 if before else 0
    total = b.slice(result, d, last, last + 1)
    (others,) = Beyond(b, (combiner(kind, scalar),), [neutral], d, axes, before).reduced([total])
    start = b.combine(kind, init, b.reshape(others, shape))
    dims = (*range(d), *range(d + 1, len(shape) + 1))
    result = b.combine(kind, b.broadcast(start, result.type.shape, dims), result)
    # the carry stays partial: every device's total, and the init where nothing comes before
    first = b.index(0 if before else b.mesh.axes_size(axes) - 1)
    here = b.broadcast(b.compare("EQ", b.axis_index(axes), first), shape)
    carry = b.select(here, init, b.broadcast(neutral, shape))
    return [result, b.combine(kind, carry, b.reshape(total, shape))]


def _local(b: Builder, op: Op, value: Value, init: Value, kind: str) -> list[Value]:
    assert isinstance(init.type, TensorType)
    types = [value.type, init.type]
    return b.multi(op.name, [value, init], types, op.attrs, (combiner(kind, init.type, 2),))


RULES = {"chlo.scan": scan}
