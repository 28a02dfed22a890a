"""reduce_window: devices fetch the rows that their windows need. Where a window is a whole prefix or suffix (a cumulative
sum, maximum, ...), they exchange totals instead, see `cumulative`."""

from __future__ import annotations

from typing import Any

from ...ir.clone import clone_regions
from ...ir.graph import Op, Value
from ...ir.layout import local_type
from ...ir.optable import reducer_kind
from ...ir.types import TensorType, Type
from ..cost import Work
from ..emit.builder import Builder
from .base import R, Rule, Strategy, factored, numbered, shape_of
from .cumulative import Beyond, Running, running, totals_price
from .reducers import IDEMPOTENT, Scalars, is_identity, neutral_init
from .windows import Extent, dilate, fetch, placed, window_price


def _extents(op: Op) -> list[Extent]:
    at = op.attrs
    shape, out = shape_of(op.operands[0]), shape_of(op.results[0])
    ones = (1,) * len(shape)
    strides, base = at.get("window_strides") or ones, at.get("base_dilations") or ones
    dilations = at.get("window_dilations") or ones
    padding = at.get("padding") or ((0, 0),) * len(shape)
    return [
        Extent(shape[d], out[d], strides[d], (w - 1) * dilations[d] + 1, padding[d][0], base[d])
        for d, w in enumerate(at["window_dimensions"])
    ]


def reduce_window(op: Op, scalars: Scalars) -> Rule:
    n = len(op.operands) // 2
    shape = shape_of(op.operands[0])
    dims = numbered(shape)
    kind = reducer_kind(op.regions[0]) if n == 1 else None
    plain = kind is not None and is_identity(kind, op.operands[1], scalars)
    neutral = plain or kind in IDEMPOTENT
    if kind is None:
        neutral = neutral_init(op.regions[0], op.operands[n:], scalars)
    extents = _extents(op)
    moved = [d for d, e in enumerate(extents) if not e.trivial]
    dilations = op.attrs.get("window_dilations") or (1,) * len(shape)
    cumulative = {d: r for d in moved if neutral and (r := running(extents[d], dilations[d]))}
    extra = [
        Strategy(
            (d,) * n + (R,) * n,
            (d,) * n,
            d,
            totals_price(d) if d in cumulative else _window_price(extents[d], d, n),
        )
        for d in moved
        if extents[d].size > 1 and extents[d].out > 1
    ]

    def expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
        return _expand(b, op, args, extents, cumulative)

    return factored(
        [dims] * n + [()] * n,
        [placed(dims, [d for d in moved if d not in cumulative])] * n,
        shape,
        expand,
        whole=moved,
        linear=[((0,), (kind,))] if plain and kind else [],
        extra=extra,
        work=Work.over(op, 2),
    )


def _window_price(e: Extent, d: int, n: int) -> Any:
    def price(shards: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        prices = [window_price(e, shards, t, d, outs[0].shape[d]) for t in ins[:n]]
        return sum(x for x, _ in prices), sum(m for _, m in prices)

    return price


def _expand(
    b: Builder, op: Op, args: list[Value], extents: list[Extent], cumulative: dict[int, Running]
) -> list[Value]:
    at = dict(op.attrs)
    n = len(op.operands) // 2
    layout = op.results[0].layout
    assert layout is not None
    rank = len(extents)
    window = list(at["window_dimensions"])
    padding = [tuple(x) for x in at.get("padding") or ((0, 0),) * rank]
    base: list[int] = list(at.get("base_dilations") or [1] * rank)
    values, inits = args[:n], args[n:]
    wanted = [local_type(v.type, layout, b.mesh) for v in op.results]
    shape = list(wanted[0].shape)
    cropped: list[tuple[int, int, int]] = []
    for d, e in enumerate(extents):
        axes = layout.dims[d]
        if not axes or e.trivial:
            continue
        if d in cumulative:
            size = values[0].type.shape[d]
            values = [
                b.masked(v, layout, x.type, (d,), init)
                for v, x, init in zip(values, op.operands[:n], inits, strict=True)
            ]
            before = cumulative[d] is Running.PREFIX
            values = Beyond(b, op.regions, inits, d, axes, before).extend(values)
            window[d], padding[d] = size + 1, (size, 0) if before else (0, size)
            cropped.append((d, 1 if before else 0, size))
            shape[d] = size + 1
            continue
        found = [fetch(b, v, d, axes, e, shape[d], init) for v, init in zip(values, inits, strict=True)]
        values = [f.value for f in found]
        padding[d], base[d] = (found[0].low, found[0].high), found[0].base
        if base[d] > 1:  # few backends are good at it
            values = [
                dilate(b, f.value, d, f.low, f.high, f.base, init)
                for f, init in zip(found, inits, strict=True)
            ]
            padding[d], base[d] = (0, 0), 1
    at["window_dimensions"], at["padding"], at["base_dilations"] = tuple(window), tuple(padding), tuple(base)
    types = [TensorType(tuple(shape), t.dtype) for t in wanted]
    results = b.multi("reduce_window", [*values, *inits], types, at, clone_regions(op.regions))
    for d, start, size in cropped:
        results = [b.slice(r, d, start, start + size) for r in results]
    return results


RULES = {"reduce_window": reduce_window}
