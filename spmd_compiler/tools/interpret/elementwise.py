"""Elementwise ops. Small floats are computed in f32 and rounded once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.special as special

from ...ir.graph import Op
from ...ir.optable import COMPARE
from ...ir.types import numpy_dtype

Array = np.ndarray


def _divide(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return a / b
    safe = np.where(b == 0, 1, b)
    quotient = np.abs(a) // np.abs(safe) * np.sign(a) * np.sign(safe) if a.dtype.kind == "i" else a // safe
    return np.where(b == 0, np.array(-1).astype(a.dtype), quotient)


def _remainder(a: Array, b: Array) -> Array:
    return np.where(b == 0, a, np.fmod(a, np.where(b == 0, 1, b))) if a.dtype.kind in "iu" else np.fmod(a, b)


def _shifted(shift: Callable[..., Array], fill: Callable[[Array], Array]) -> Callable[..., Array]:
    def run(a: Array, b: Array) -> Array:
        bits = a.dtype.itemsize * 8
        inside = (b >= 0) & (b < bits)
        return np.where(inside, shift(a, np.where(inside, b, 0)), fill(a))

    return run


def _logical_right(a: Array, b: Array) -> Array:
    unsigned = np.dtype(f"u{a.dtype.itemsize}")
    return np.right_shift(a.view(unsigned), b.astype(unsigned)).view(a.dtype)


def _sign(a: Array) -> Array:
    return np.where(np.isnan(a), a, np.sign(a)) if a.dtype.kind == "f" else np.sign(a)


def _count_leading_zeros(a: Array) -> Array:
    bits = a.dtype.itemsize * 8
    values = a.view(np.dtype(f"u{a.dtype.itemsize}")) if a.dtype.kind == "i" else a
    return np.array([bits - int(v).bit_length() for v in values.reshape(-1)], a.dtype).reshape(a.shape)


def _popcnt(a: Array) -> Array:
    mask = (1 << a.dtype.itemsize * 8) - 1
    return np.array([(int(v) & mask).bit_count() for v in a.reshape(-1)], a.dtype).reshape(a.shape)


def _power(a: Array, b: Array) -> Array:
    if a.dtype.kind not in "iu":
        return np.power(a, b)
    wide = np.where(b < 0, 0, np.power(a, np.where(b < 0, 0, b)))
    return np.where(b < 0, np.where(np.abs(a) == 1, np.where(b % 2, a, 1), 0), wide)


def _away(a: Array) -> Array:
    return np.copysign(np.floor(np.abs(a) + 0.5), a)


UNARY: dict[str, Callable[[Array], Any]] = {
    "abs": np.abs,
    "cbrt": np.cbrt,
    "ceil": np.ceil,
    "cosine": np.cos,
    "count_leading_zeros": _count_leading_zeros,
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "floor": np.floor,
    "imag": np.imag,
    "is_finite": np.isfinite,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": lambda a: 1 / (1 + np.exp(-a)),
    "negate": np.negative,
    "not": np.invert,
    "popcnt": _popcnt,
    "real": np.real,
    "round_nearest_afz": _away,
    "round_nearest_even": np.rint,
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "sign": _sign,
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
    "chlo.acos": np.arccos,
    "chlo.acosh": np.arccosh,
    "chlo.asin": np.arcsin,
    "chlo.asinh": np.arcsinh,
    "chlo.atan": np.arctan,
    "chlo.atanh": np.arctanh,
    "chlo.bessel_i1e": special.i1e,
    "chlo.conj": np.conj,
    "chlo.cosh": np.cosh,
    "chlo.digamma": special.digamma,
    "chlo.erf": special.erf,
    "chlo.erf_inv": special.erfinv,
    "chlo.erfc": special.erfc,
    "chlo.is_inf": np.isinf,
    "chlo.is_neg_inf": np.isneginf,
    "chlo.is_pos_inf": np.isposinf,
    "chlo.lgamma": special.gammaln,
    "chlo.sinh": np.sinh,
    "chlo.square": np.square,
    "chlo.tan": np.tan,
}
BINARY: dict[str, Callable[[Array, Array], Any]] = {
    "add": np.add,
    "and": np.bitwise_and,
    "atan2": np.arctan2,
    "complex": lambda a, b: a + 1j * b,
    "divide": _divide,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "or": np.bitwise_or,
    "power": _power,
    "remainder": _remainder,
    "shift_left": _shifted(np.left_shift, np.zeros_like),
    "shift_right_arithmetic": _shifted(np.right_shift, lambda a: np.where(a < 0, -1, 0).astype(a.dtype)),
    "shift_right_logical": _shifted(_logical_right, np.zeros_like),
    "subtract": np.subtract,
    "xor": np.bitwise_xor,
    "chlo.next_after": np.nextafter,
    "chlo.polygamma": lambda n, x: special.polygamma(n.astype(int), x),
    "chlo.zeta": special.zeta,
}


def _compare(op: Op, a: Array, b: Array) -> Array:
    if op.attrs.get("compare_type") == "TOTALORDER":
        a, b = total_order(a), total_order(b)
    return COMPARE[op.attrs["comparison_direction"]](a, b)


def total_order(a: Array) -> Array:
    """Integers in the order -NaN < -Inf < … < -0 < 0 < … < Inf < NaN."""
    bits = a.view(np.dtype(f"i{a.dtype.itemsize}"))
    return np.where(bits < 0, np.iinfo(bits.dtype).min - bits - 1, bits)


# bounds of types that numpy casts to few others
_TINY = {"int4": (-8, 7), "uint4": (0, 15), "int2": (-2, 1), "uint2": (0, 3)}


def _convert(a: Array, dtype: np.dtype) -> Array:
    if a.dtype.name in _TINY:
        a = a.astype(np.int8)
    if dtype == np.bool_:
        return a != 0
    if a.dtype.kind in "c" and dtype.kind != "c":
        a = a.real
    if dtype.name in _TINY and a.dtype.kind not in "iub":
        return np.clip(_convert(a, np.dtype(np.int8)), *_TINY[dtype.name]).astype(dtype)
    if dtype.kind in "iu" and a.dtype.kind not in "iub":
        info = np.iinfo(dtype)
        wide = np.trunc(np.nan_to_num(np.asarray(a, np.float64), nan=0.0, posinf=2.0**80, neginf=-(2.0**80)))
        low, high = float(info.min), float(info.max)
        inside = (wide >= low) & (wide < high)
        bound = np.where(wide >= high, np.array(info.max, dtype), np.array(info.min, dtype))
        return np.where(inside, np.where(inside, wide, 0).astype(dtype), bound)
    return a.astype(dtype)


def evaluate(op: Op, args: list[Array]) -> Array:
    """The one result of an elementwise op; arrays of any shape may stand for its scalars."""
    name, dtype = op.name, numpy_dtype(op.results[0].type.dtype)
    if name == "convert":
        return _convert(args[0], dtype)
    if name == "select":
        return np.where(*args)
    if name == "compare":
        return np.asarray(_compare(op, *args))
    if name == "clamp":
        return np.minimum(np.maximum(args[1], args[0]), args[2])
    small = args[0].dtype.itemsize < 4 and args[0].dtype.kind in "fV" and dtype.kind != "b"
    if small:
        args = [a.astype(np.float32) for a in args]
    with np.errstate(all="ignore"):
        found = UNARY[name](args[0]) if len(args) == 1 else BINARY[name](*args)
    return np.asarray(found).astype(dtype)


SUPPORTED = frozenset({*UNARY, *BINARY, "convert", "select", "compare", "clamp"})
