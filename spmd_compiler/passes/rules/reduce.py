"""reduce over sharded dims: a plain reducer leaves a partial; any other one whose init is neutral reduces locally, gathers
the n results, or exchanges them for those of a device's own rows, and reduces once more."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ...ir.clone import clone_regions
from ...ir.graph import Op, Value
from ...ir.optable import reducer_kind
from ...ir.types import TensorType, Type
from ..cost import Work
from ..emit.builder import Builder, identity_value
from .base import R, Rule, Strategy, factored, numbered, shape_of
from .reducers import IDEMPOTENT, Scalars, is_identity, neutral_init
from .strategy import own_rows


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
        along = dict.fromkeys(gone, _gathered)
        extra = [
            Strategy((d,) * n + (R,) * n, (j,) * n, d, own_rows(_gathered, shape[row], row, j))
            for d in gone
            if shape[d] > 1
            for j, row in enumerate(kept)
        ]
        return factored(operands, [kept] * n, shape, _expand_gathered, exchange=along, extra=extra, work=work)
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

    def one(value: Value) -> Value:
        return b.reshape(value, (1, *value.type.shape))

    def reduced(parts: Iterable[Value], dims: Sequence[int]) -> list[Value]:
        parts = list(parts)
        shape = tuple(size for d, size in enumerate(shape_of(parts[0])) if d not in dims)
        types = [TensorType(shape, v.type.dtype) for v in parts]
        attrs = {**op.attrs, "dimensions": tuple(dims)}
        return b.multi("reduce", [*parts, *args[n:]], types, attrs, clone_regions(op.regions))

    values = [
        b.masked(arg, layout, v.type, gone, init)
        for arg, v, init in zip(args[:n], op.operands[:n], args[n:], strict=True)
    ]
    results = reduced(values, gone)
    result = op.results[0].layout
    assert result is not None
    rows = {
        d: result.dims.index(layout.dims[d]) for d in gone if layout.dims[d] and layout.dims[d] in result.dims
    }
    axes = tuple(a for d in gone if d not in rows for a in layout.dims[d])
    if axes:
        results = reduced((b.all_gather(one(r), axes, 0) for r in results), (0,))
    for d, row in rows.items():
        results = reduced((b.own_rows(one(r), layout.dims[d], row + 1, 0) for r in results), (0,))
    return results


RULES = {"reduce": reduce}
