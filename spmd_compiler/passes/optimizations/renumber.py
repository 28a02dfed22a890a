"""An op's attributes where the dims of its operands and results are numbered anew: some are gone, others are one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ...ir.graph import Op, Value

Attrs = dict[str, Any]
Places = Mapping[int, int]  # of the dims that are left, where each one is
PlacesOf = Callable[[Value], Places]


def renumber(op: Op, places: PlacesOf) -> Attrs:
    """The attributes of one of `RENUMBERED`. Of a slice none but whole dims are one, and the same are gone before and behind it."""
    return {**op.attrs, **RENUMBERED[op.name](op, places)}


def _placed(dims: Iterable[int], places: Places) -> tuple[int, ...]:
    return tuple(dict.fromkeys(places[d] for d in dims if d in places))


def _broadcast(op: Op, places: PlacesOf) -> Attrs:
    there = places(op.operands[0])
    dims = (d for k, d in enumerate(op.attrs["broadcast_dimensions"]) if k in there)
    return {"broadcast_dimensions": _placed(dims, places(op.results[0]))}


def _product(op: Op, places: PlacesOf) -> Attrs:
    return {
        key: tuple(_placed(dims, places(v)) for v, dims in zip(op.operands, op.attrs[key], strict=True))
        for key in ("contract", "batch")
    }


def _slice(op: Op, places: PlacesOf) -> Attrs:
    ends: dict[str, dict[int, int]] = {"start_indices": {}, "limit_indices": {}, "strides": {}}
    for d, at in places(op.operands[0]).items():
        for name, numbers in ends.items():
            numbers[at] = numbers.get(at, 1) * op.attrs[name][d]
    return {name: tuple(numbers.values()) for name, numbers in ends.items()}


RENUMBERED: dict[str, Callable[[Op, PlacesOf], Attrs]] = {
    "broadcast_in_dim": _broadcast,
    "dot_general": _product,
    "reduce": lambda op, places: {"dimensions": _placed(op.attrs["dimensions"], places(op.operands[0]))},
    "slice": _slice,
    "transpose": lambda op, places: {"permutation": _placed(op.attrs["permutation"], places(op.operands[0]))},
}
