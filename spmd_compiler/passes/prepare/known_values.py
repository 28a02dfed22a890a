"""Arrays that a program computes from constants and positions alone, as places in others: `floor((iota + 0.5) * 64 / 128)`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...ir.graph import Op, Value
from ...ir.optable import COMPARE
from ...ir.types import TensorType, is_complex, is_float, numpy_dtype
from .chains import Defs, fill_of

LARGE = 1 << 16  # elements, above which none is computed
DEEP = 64  # ops, one behind the other, that are followed
FAR = 1 << 31  # numbers from which on conversions differ
_MOVES = {"broadcast_in_dim", "concatenate", "reshape", "slice", "splice"}


def _divided(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Of integers what is left is cut off."""
    if a.dtype.kind == "f":
        return np.divide(a, b)
    whole = np.abs(a.astype(np.int64)) // np.abs(b.astype(np.int64))
    return whole * np.sign(a).astype(np.int64) * np.sign(b).astype(np.int64)


_ELEMENTWISE: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "add": np.add,
    "and": np.logical_and,  # of flags
    "ceil": np.ceil,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "compare": np.equal,  # and the others
    "convert": np.asarray,
    "divide": _divided,
    "floor": np.floor,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "negate": np.negative,
    "or": np.logical_or,
    "remainder": np.fmod,
    "select": np.where,
    "sign": np.sign,
    "subtract": np.subtract,
}


def known_integers(value: Value, defs: Defs) -> np.ndarray | None:
    """The elements of an integer array, if they are known: also as rounding in another precision, or none, would have them."""
    if is_float(value.type.dtype) or (usual := _Evaluation(defs, False).value(value)) is None:
        return None
    exact = _Evaluation(defs, True).value(value)
    return usual if exact is not None and np.array_equal(usual, exact) else None


class _Evaluation:
    """wide: floats have 64 bits."""

    def __init__(self, defs: Defs, wide: bool):
        self.defs, self.wide = defs, wide
        self.found: dict[Value, np.ndarray | None] = {}

    def value(self, value: Value, depth: int = DEEP) -> np.ndarray | None:
        """None if it isn't known, or too large or too far to look."""
        if value not in self.found:
            self.found[value] = self.made(value, depth) if depth else None
        return self.found[value]

    def made(self, value: Value, depth: int) -> np.ndarray | None:
        type = value.type
        if not isinstance(type, TensorType) or type.size > LARGE or is_complex(type.dtype):
            return None
        if (fill := fill_of(value, self.defs)) is not None:
            return np.broadcast_to(fill, type.shape).astype(self.dtype(type))
        op = self.defs.get(value)
        if op is None:
            return None
        if op.name == "constant":
            return op.attrs["value"].array.astype(self.dtype(type))
        if op.name == "iota":
            line, d = np.arange(type.shape[op.attrs["iota_dimension"]]), op.attrs["iota_dimension"]
            lined = line.reshape([-1 if i == d else 1 for i in range(type.rank)])
            return np.broadcast_to(lined, type.shape).astype(self.dtype(type))
        operands: list[np.ndarray] = []
        for v in op.operands if op.name in _ELEMENTWISE or op.name in _MOVES else ():
            if (known := self.value(v, depth - 1)) is None:
                return None
            operands.append(known)
        return self.computed(op, operands, type) if operands else None

    def dtype(self, type: TensorType) -> np.dtype:
        return np.dtype(np.float64) if self.wide and is_float(type.dtype) else numpy_dtype(type.dtype)

    def computed(self, op: Op, operands: list[np.ndarray], type: TensorType) -> np.ndarray | None:
        at, first = op.attrs, operands[0]
        if op.name == "broadcast_in_dim":
            lined = np.ones(type.rank, int)
            lined[list(at["broadcast_dimensions"])] = first.shape
            return np.broadcast_to(first.reshape(lined), type.shape)
        if op.name == "reshape":
            return first.reshape(type.shape)
        if op.name == "concatenate":
            return np.concatenate(operands, at["dimension"])
        if op.name == "slice":
            cuts = zip(at["start_indices"], at["limit_indices"], at["strides"], strict=True)
            return first[tuple(slice(*cut) for cut in cuts)]
        if op.name == "splice":
            cuts, d = zip(operands, at["starts"], at["limits"], strict=True), at["dimension"]
            return np.concatenate([x.take(range(low, high), d) for x, low, high in cuts], d)
        if op.name in ("and", "or") and type.dtype != "i1":
            return None  # of bits
        if op.name in ("divide", "remainder") and not operands[-1].all():
            return None
        if op.name == "convert" and first.dtype.kind == "f" and not (np.abs(first) < FAR).all():
            return None
        compute = COMPARE[at["comparison_direction"]] if op.name == "compare" else _ELEMENTWISE[op.name]
        with np.errstate(all="ignore"):
            return np.asarray(compute(*operands)).astype(self.dtype(type))
