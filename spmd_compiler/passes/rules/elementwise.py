"""Elementwise ops: every dim is a factor. Partials pass where the op is linear in the operand that has them."""

from __future__ import annotations

import numpy as np

from ...ir.graph import Op, Value
from ...ir.layout import PARTIAL_KINDS
from ...ir.optable import ELEMENTWISE
from ...ir.types import TensorType, is_complex, is_float
from ..cost import Work
from ..emit.builder import Builder
from .base import Rule, factored, numbered, shape_of
from .reducers import Scalars

# groups of operands that may be partial together, each with the kinds of partial that pass
Linear = list[tuple[tuple[int, ...], tuple[str, ...]]]
_ADDITIVE = ("sum",)


def _linear(op: Op) -> Linear:
    dtype = op.results[0].type.dtype
    source = op.operands[0].type.dtype
    numeric = dtype != "i1" and source != "i1"
    if op.name in ("add", "subtract", "complex") and numeric:
        return [((0, 1), _ADDITIVE)]
    if op.name in ("negate", "real", "imag", "chlo.conj") and numeric:
        return [((0,), _ADDITIVE)]
    if op.name == "multiply" and numeric:
        return [((0,), _ADDITIVE), ((1,), _ADDITIVE), ((0, 1), ("mul",))]
    if op.name == "maximum":
        return [((0, 1), ("max",))]
    if op.name == "minimum":
        return [((0, 1), ("min",))]
    if op.name in ("and", "or", "xor"):
        return [((0, 1), (op.name,))]
    if op.name == "convert" and numeric and _widens(source, dtype):
        return [((0,), _ADDITIVE)]
    return []


def _widens(source: str, target: str) -> bool:
    """Every sum in `source` can be taken in `target` instead, with no less precision."""
    if source == target:  # JAX writes such where a number of Python's gets a type
        return True
    wide = ("bf16", "f16", "f32", "f64")
    if is_float(source) and target in wide:
        return source not in wide or (wide.index(target) > 1 and source != "f64")
    return False


def elementwise(op: Op) -> Rule:
    return _elementwise(op, _linear(op))


def _elementwise(op: Op, linear: Linear) -> Rule:
    shape = shape_of(op.results[0])
    dims = numbered(shape)
    operands = [dims if v.type.rank == len(shape) else () for v in op.operands]
    work = Work.over(op)
    return factored(operands, [dims] * len(op.results), shape, Builder.local, linear=linear, work=work)


def divide(op: Op, scalars: Scalars) -> Rule:
    """A sum is divided term by term where that can't make NaN of what is infinite as a whole."""
    dtype = op.results[0].type.dtype
    linear = (is_float(dtype) or is_complex(dtype)) and is_safe_divisor(op.operands[1], scalars)
    return _elementwise(op, [((0,), _ADDITIVE)] if linear else [])


def is_safe_divisor(value: Value, scalars: Scalars) -> bool:
    """Whether a value is known to be one number that is finite and not zero."""
    known = scalars.get(value)
    return known is not None and bool(np.isfinite(known.array).all() and known.array.all())


def bitcast_convert(op: Op) -> Rule:
    """Between types of one size it is elementwise; else the last dim of the wider shape holds the parts."""
    source, target = shape_of(op.operands[0]), shape_of(op.results[0])
    common = min(len(source), len(target))
    dims = numbered(target[:common])
    return factored(
        [dims + (None,) * (len(source) - common)],
        [dims + (None,) * (len(target) - common)],
        target[:common],
        Builder.local,
        work=Work(2 * op.results[0].type.nbytes),
    )


def select(op: Op) -> Rule:
    shape = shape_of(op.results[0])
    dims = numbered(shape)
    pred = dims if op.operands[0].type.rank else ()
    return factored(
        [pred, dims, dims],
        [dims],
        shape,
        Builder.local,
        linear=[((1, 2), PARTIAL_KINDS)],
        work=Work(4 * op.results[0].type.nbytes),
    )


def clamp(op: Op) -> Rule:
    """clamp(min, x, max); the bounds may be scalars."""
    shape = shape_of(op.results[0])
    dims = numbered(shape)
    operands = [dims if v.type.rank == len(shape) else () for v in op.operands]
    return factored(operands, [dims], shape, Builder.local, work=Work(4 * op.results[0].type.nbytes))


def constant(op: Op) -> Rule:
    """Any sharding: a splat is made in its local shape, other data is sliced."""
    shape = shape_of(op.results[0])
    dims = numbered(shape)
    splat = op.attrs["value"].splat
    return factored([], [dims], shape, _expand_constant, work=Work(0 if splat else op.results[0].type.nbytes))


def _expand_constant(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    value = op.results[0]
    layout = value.layout
    assert layout is not None and isinstance(value.type, TensorType)
    if layout.is_replicated or op.attrs["value"].splat:
        return b.local(op, args)
    from ..relayout.emission import take_block  # the same slicing that a relayout does

    whole = b.op("constant", [], value.type, op.attrs)
    for d, axes in enumerate(layout.dims):
        if axes:
            whole = take_block(b, whole, layout, value.type, d)
    return [whole]


def iota(op: Op) -> Rule:
    shape = shape_of(op.results[0])
    return factored([], [numbered(shape)], shape, _expand_iota, work=Work(op.results[0].type.nbytes))


def _expand_iota(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    value = op.results[0]
    layout = value.layout
    assert layout is not None
    (local,) = b.local(op, args)
    dim = op.attrs["iota_dimension"]
    axes = layout.dims[dim]
    if not axes:
        return [local]
    start = b.offset(axes, local.type.shape[dim])
    if local.type.dtype != "i32":
        start = b.op("convert", [start], TensorType((), local.type.dtype))
    return [b.binary("add", local, b.broadcast(start, local.type.shape))]


RULES = {name: elementwise for name, operands in ELEMENTWISE.items() if operands < 3}
RULES |= {
    "divide": divide,
    "bitcast_convert": bitcast_convert,
    "select": select,
    "clamp": clamp,
    "constant": constant,
    "iota": iota,
    "map": elementwise,
}
