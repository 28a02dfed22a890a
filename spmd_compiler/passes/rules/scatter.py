"""scatter, with all its dimension numbers and any number of operands.

Window dims that are updated whole and batching dims are parallel. An indexed dim of the operand may be sharded: a device
drops the updates of other blocks. If the lookups are sharded, the result is partial, of the combiner's kind.
"""

from __future__ import annotations

from ...ir.graph import Op, Value
from ...ir.layout import local_block
from ...ir.optable import reducer_kind
from ...ir.types import TensorType
from ..cost import Work
from ..emit.builder import Builder
from .base import Rule, Strategy, factored, shape_of
from .gather import Factors, window_dims
from .lookups import Lookups, between, count, index_dims, localise, signed, take_apart


def scatter(op: Op) -> Rule:
    at = op.attrs
    n = (len(op.operands) - 1) // 2
    operand, indices, updates = (shape_of(op.operands[i]) for i in (0, n, n + 1))
    kind = reducer_kind(op.regions[0]) if n == 1 else None
    f = Factors()
    operand_dims: list[int | None] = [None] * len(operand)
    lookup_dims: list[int | None] = [None] * len(indices)
    update_dims: list[int | None] = [None] * len(updates)
    shared: dict[int, tuple[int, int]] = {}  # factors of lookups: several devices may update one position
    rows = [u for u in range(len(updates)) if u not in at["update_window_dims"]]
    for d, u in zip(index_dims(op, len(indices)), rows, strict=True):
        factor = lookup_dims[d] = update_dims[u] = f.new(indices[d])
        shared[factor] = d, u
    batching = at.get("input_batching_dims", ()), at.get("scatter_indices_batching_dims", ())
    for o, d in zip(*batching, strict=True):
        factor = operand_dims[o] = lookup_dims[d]
        if factor is not None:
            shared.pop(factor)
    window = window_dims(op, len(operand), "inserted_window_dims", "input_batching_dims")
    for d, u in zip(window, at["update_window_dims"], strict=True):
        if updates[u] == operand[d]:
            operand_dims[d] = update_dims[u] = f.new(operand[d])
    for d in at["scatter_dims_to_operand_dims"]:
        if operand_dims[d] is None:
            operand_dims[d] = f.new(operand[d])
    partial = [] if kind is None else [s for s in shared if f.sizes[s] > 1]
    return factored(
        [operand_dims] * n + [lookup_dims] + [update_dims] * n,
        [operand_dims] * n,
        f.sizes,
        _expand,
        whole=shared,
        linear=[((0, 2), (kind,))] if kind is not None else [],
        extra=[Strategy((kind, *shared[s]), (kind,), s) for s in partial if kind is not None],
        work=Work(3 * sum(v.type.nbytes for v in op.operands[n + 1 :])),
    )


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    at = dict(op.attrs)
    n = (len(op.operands) - 1) // 2
    source, layout = op.operands[0], op.operands[0].layout
    assert layout is not None
    inputs, indices, updates = args[:n], args[n], args[n + 1 :]
    indices = _without_padding(b, op, indices)
    shape = source.type.shape
    window = dict(
        zip(
            window_dims(op, len(shape), "inserted_window_dims", "input_batching_dims"),
            at["update_window_dims"],
            strict=True,
        )
    )
    sizes = shape_of(op.operands[n + 1])
    cut = [
        (k, d)
        for k, d in enumerate(at["scatter_dims_to_operand_dims"])
        if layout.dims[d] and not (d in window and sizes[window[d]] == shape[d])
    ]
    spare: list[tuple[int, int]] = []  # (dim, block) of dims that got one position more, for updates to drop
    if cut:
        lookups = take_apart(b, op, indices, at.get("scatter_indices_batching_dims", ()))
        lookups = lookups._replace(parts=[signed(b, p) for p in lookups.parts])
        for k, d in cut:
            if d in window:
                lookups, updates = _by_position(b, lookups, updates, k, window, d, shape[d])
        for k, d in cut:
            block = local_block(layout, d, shape[d], b.mesh)
            lookups.parts[k], inside = localise(b, lookups.parts[k], b.offset(layout.dims[d], block), block)
            if count(lookups) == 1:
                # XLA makes a dynamic_update_slice of a scatter with one lookup, which clamps one that is out of bounds
                type = TensorType(lookups.shape, lookups.parts[k].type.dtype)
                lookups.parts[k] = b.select(inside, lookups.parts[k], b.constant(block, type))
                spare.append((d, block))
                inputs = [b.pad(x, d, 0, 1) for x in inputs]
        indices = lookups.joined(b)
        at["index_vector_dim"] = len(lookups.shape)
        at["scatter_indices_batching_dims"] = tuple(lookups.batching)
        at["inserted_window_dims"] = tuple(sorted({*at["inserted_window_dims"], *(d for _, d in cut)}))
        at["update_window_dims"] = tuple(window.values())
        at["indices_are_sorted"] = False
    results = b.multi("scatter", [*inputs, indices, *updates], [x.type for x in inputs], at, op.regions)
    for d, block in spare:
        results = [b.slice(r, d, 0, block) for r in results]
    return results


def _without_padding(b: Builder, op: Op, indices: Value) -> Value:
    """Lookups that don't exist must not update anything: they are out of bounds."""
    source = op.operands[(len(op.operands) - 1) // 2]
    assert source.layout is not None
    real = b.valid(indices, source.layout, source.type, index_dims(op, source.type.rank))
    if real is None:
        return indices
    indices = signed(b, indices)
    assert isinstance(indices.type, TensorType)
    return b.select(real, indices, b.constant(-1, indices.type))


def _by_position(
    b: Builder,
    lookups: Lookups,
    updates: list[Value],
    k: int,
    window: dict[int, int],
    dim: int,
    extent: int,
) -> tuple[Lookups, list[Value]]:
    """Updates of windows along `dim` become updates of single positions, in the same order where they meet; removes the
    dim from `window`. A window that is not wholly inside the operand, of `extent` there, is dropped as a whole."""
    place = window.pop(dim)
    rank = updates[0].type.rank
    size = updates[0].type.shape[place]
    start = lookups.parts[k]
    assert isinstance(start.type, TensorType)
    parts = list(lookups.parts)
    parts[k] = b.select(between(b, start, extent - size + 1), start, b.constant(-size, start.type))
    order = (*(u for u in range(rank) if u != place), place)
    if place != rank - 1:
        updates = [
            b.op(
                "transpose",
                [u],
                TensorType(tuple(u.type.shape[i] for i in order), u.type.dtype),
                {"permutation": order},
            )
            for u in updates
        ]
    for d, u in window.items():
        window[d] = u - (u > place)
    return Lookups(parts, lookups.batching).unrolled(b, k, size, len(lookups.shape)), updates


RULES = {"scatter": scatter}
