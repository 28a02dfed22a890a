"""Updates of one window whose place is known, `x.at[1:-1].set(u)`: elementwise ops of x and u padded to its size, so that
both may be sharded, and devices exchange what the pad needs. Windows of less than half of x stay updates in place."""

from __future__ import annotations

from ...ir.graph import Op, Value, constant
from ...ir.optable import COMBINE, reducer_kind
from ...ir.types import TensorType
from ..emit.builder import identity_value
from .chains import Defs, fill_of
from .known_values import known_integers


def dynamic_update_slice(op: Op, defs: Defs) -> list[Op] | None:
    x, update, *starts = op.operands
    known = [fill_of(v, defs) for v in starts]
    if not _is_large(update, x) or any(s is None for s in known):
        return None
    sizes = update.type.shape
    room = zip(known, x.type.shape, sizes, strict=True)
    low = tuple(min(max(int(s), 0), n - k) for s, n, k in room if s is not None)
    return _elementwise(op, x, update, low, None)


def scatter(op: Op, defs: Defs) -> list[Op] | None:
    """A scatter with one lookup that is within bounds, and that overwrites or has a plain combiner."""
    at = op.attrs
    if len(op.operands) != 3 or at.get("input_batching_dims"):
        return None
    x, indices, update = op.operands
    vector = at["index_vector_dim"]
    if not _is_large(update, x) or any(n != 1 for d, n in enumerate(indices.type.shape) if d != vector):
        return None
    region = op.regions[0]
    kind = reducer_kind(region)
    if kind is None and (region.ops or region.returns[0] is not region.args[1]):
        return None
    starts = known_integers(indices, defs)
    if starts is None:
        return None
    sizes = [1] * x.type.rank
    window = [d for d in range(x.type.rank) if d not in at["inserted_window_dims"]]
    for d, u in zip(window, at["update_window_dims"], strict=True):
        sizes[d] = update.type.shape[u]
    low = [0] * x.type.rank
    for d, s in zip(at["scatter_dims_to_operand_dims"], starts.reshape(-1).tolist(), strict=True):
        low[d] = s
    if any(s < 0 or s + k > n for s, k, n in zip(low, sizes, x.type.shape, strict=True)):
        return None
    shaped = Value(
        update.type.with_shape(tuple(sizes)) if isinstance(update.type, TensorType) else update.type
    )
    new = _elementwise(op, x, shaped, tuple(low), kind)
    return [Op("reshape", [update], [shaped], {}, (), op.loc), *new]


def _is_large(update: Value, x: Value) -> bool:
    return 0 < x.type.nbytes <= 2 * update.type.nbytes


def _elementwise(op: Op, x: Value, update: Value, low: tuple[int, ...], kind: str | None) -> list[Op]:
    """kind: of the combiner; None overwrites."""
    type = x.type
    assert isinstance(type, TensorType)
    fill = constant(TensorType((), type.dtype), 0 if kind is None else identity_value(kind, type.dtype))
    sizes = update.type.shape
    high = tuple(n - s - k for n, s, k in zip(type.shape, low, sizes, strict=True))
    attrs = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": (0,) * type.rank}
    padded = Op("pad", [update, fill.results[0]], [Value(type)], attrs, (), op.loc)
    new = [fill, padded]
    if kind is not None:
        return [*new, Op(COMBINE[kind], [x, padded.results[0]], op.results, {}, (), op.loc)]
    inside: Value | None = None
    for d, (s, k, n) in enumerate(zip(low, sizes, type.shape, strict=True)):
        for bound, direction in ((s, "GE"), (s + k, "LT")):
            if bound in (0, n):
                continue
            index = TensorType(type.shape, "i32")
            at = Op("iota", [], [Value(index)], {"iota_dimension": d}, (), op.loc)
            limit = constant(index, bound)
            how = {"comparison_direction": direction, "compare_type": "SIGNED"}
            flag = Value(TensorType(type.shape, "i1"))
            new += [at, limit, Op("compare", [at.results[0], limit.results[0]], [flag], how, (), op.loc)]
            if inside is not None:
                both = Value(flag.type)
                new.append(Op("and", [inside, flag], [both], {}, (), op.loc))
                flag = both
            inside = flag
    if inside is None:  # the window is all of x
        always = constant(TensorType(type.shape, "i1"), True)
        new.append(always)
        inside = always.results[0]
    return [*new, Op("select", [inside, padded.results[0], x], op.results, {}, (), op.loc)]
