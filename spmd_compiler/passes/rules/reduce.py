"""reduce over sharded dims: a plain reducer leaves a partial; any other one whose init is neutral reduces locally, gathers
the n results and reduces once more."""

from __future__ import annotations

from ...ir.clone import clone_regions
from ...ir.graph import Op, Value
from ...ir.optable import reducer_kind
from ...ir.types import TensorType, Type
from ..builder import Builder, identity_value
from ..cost import Work
from .base import Rule, factored, numbered, shape_of
from .regions import IDEMPOTENT, Scalars, is_identity, neutral_init


def reduce(op: Op, scalars: Scalars) -> Rule:
    n = len(op.operands) // 2
    shape = shape_of(op.operands[0])
    dims = numbered(shape)
    gone = set(op.attrs["dimensions"])
    kept = tuple(d for d in dims if d not in gone)
    operands = [dims] * n + [()] * n
    work = Work.over(op)
    kind = reducer_kind(op.regions[0]) if n == 1 else None
    if kind is not None:
        plain_init = is_identity(kind, op.operands[1], scalars)

        def expand_plain(b: Builder, op: Op, args: list[Value]) -> list[Value]:
            return _expand_plain(b, op, args, kind, plain_init)

        linear = [((0,), (kind,))]
        return factored(
            operands, [kept], shape, expand_plain, reduced=dict.fromkeys(gone, kind), linear=linear, work=work
        )
    if neutral_init(op.regions[0], op.operands[n:], scalars):
        return factored(
            operands, [kept] * n, shape, _expand_gathered, exchange=dict.fromkeys(gone, _gathered), work=work
        )
    return factored(operands, [kept] * n, shape, _expand_gathered, whole=gone, work=work)


def _gathered(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
    return (n - 1) * sum(t.nbytes for t in outs), len(outs)


def _expand_plain(b: Builder, op: Op, args: list[Value], kind: str, plain_init: bool) -> list[Value]:
    source, result = op.operands[0], op.results[0]
    assert source.layout is not None and result.layout is not None
    neutral = identity_value(kind, source.type.dtype)
    value = b.masked(args[0], source.layout, source.type, op.attrs["dimensions"], neutral)
    init = args[1]
    if plain_init or not op.attrs["dimensions"]:  # over no dim XLA takes no init
        return b.local(op, [value, init])
    # It comes in behind the reduction: XLA drops it where the shard has one position, or is made of pieces that do. And it
    # counts once, so only the first device of those that share a partial adds it.
    identity = b.constant(neutral, TensorType((), init.type.dtype))
    (total,) = b.local(op, [value, identity])
    axes = result.layout.partial_axes
    if axes and kind not in IDEMPOTENT:
        init = b.select(b.compare("EQ", b.axis_index(axes), b.index(0)), init, identity)
    return [b.combine(kind, total, b.broadcast(init, total.type.shape))]


def _expand_gathered(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    n = len(op.operands) // 2
    layout = op.operands[0].layout
    assert layout is not None
    gone = op.attrs["dimensions"]
    values = [
        b.masked(arg, layout, v.type, gone, init)
        for arg, v, init in zip(args[:n], op.operands[:n], args[n:], strict=True)
    ]
    results = b.local(op, [*values, *args[n:]])
    axes = tuple(a for d in gone for a in layout.dims[d])
    if not axes:
        return results
    gathered = [b.all_gather(b.reshape(r, (1, *r.type.shape)), axes, 0) for r in results]
    attrs = {**op.attrs, "dimensions": (0,)}
    return b.multi(
        "reduce", [*gathered, *args[n:]], [r.type for r in results], attrs, clone_regions(op.regions)
    )


RULES = {"reduce": reduce}
