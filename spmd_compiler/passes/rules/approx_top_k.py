"""The custom call `ApproxTopK` (`jax.lax.approx_max_k`): the other dims are batch. Along a sharded dim each device finds its
own candidates, which are gathered and reduced once more, where the result has exactly k of them.

Where XLA has no approximate algorithm it sorts (`is_fallback`), and but for f32 that sort is not stable: which of equal
values it returns only the whole dim can tell."""

from __future__ import annotations

import re

from ...ir.graph import Op, Raw, Value
from ...ir.types import TensorType, Type
from ..cost import Work
from ..emit.builder import Builder
from .base import R, Rule, Strategy, factored, numbered, shape_of

_CONFIG = "mhlo.backend_config"


def is_approx_top_k(op: Op) -> bool:
    return op.attrs.get("call_target_name") == "ApproxTopK" and isinstance(op.attrs.get(_CONFIG), Raw)


def _field(op: Op, name: str) -> str:
    found = re.search(rf"\b{name} = (-?\w+)", op.attrs[_CONFIG].text)
    return found[1] if found else ""


def _with_fields(op: Op, **fields: int) -> dict:
    text = op.attrs[_CONFIG].text
    for name, value in fields.items():
        text = re.sub(rf"\b{name} = -?\d+", f"{name} = {value}", text)
    return {**op.attrs, _CONFIG: Raw(text)}


def approx_top_k(op: Op) -> Rule:
    n = len(op.results)
    shape = shape_of(op.operands[0])
    dims = numbered(shape)
    d, k = int(_field(op, "reduction_dim")), int(_field(op, "top_k"))

    def exchange(shards: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        return (shards - 1) * sum(t.nbytes for t in outs) * min(k, ins[0].shape[d]) / k, n

    extra: list[Strategy] = []
    ordered = _field(op, "is_fallback") == "false" or op.operands[0].type.dtype == "f32"
    if _field(op, "aggregate_to_topk") == "true" and shape[d] > 1 and ordered:
        extra.append(Strategy(((d,) * n) + (R,) * n, (R,) * n, d, exchange))
    result = tuple(None if i == d else i for i in dims)
    work = Work.over(op, 4)
    return factored([dims] * n + [()] * n, [result] * n, shape, _expand, whole=[d], extra=extra, work=work)


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    n = len(op.results)
    source = op.operands[0]
    assert source.layout is not None
    d, k = int(_field(op, "reduction_dim")), int(_field(op, "top_k"))
    axes = source.layout.dims[d]
    if not axes:
        return b.local(op, args)
    inits = args[n:]
    block = args[0].type.shape[d]
    values = [
        b.masked(x, v.layout, v.type, (d,), init)
        for x, v, init in zip(args[:n], op.operands[:n], inits, strict=True)
        if v.layout is not None
    ]
    own = min(k, block)
    # the whole size is what the recall is meant for
    attrs = _with_fields(op, top_k=own, reduction_input_size_override=source.type.shape[d])
    if own < block:
        values = _call(b, values, inits, d, own, attrs)
    gathered = [b.all_gather(v, axes, d) for v in values]
    return _call(b, gathered, inits, d, k, op.attrs)


def _call(b: Builder, values: list[Value], inits: list[Value], dim: int, k: int, attrs: dict) -> list[Value]:
    types = []
    for v in values:
        shape = v.type.shape
        types.append(TensorType((*shape[:dim], k, *shape[dim + 1 :]), v.type.dtype))
    return b.multi("custom_call", [*values, *inits], types, attrs)
