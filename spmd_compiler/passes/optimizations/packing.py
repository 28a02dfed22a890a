"""One collective in place of several of its kind: their operands packed into one buffer, or side by side as its operands."""

from __future__ import annotations

from collections.abc import Callable

from ...ir.graph import Op, Value
from ...ir.types import TensorType
from ..emit.builder import Builder

SMALL = 64 * 1024  # bytes of an operand up to which latency outweighs the copies of packing
COPIED = 16 * 1024  # bytes of an operand of an all-gather that are sooner copied than sent by themselves
ADDED = 4 * 1024  # the same of an all-reduce

_BITS = {  # what carries types of one size
    **dict.fromkeys(("i8", "u8"), "u8"),
    **dict.fromkeys(("i16", "u16", "f16", "bf16"), "u16"),
    **dict.fromkeys(("i32", "u32", "f32"), "u32"),
}

Emit = Callable[
    [Builder, list[Op], tuple[str, ...]], dict[Value, Value]
]  # emits one for all: what replaces their results


def carrier(dtype: str, kind: str | None) -> str:
    """The element type in which small collectives send one, if they have several. kind: what reduces, if something does."""
    return dtype if kind else _BITS.get(dtype, dtype)


def all_reduce(b: Builder, ops: list[Op], axes: tuple[str, ...], copied: int = ADDED) -> dict[Value, Value]:
    """One of several operands: those of `copied` bytes at most in a buffer, others as they are."""

    def send(sent: list[Value]) -> list[Value]:
        attrs = {"axes": axes, "kind": ops[0].attrs["kind"], "cause": b.cause}
        return b.multi("all_reduce", sent, [x.type for x in sent], attrs)

    return {y: b.reshape(part, x.type.shape) for x, y, part in _as_few(b, ops, (), copied, send)}


def _permute(b: Builder, ops: list[Op], axes: tuple[str, ...]) -> dict[Value, Value]:
    attrs = {**ops[0].attrs, "axes": axes, "cause": b.cause}

    def send(sent: list[Value]) -> list[Value]:
        return [b.op("collective_permute", [x], x.type, attrs) for x in sent]

    return {y: b.reshape(part, x.type.shape) for x, y, part in _as_few(b, ops, (), SMALL, send)}


def all_gather(b: Builder, ops: list[Op], axes: tuple[str, ...], copied: int = COPIED) -> dict[Value, Value]:
    """One of several operands: those of `copied` bytes at most in a buffer, others as they are, along a new first dim."""
    n, dims = b.mesh.axes_size(axes), {y: op.attrs["dim"] for op in ops for y in op.results}

    def send(sent: list[Value]) -> list[Value]:
        types = [TensorType((n, *x.type.shape[1:]), x.type.dtype) for x in sent]
        return b.multi("all_gather", sent, types, {"axes": axes, "dim": 0, "cause": b.cause})

    return {
        y: b.side_by_side(b.reshape(part, (n, *x.type.shape)), dims[y])
        for x, y, part in _as_few(b, ops, (1,), copied, send)
    }


def _as_few(
    b: Builder, ops: list[Op], lead: tuple[int, ...], copied: int, send: Callable[[list[Value]], list[Value]]
) -> list[tuple[Value, Value, Value]]:
    """Sends the operands, with `lead` before their dims, those of `copied` bytes at most in a row. (operand, result, what came for
    it) of each."""
    ends = [end for op in ops for end in zip(op.operands, op.results, strict=True)]
    packed = [end for end in ends if end[0].type.nbytes <= copied]
    alone = [end for end in ends if end[0].type.nbytes > copied]
    sent = [b.reshape(x, (*lead, *x.type.shape)) for x, _ in alone]
    rows = [b.reshape(x, (*lead, x.type.size)) for x, _ in packed]
    if rows:
        sent.append(_in_a_row(b, rows, len(lead)))
    made = [*send(sent)]
    if rows:
        made[-1:] = _apart(b, made[-1], len(lead), rows)
    return [(x, y, part) for (x, y), part in zip((*alone, *packed), made, strict=True)]


def _reduce_scatter(b: Builder, ops: list[Op], axes: tuple[str, ...]) -> dict[Value, Value]:
    rows = [_blocks(b, op.operands[0], op.attrs["dim"], axes) for op in ops]
    parts = _apart(b, b.reduce_scatter(_in_a_row(b, rows, 1), axes, 0, ops[0].attrs["kind"]), 1, rows)
    return {op.results[0]: b.reshape(p, op.results[0].type.shape) for op, p in zip(ops, parts, strict=True)}


def _all_to_all(b: Builder, ops: list[Op], axes: tuple[str, ...]) -> dict[Value, Value]:
    rows = [_blocks(b, op.operands[0], op.attrs["split_dim"], axes) for op in ops]
    parts = _apart(b, b.all_to_all(_in_a_row(b, rows, 1), axes, 0, 0), 1, rows)
    out: dict[Value, Value] = {}
    for op, part in zip(ops, parts, strict=True):
        split, shape = op.attrs["split_dim"], op.operands[0].type.shape
        n = part.type.shape[0]
        stacked = b.reshape(part, (n, *shape[:split], shape[split] // n, *shape[split + 1 :]))
        out[op.results[0]] = b.side_by_side(stacked, op.attrs["concat_dim"])
    return out


PACK: dict[str, Emit] = {
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "collective_permute": _permute,
}


def _in_a_row(b: Builder, rows: list[Value], dim: int) -> Value:
    """One behind the other, along a dim."""
    types = {row.type.dtype for row in rows}
    if len(types) > 1:
        rows = [_cast(b, row, _BITS[row.type.dtype]) for row in rows]
    return b.concatenate(rows, dim)


def _apart(b: Builder, value: Value, dim: int, rows: list[Value]) -> list[Value]:
    """What lies in a row apart again, as long and of the types that the rows were."""
    parts: list[Value] = []
    start = 0
    for row in rows:
        size = row.type.shape[dim]
        parts.append(_cast(b, b.slice(value, dim, start, start + size), row.type.dtype))
        start += size
    return parts


def _cast(b: Builder, value: Value, dtype: str) -> Value:
    """The same bits as another type of their size."""
    if value.type.dtype == dtype:
        return value
    return b.op("bitcast_convert", [value], TensorType(value.type.shape, dtype))


def _blocks(b: Builder, value: Value, dim: int, axes: tuple[str, ...]) -> Value:
    """The blocks in which a dim is cut for the devices on some axes, a row each."""
    n = b.mesh.axes_size(axes)
    return b.reshape(b.blocks(value, dim, n), (n, value.type.size // n))
