"""gather and scatter, with all their dimension numbers.

Dims of the index array that enumerate lookups, window dims taken whole and batching dims are parallel. An *indexed* dim
of the operand may be sharded where each lookup takes one position: a gather masks the lookups of other devices and leaves
a partial sum; a scatter drops their updates. A scatter whose lookups are sharded leaves a partial of its combiner.
"""

from __future__ import annotations

from ...ir.graph import Op, Value
from ...ir.layout import PARTIAL_KINDS, local_block
from ...ir.types import TensorType, numpy_dtype
from ..builder import INDEX, PRED, Builder
from ..cost import WORK
from .base import Rule, Strategy, factored, shape_of
from .regions import reducer_kind


class _Factors:
    """Numbers factors while a rule's dims are laid out."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def new(self, size: int) -> int:
        self.sizes.append(size)
        return len(self.sizes) - 1


def _index_dims(op: Op, indices: tuple[int, ...]) -> list[int]:
    """The dims of the index array that enumerate lookups."""
    return [d for d in range(len(indices)) if d != op.attrs["index_vector_dim"]]


def gather(op: Op) -> Rule:
    at = op.attrs
    operand, indices, result = (shape_of(v) for v in (op.operands[0], op.operands[1], op.results[0]))
    sizes = at["slice_sizes"]
    f = _Factors()
    operand_dims: list[int | None] = [None] * len(operand)
    index_dims: list[int | None] = [None] * len(indices)
    result_dims: list[int | None] = [None] * len(result)
    lookups = _index_dims(op, indices)
    for d, r in zip(lookups, [r for r in range(len(result)) if r not in at["offset_dims"]], strict=True):
        index_dims[d] = result_dims[r] = f.new(indices[d])
    for o, d in zip(
        at.get("operand_batching_dims", ()), at.get("start_indices_batching_dims", ()), strict=True
    ):
        operand_dims[o] = index_dims[d]
    gone = {*at["collapsed_slice_dims"], *at.get("operand_batching_dims", ())}
    window = [d for d in range(len(operand)) if d not in gone]
    for d, r in zip(window, at["offset_dims"], strict=True):
        if sizes[d] == operand[d]:
            operand_dims[d] = result_dims[r] = f.new(operand[d])
    kind = "or" if op.results[0].type.dtype == "i1" else "sum"
    reduced: dict[int, str] = {}
    for d in at["start_index_map"]:
        if d in at["collapsed_slice_dims"] and operand[d] > 1:
            operand_dims[d] = f.new(operand[d])
            reduced[operand_dims[d]] = kind  # type: ignore[index]
    return factored(
        [operand_dims, index_dims],
        [result_dims],
        f.sizes,
        _expand_gather,
        reduced=reduced,
        linear=[((0,), PARTIAL_KINDS)],
        work=WORK * 2 * op.results[0].type.nbytes,
    )


def _components(b: Builder, op: Op, indices: Value) -> list[Value]:
    """The index vector's parts, each of the lookups' shape."""
    shape = indices.type.shape
    vector = op.attrs["index_vector_dim"]
    if vector == len(shape):
        return [indices]
    rest = (*shape[:vector], *shape[vector + 1 :])
    return [b.reshape(b.slice(indices, vector, k, k + 1), rest) for k in range(shape[vector])]


def _join(b: Builder, op: Op, parts: list[Value], shape: tuple[int, ...]) -> Value:
    vector = op.attrs["index_vector_dim"]
    if vector == len(shape):
        return parts[0]
    one = (*shape[:vector], 1, *shape[vector + 1 :])
    return b.concatenate([b.reshape(p, one) for p in parts], vector)


def _as_index(b: Builder, value: Value, limit: int | None) -> Value:
    """Lookups as i32 (or i64), clamped to [0, limit] first if there is one."""
    dtype = value.type.dtype
    if limit is not None:
        top = min(limit, int(_max_of(dtype)))
        bounds = [b.constant(n, TensorType((), dtype)) for n in (0, top)]
        value = b.op("clamp", [bounds[0], value, bounds[1]], value.type)
    if dtype not in ("i32", "i64"):
        value = b.op("convert", [value], TensorType(value.type.shape, INDEX if limit is not None else "i64"))
    return value


def _max_of(dtype: str) -> int:
    import numpy as np

    return int(np.iinfo(numpy_dtype(dtype)).max)


def _expand_gather(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    at = op.attrs
    source = op.operands[0]
    layout = source.layout
    assert layout is not None
    operand, indices = args
    sharded = [
        (k, d)
        for k, d in enumerate(at["start_index_map"])
        if layout.dims[d] and d in at["collapsed_slice_dims"]
    ]
    mask: Value | None = None
    if sharded:
        parts = _components(b, op, indices)
        limits = {k: source.type.shape[d] - 1 for k, d in enumerate(at["start_index_map"])}
        windows = {k: at["slice_sizes"][d] - 1 for k, d in enumerate(at["start_index_map"])}
        parts = [_as_index(b, p, max(0, limits[k] - windows[k])) for k, p in enumerate(parts)]
        for k, d in sharded:
            block = local_block(layout, d, source.type.shape[d], b.mesh)
            mine, inside = _localise(b, parts[k], b.offset(layout.dims[d], block), block)
            parts[k] = mine
            mask = inside if mask is None else b.binary("and", mask, inside)
        indices = _join(b, op, parts, indices.type.shape)
    sizes = tuple(
        operand.type.shape[d] if layout.dims[d] and n == source.type.shape[d] and n != 1 else n
        for d, n in enumerate(at["slice_sizes"])
    )
    (result,) = b.local(op, [operand, indices], {**at, "slice_sizes": sizes})
    if mask is None:
        return [result]
    shape = result.type.shape
    batch = tuple(r for r in range(len(shape)) if r not in at["offset_dims"])
    assert isinstance(result.type, TensorType)
    return [b.select(b.broadcast(mask, shape, batch), result, b.constant(0, result.type))]


def _localise(b: Builder, lookup: Value, offset: Value, block: int) -> tuple[Value, Value]:
    """(lookup relative to this device's block, i1: it falls into the block)."""
    type = lookup.type
    assert isinstance(type, TensorType)
    if type.dtype != INDEX:
        offset = b.op("convert", [offset], TensorType((), type.dtype))
    mine = b.binary("subtract", lookup, b.broadcast(offset, type.shape))
    low = b.compare("GE", mine, b.constant(0, type))
    high = b.compare("LT", mine, b.constant(block, type))
    return mine, b.op("and", [low, high], TensorType(type.shape, PRED))


def scatter(op: Op) -> Rule:
    at = op.attrs
    n = (len(op.operands) - 1) // 2
    operand, indices, updates = (shape_of(op.operands[i]) for i in (0, n, n + 1))
    kind = reducer_kind(op.regions[0]) if n == 1 else None
    f = _Factors()
    operand_dims: list[int | None] = [None] * len(operand)
    index_dims: list[int | None] = [None] * len(indices)
    update_dims: list[int | None] = [None] * len(updates)
    lookups = _index_dims(op, indices)
    shared: list[int] = []  # factors of lookups: several devices may update one position
    for d, u in zip(
        lookups, [u for u in range(len(updates)) if u not in at["update_window_dims"]], strict=True
    ):
        index_dims[d] = update_dims[u] = f.new(indices[d])
        shared.append(index_dims[d])  # type: ignore[arg-type]
    batching = zip(
        at.get("input_batching_dims", ()), at.get("scatter_indices_batching_dims", ()), strict=True
    )
    for o, d in batching:
        operand_dims[o] = index_dims[d]
        shared.remove(index_dims[d])  # type: ignore[arg-type]
    gone = {*at["inserted_window_dims"], *at.get("input_batching_dims", ())}
    window = [d for d in range(len(operand)) if d not in gone]
    for d, u in zip(window, at["update_window_dims"], strict=True):
        if updates[u] == operand[d]:
            operand_dims[d] = update_dims[u] = f.new(operand[d])
    for d in at["scatter_dims_to_operand_dims"]:
        if d in at["inserted_window_dims"] and operand_dims[d] is None:
            operand_dims[d] = f.new(operand[d])
    dims = [operand_dims] * n + [index_dims] + [update_dims] * n
    linear = [((0, 2), (kind,))] if kind is not None else []
    rule = factored(
        dims,
        [operand_dims] * n,
        f.sizes,
        _expand_scatter,
        whole=shared,
        linear=linear,
        work=WORK * 3 * sum(v.type.nbytes for v in op.operands[n + 1 :]),
    )
    if kind is None:
        return rule
    extra = [
        Strategy((kind, index_dims.index(s), update_dims.index(s)), (kind,), s)
        for s in shared
        if f.sizes[s] > 1
    ]
    return Rule(rule.operands, rule.results, f.sizes, [*rule.strategies, *extra], _expand_scatter, rule.work)


def _expand_scatter(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    at = op.attrs
    n = (len(op.operands) - 1) // 2
    source, lookup = op.operands[0], op.operands[n]
    layout = source.layout
    assert layout is not None and lookup.layout is not None
    indices = args[n]
    sharded = [
        (k, d)
        for k, d in enumerate(at["scatter_dims_to_operand_dims"])
        if layout.dims[d] and d in at["inserted_window_dims"]
    ]
    lookups = _index_dims(op, lookup.type.shape)
    padding = b.valid(indices, lookup.layout, lookup.type, lookups)
    if padding is not None:  # lookups that don't exist must not update anything
        if indices.type.dtype not in ("i32", "i64"):
            indices = b.op("convert", [indices], TensorType(indices.type.shape, "i64"))
        assert isinstance(indices.type, TensorType)
        indices = b.select(padding, indices, b.constant(-1, indices.type))
    inputs = list(args[:n])
    spare: list[tuple[int, int]] = []  # (dim, block) of dims that got one position more, for updates to drop
    if sharded:
        parts = [_as_index(b, p, None) for p in _components(b, op, indices)]
        for k, d in sharded:
            block = local_block(layout, d, source.type.shape[d], b.mesh)
            parts[k], inside = _localise(b, parts[k], b.offset(layout.dims[d], block), block)
            if inside.type.size == 1:
                # XLA makes a dynamic_update_slice of a scatter with one lookup, which clamps one that is out of bounds
                type = TensorType(parts[k].type.shape, parts[k].type.dtype)
                parts[k] = b.select(inside, parts[k], b.constant(block, type))
                spare.append((d, block))
                inputs = [b.pad(x, d, 0, 1) for x in inputs]
        wide = "i64" if any(p.type.dtype == "i64" for p in parts) else INDEX
        parts = [
            p if p.type.dtype == wide else b.op("convert", [p], TensorType(p.type.shape, wide)) for p in parts
        ]
        indices = _join(b, op, parts, indices.type.shape)
    operands = [*inputs, indices, *args[n + 1 :]]
    results = b.multi("scatter", operands, [x.type for x in inputs], op.attrs, op.regions)
    for d, block in spare:
        results = [b.slice(r, d, 0, block) for r in results]
    return results


RULES = {"gather": gather, "scatter": scatter}
