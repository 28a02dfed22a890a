"""Ops on values some of whose dims are split into several: which dims of operands go with a dim of the result, and the op itself
once they are split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from ...ir.graph import Dense, Op, Value, constant
from ...ir.optable import ELEMENTWISE
from ...ir.types import TensorType, Type, is_integer

Sizes = tuple[int, ...]
Split = Mapping[int, Sizes]  # per dim that is split the sizes of its parts, the major one first
Along = list[tuple[int, int]]  # (operand, its dim)
EXACT = 2**24  # integers below are numbers in f32
_PADDING = ("edge_padding_low", "edge_padding_high", "interior_padding")


def split_type(type: Type, split: Split) -> TensorType:
    assert isinstance(type, TensorType)
    return type.with_shape(tuple([n for d, size in enumerate(type.shape) for n in split.get(d, (size,))]))


def places(rank: int, split: Split) -> list[tuple[int, ...]]:
    """Per dim where its parts are among the dims after the split."""
    found, at = list[tuple[int, ...]](), 0
    for d in range(rank):
        n = len(split.get(d, (1,)))
        found.append(tuple(range(at, at + n)))
        at += n
    return found


# ---------------------------------------------------------------------------------------------------- dims that go together
def along(op: Op, dim: int) -> Along | None:
    """The dims of operands that would be split with a dim of the results; None if that can't be split. What is the same along
    the dim has none."""
    if op.name in ELEMENTWISE:
        shape = op.results[0].type.shape
        if any(v.type.shape not in (shape, ()) for v in op.operands):
            return None
        return [(i, dim) for i, v in enumerate(op.operands) if v.type.shape == shape]
    find = _ALONG.get(op.name)
    return None if find is None else find(op, dim)


def _of_broadcast(op: Op, dim: int) -> Along | None:
    dims = op.attrs["broadcast_dimensions"]
    if dim not in dims or op.operands[0].type.shape[dims.index(dim)] == 1:
        return []
    return [(0, dims.index(dim))]


def _of_dot(op: Op, dim: int) -> Along | None:
    (left, right), contract = op.attrs["batch"], op.attrs["contract"]
    if dim < len(left):
        return [(0, left[dim]), (1, right[dim])]
    at = len(left)
    for i, (batch, inner) in enumerate(zip((left, right), contract, strict=True)):
        for d in range(op.operands[i].type.rank):
            if d not in batch and d not in inner:
                if at == dim:
                    return [(i, d)]
                at += 1
    return None


def _of_reduce(op: Op, dim: int) -> Along | None:
    kept = [d for d in range(op.operands[0].type.rank) if d not in op.attrs["dimensions"]]
    return [(i, kept[dim]) for i in range(len(op.operands) // 2)]


def _of_gather(op: Op, dim: int) -> Along | None:
    at = op.attrs
    if dim in at["offset_dims"]:
        return None
    batch = [d for d in range(op.results[0].type.rank) if d not in at["offset_dims"]].index(dim)
    d = batch + (batch >= at["index_vector_dim"])
    found = [(1, d)]
    if d in (index_batch := at.get("start_indices_batching_dims", ())):
        found.append((0, at["operand_batching_dims"][index_batch.index(d)]))
    return found


def _of_slice(op: Op, dim: int) -> Along | None:
    return [(0, dim)] if op.operands[0].type.shape[dim] == op.results[0].type.shape[dim] else None


def _of_pad(op: Op, dim: int) -> Along | None:
    return None if any(op.attrs[name][dim] for name in _PADDING) else [(0, dim)]


_ALONG: dict[str, Callable[[Op, int], Along | None]] = {
    "broadcast_in_dim": _of_broadcast,
    "concatenate": lambda op, d: (
        None if d == op.attrs["dimension"] else [(i, d) for i in range(len(op.operands))]
    ),
    "constant": lambda op, d: [],
    "dot_general": _of_dot,
    "gather": _of_gather,
    "iota": lambda op, d: [] if d != op.attrs["iota_dimension"] or _is_exact(op) else None,
    "pad": _of_pad,
    "reduce": _of_reduce,
    "slice": _of_slice,
    "reverse": lambda op, d: None if d in op.attrs["dimensions"] else [(0, d)],
    "transpose": lambda op, d: [(0, op.attrs["permutation"][d])],
}


# ---------------------------------------------------------------------------------------------------- the op itself
def with_split(
    op: Op, operands: list[Value], ins: Sequence[Split], out: Split, results: list[Value]
) -> list[Op]:
    """The op on operands of which dims are split, giving `results`; the last one gives them. ins, out: how they are split."""
    at = [
        places(v.type.rank, s) if isinstance(v.type, TensorType) else []
        for v, s in zip(op.operands, ins, strict=True)
    ]
    to = places(op.results[0].type.rank, out)
    if op.name == "iota" and op.attrs["iota_dimension"] in out:
        return _numbers(op, out, to[op.attrs["iota_dimension"]], results)
    attrs = _ATTRS[op.name](op, at, to, out) if op.name in _ATTRS else {}
    return [Op(op.name, operands, results, {**op.attrs, **attrs}, op.regions, op.loc)]


def _flat(at: Sequence[Sequence[int]], dims: Sequence[int]) -> tuple[int, ...]:
    return tuple([p for d in dims for p in at[d]])


def _broadcast_attrs(op: Op, at: Any, to: Any, out: Split) -> dict[str, Any]:
    dims = op.attrs["broadcast_dimensions"]
    return {"broadcast_dimensions": tuple([p for k, d in enumerate(dims) for p in to[d][: len(at[0][k])]])}


def _dot_attrs(op: Op, at: Any, to: Any, out: Split) -> dict[str, Any]:
    return {
        name: tuple(_flat(a, dims) for a, dims in zip(at, op.attrs[name], strict=True))
        for name in ("batch", "contract")
    }


def _gather_attrs(op: Op, at: Any, to: Any, out: Split) -> dict[str, Any]:
    old, (source, index) = op.attrs, at
    ends = [*index, (index[-1][-1] + 1,)] if index else [(0,)]
    sizes = [
        n
        for d, size in enumerate(old["slice_sizes"])
        for n in ((1,) * len(source[d]) if len(source[d]) > 1 else (size,))
    ]
    new = {
        "offset_dims": _flat(to, old["offset_dims"]),
        "collapsed_slice_dims": _flat(source, old["collapsed_slice_dims"]),
        "start_index_map": _flat(source, old["start_index_map"]),
        "index_vector_dim": ends[old["index_vector_dim"]][0],
        "slice_sizes": tuple(sizes),
    }
    if "operand_batching_dims" in old:
        new["operand_batching_dims"] = _flat(source, old["operand_batching_dims"])
        new["start_indices_batching_dims"] = _flat(index, old["start_indices_batching_dims"])
    return new


def _slice_attrs(op: Op, at: Any, to: Any, out: Split) -> dict[str, Any]:
    ends = {"start_indices": _zeros, "limit_indices": tuple, "strides": lambda sizes: (1,) * len(sizes)}
    return {name: _spread(op.attrs[name], out, whole) for name, whole in ends.items()}


def _pad_attrs(op: Op, at: Any, to: Any, out: Split) -> dict[str, Any]:
    return {name: _spread(op.attrs[name], out, _zeros) for name in _PADDING}


def _zeros(sizes: Sizes) -> Sizes:
    return (0,) * len(sizes)


def _spread(numbers: Sequence[int], out: Split, whole: Callable[[Sizes], Sizes]) -> Sizes:
    """One number per dim, of those that are split one per part."""
    return tuple([x for d, n in enumerate(numbers) for x in (whole(out[d]) if d in out else (n,))])


def _constant_attrs(op: Op, at: Any, to: Any, out: Split) -> dict[str, Any]:
    value: Dense = op.attrs["value"]
    if value.splat:
        return {}
    return {"value": Dense(value.array.reshape(split_type(op.results[0].type, out).shape))}


_ATTRS: dict[str, Callable[[Op, Any, Any, Split], dict[str, Any]]] = {
    "broadcast_in_dim": _broadcast_attrs,
    "concatenate": lambda op, at, to, out: {"dimension": to[op.attrs["dimension"]][0]},
    "constant": _constant_attrs,
    "dot_general": _dot_attrs,
    "gather": _gather_attrs,
    "iota": lambda op, at, to, out: {"iota_dimension": to[op.attrs["iota_dimension"]][0]},
    "pad": _pad_attrs,
    "slice": _slice_attrs,
    "reduce": lambda op, at, to, out: {"dimensions": _flat(at[0], op.attrs["dimensions"])},
    "reverse": lambda op, at, to, out: {"dimensions": _flat(to, op.attrs["dimensions"])},
    "transpose": lambda op, at, to, out: {"permutation": _flat(at[0], op.attrs["permutation"])},
}


def _numbers(op: Op, out: Split, parts: tuple[int, ...], results: list[Value]) -> list[Op]:
    """Positions along a split dim: of each part, times what lies behind it."""
    type, sizes = cast(TensorType, results[0].type), out[op.attrs["iota_dimension"]]
    ops: list[Op] = []

    def emit(name: str, operands: list[Value], attrs: dict[str, Any] | None = None) -> Value:
        value = Value(type)
        ops.append(Op(name, operands, [value], attrs, (), op.loc))
        return value

    total: Value | None = None
    for k, part in enumerate(parts):
        term = emit("iota", [], {"iota_dimension": part})
        if (stride := math.prod(sizes[k + 1 :])) > 1:
            ops.append(constant(type, stride))
            term = emit("multiply", [term, ops[-1].results[0]])
        total = term if total is None else emit("add", [total, term])
    ops[-1].results = results
    return ops


def _is_exact(iota: Op) -> bool:
    """Whether its numbers may be added up of others."""
    type = cast(TensorType, iota.results[0].type)
    return is_integer(type.dtype) or (type.dtype in ("f32", "f64") and type.size <= EXACT)
