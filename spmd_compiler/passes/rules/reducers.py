"""What the region of a reduction computes: a reducer with a name, or at least whether its init is neutral."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...ir.graph import Block, Dense, Value
from ...ir.optable import COMPARE
from ...ir.types import numpy_dtype
from ..emit.builder import is_neutral

Scalars = Mapping[Value, Dense]  # the scalar constants of the program
IDEMPOTENT = ("max", "min", "and", "or")  # kinds of which any init is neutral, once it is in

_EVALUATE = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
    "not": np.invert,
    "select": np.where,
    "negate": np.negative,
    "abs": np.abs,
    "exponential": np.exp,
    "log": np.log,
    "log_plus_one": np.log1p,
    "exponential_minus_one": np.expm1,
    "divide": np.true_divide,
    "is_finite": np.isfinite,
}


def evaluate(block: Block, args: list[np.ndarray]) -> list[np.ndarray] | None:
    """Runs a scalar region with numpy; None if it has an op that is not elementwise arithmetic."""
    env: dict[Value, Any] = dict(zip(block.args, args, strict=True))
    for op in block.ops:
        if op.name == "constant":
            env[op.results[0]] = op.attrs["value"].array
            continue
        operands = [env.get(v) for v in op.operands]
        if any(x is None for x in operands):
            return None
        if op.name == "compare":
            value = COMPARE[op.attrs["comparison_direction"]](*operands)
        elif op.name == "convert":
            value = operands[0]
        elif op.name in _EVALUATE:
            value = _EVALUATE[op.name](*operands)
        else:
            return None
        env[op.results[0]] = np.asarray(value).astype(numpy_dtype(op.results[0].type.dtype))
    return [env[v] for v in block.returns] if all(v in env for v in block.returns) else None


def neutral_init(block: Block, inits: list[Value], scalars: Scalars) -> bool:
    """True if combining the inits once more changes nothing: region(init, init) = init, so that by associativity
    region(init, region(init, x)) = region(init, x)."""
    values = [scalars.get(v) for v in inits]
    if any(v is None for v in values):
        return False
    arrays = [v.array for v in values if v is not None]
    with np.errstate(all="ignore"):
        got = evaluate(block, arrays + arrays)
    return got is not None and all(
        np.array_equal(x, y, equal_nan=x.dtype.kind in "fc") for x, y in zip(got, arrays, strict=True)
    )


def is_identity(kind: str, init: Value, scalars: Scalars) -> bool:
    """True if a reduction's init is known to be the neutral element of its kind."""
    value = scalars.get(init)
    return is_neutral(kind, value and value.array, init.type.dtype)
