"""fft: the leading dims are batch. A transformed dim may be sharded: the others are transformed first, then an all-to-all makes
it whole and leaves another one sharded. Or it stays where it is (`fft_in_place`)."""

from __future__ import annotations

from ...ir.graph import Op, Value
from ...ir.layout import local_type
from ...ir.types import Type
from ..cost import Work
from ..emit.builder import Builder
from .base import Dims, Exchange, Rule, Strategy, factored, numbered, shape_of
from .fft_in_place import goes_first, place_price, transform_in_place
from .fft_local import transform


def fft(op: Op) -> Rule:
    shape = shape_of(op.operands[0])
    batch = len(shape) - len(op.attrs["fft_length"])
    dims: Dims = (*numbered(shape[:batch]), *(None for _ in op.attrs["fft_length"]))
    # one factor for all transformed dims: a mesh axis can take part in one exchange only
    sizes = [*shape[:batch], max(1, min(shape[batch:]))]
    ways = [Strategy((s,), (t,), batch, _exchange(op)) for s, t in _moves(op)]
    result = shape_of(op.results[0])
    stays = [d for d in range(batch, len(shape)) if shape[d] > 1 and result[d] > 1]
    ways += [Strategy((d,), (d,), batch, place_price(op, d)) for d in stays]
    work = Work.over(op, 4)
    return factored(
        [dims], [dims], sizes, _expand, whole=[batch], linear=[((0,), ("sum",))], extra=ways, work=work
    )


def _moves(op: Op) -> list[tuple[int, int]]:
    """(sharded dim of the operand, of the result). A transform to or from real numbers has its last dim's place in the
    order: first or last."""
    shape, result = shape_of(op.operands[0]), shape_of(op.results[0])
    rank = len(shape)
    dims = range(rank - len(op.attrs["fft_length"]), rank)
    kind = op.attrs["fft_type"]
    moves = [(s, t) for s in dims for t in dims if s != t and shape[s] > 1 and result[t] > 1]
    if kind == "RFFT":
        return [(s, t) for s, t in moves if s != rank - 1]
    if kind == "IRFFT":
        return [(s, t) for s, t in moves if s == rank - 1]
    return moves


def _exchange(op: Op) -> Exchange:
    inverse = op.attrs["fft_type"] == "IRFFT"

    def price(n: int, ins: list[Type], outs: list[Type]) -> tuple[float, int]:
        return (n - 1) / n * (ins if inverse else outs)[0].nbytes, 1

    return price


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    source, target = op.operands[0].layout, op.results[0].layout
    assert source is not None and target is not None
    rank, lengths = source.rank, op.attrs["fft_length"]
    dims = range(rank - len(lengths), rank)
    cut = next((d for d in dims if source.dims[d]), None)
    if cut is None:
        return [transform(b, op, args[0], list(dims))]
    to = next(d for d in dims if target.dims[d])
    axes = source.dims[cut]
    value = args[0]
    others = [d for d in dims if d != cut]
    if to == cut and goes_first(op, cut):
        value = transform_in_place(b, op, value, cut, axes)
    if others:
        value = transform(b, op, value, others)
    if to == cut:
        return [value if goes_first(op, cut) else transform_in_place(b, op, value, cut, axes)]
    own = local_type(op.results[0].type, target, b.mesh).shape
    there = b.pad_to_split(value, to, own[to], axes)
    whole = b.all_to_all(there, axes, to, cut)
    whole = b.slice(whole, cut, 0, shape_of(op.operands[0])[cut])
    return [transform(b, op, whole, [cut])]


RULES = {"fft": fft}
