"""What only adds dims of one element, or takes them away, on its way into another op, or back.

JAX adds such dims to a bias before it broadcasts that; the gradient is summed, gets them back, and is summed over them. Each of these
would have a layout of its own, and be a place for relayouts: partitioners that meet one reduce the gradient there, rather than as the
parameter wants it.
"""

from __future__ import annotations

from ...ir.graph import Op
from ...ir.optable import reducer_kind
from ..emit.builder import is_neutral
from .chains import Defs, fill_of


def reduce_of_units(op: Op, defs: Defs) -> list[Op] | None:
    """A reduction of nothing but dims of one element is a reshape, as XLA has it too; of a sum -0.0 stays that."""
    value, kind = op.operands[0], reducer_kind(op.regions[0])
    if len(op.results) > 1 or kind is None or any(value.type.shape[d] > 1 for d in op.attrs["dimensions"]):
        return None
    fill = fill_of(op.operands[1], defs) if value.type.size else None
    if not is_neutral(kind, fill, value.type.dtype):
        return None
    return [Op("reshape", [value], op.results, {}, (), op.loc)]


def reshape_of_units(op: Op, defs: Defs) -> list[Op] | None:
    """Dims of one element that come and go."""
    inner = defs.get(op.operands[0])
    if inner is None or not (_is_of_units(inner) and _is_of_units(op)):
        return None
    return [Op("reshape", inner.operands, op.results, {}, (), op.loc)]


def broadcast_of_units(op: Op, defs: Defs) -> list[Op] | None:
    """Dims of one element that are then broadcast, or come back."""
    inner = defs.get(op.operands[0])
    if inner is None or not _is_of_units(inner):
        return None
    (source,), (result,) = inner.operands, inner.results
    before = inner.attrs.get("broadcast_dimensions")
    if before is None:
        if 1 in source.type.shape:
            return reshape_of_units(op, defs)
        before = [d for d, n in enumerate(result.type.shape) if n != 1]
    dims = op.attrs["broadcast_dimensions"]
    attrs = {"broadcast_dimensions": tuple(dims[d] for d in before)}
    return [Op("broadcast_in_dim", [source], op.results, attrs, (), op.loc)]


def _is_of_units(op: Op) -> bool:
    """Whether an op does nothing but add dims of one element, or take them away."""
    if op.name not in ("reshape", "broadcast_in_dim"):
        return False
    dims = op.attrs.get("broadcast_dimensions", ())
    before, after = ([n for n in v.type.shape if n != 1] for v in (op.operands[0], op.results[0]))
    return before == after and list(dims) == sorted(dims)
