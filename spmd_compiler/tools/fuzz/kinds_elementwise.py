"""Kinds of elementwise ops: arithmetic, bits, comparisons, conversions, and functions that round."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...ir.graph import Block, Op, Value
from ...ir.types import TensorType, numpy_dtype
from .scope import COMPLEX, DTYPES, EXACT, FLOATS, INTS, NUMBERS, SIGNED, Scope, comparison

_ROUNDINGS = ("floor", "ceil", "round_nearest_even", "round_nearest_afz")
_BITS = ("and", "or", "xor")
_SHIFTS = ("shift_left", "shift_right_arithmetic", "shift_right_logical")
# The largest number up to which a type holds all integers.
_WHOLE = {**EXACT, "f8e4m3fn": 16.0, "f8e5m2": 8.0, "i1": 1.0, "i4": 7.0, "u4": 15.0}
_FINITE = {"f16": 6e4, "f8e4m3fn": 400.0, "f8e5m2": 5e4}


def unary(s: Scope) -> None:
    x = s.array(rank=0)
    if x is None:
        return
    dtype, bound = x.type.dtype, s.bound[x]
    if dtype == "i1":
        s.op("not", [x], x.type, 1)
        return
    names = ["negate", "chlo.conj"] if dtype in COMPLEX else ["negate"]
    names += ["abs", "sign"] if dtype in (*FLOATS, *SIGNED) else []
    if dtype in INTS:
        names += ["not", "popcnt", "count_leading_zeros"]
    if dtype in FLOATS:
        names += _ROUNDINGS
    if bound**2 < EXACT.get(dtype, 0):
        names.append("chlo.square")
    name = s.rng.choice(names)
    s.op(
        name, [x], x.type, bound**2 if name == "chlo.square" else np.inf if name == "not" else max(bound, 64)
    )


def binary(s: Scope) -> None:
    x = s.array(rank=0)
    if x is None:
        return
    y, dtype = s.like(x), x.type.dtype
    if dtype == "i1":
        s.op(s.rng.choice(_BITS), [x, y], x.type, 1)
        return
    names = ["add", "subtract", "multiply"]
    names += ["maximum", "minimum"] if dtype not in COMPLEX else []
    names += [*_BITS, *_SHIFTS, "divide", "remainder", "power"] if dtype in INTS else []
    names += ["remainder"] if dtype in FLOATS else []
    name = s.rng.choice(names)
    a, b = s.bound[x], s.bound[y]
    if name == "power":
        y = s.tame(y)
    wild = name in ("power", *_SHIFTS, *_BITS)
    s.op(name, [x, y], x.type, np.inf if wild else a * b if name == "multiply" else a + b)


def compare(s: Scope) -> None:
    x = s.array(*NUMBERS, *COMPLEX)
    if x is None:
        return
    ordered = x.type.dtype not in COMPLEX
    op, flag = comparison(s.rng.choice(("EQ", "NE", *("LT", "LE", "GT", "GE") * ordered)), x, s.like(x))
    if x.type.dtype in FLOATS and s.rng.random() < 0.2:
        op.attrs["compare_type"] = "TOTALORDER"
    s.op(op.name, op.operands, flag.type, 1, op.attrs)


def ask(s: Scope) -> None:
    x = s.array(*FLOATS)
    if x is not None:
        name = s.rng.choice(("is_finite", "chlo.is_inf", "chlo.is_neg_inf", "chlo.is_pos_inf"))
        s.op(name, [x], TensorType(x.type.shape, "i1"), 1)


def select(s: Scope) -> None:
    p = s.array("i1")
    if p is None:
        return
    shape = p.type.shape
    x = s.pick(lambda v: v.type.shape == shape)
    assert x is not None
    y = s.like(x)
    if s.rng.random() < 0.15:
        p = s.pick(lambda v: v.type == TensorType((), "i1")) or p
    s.op("select", [p, x, y], x.type, max(s.bound[x], s.bound[y]))


def clamp(s: Scope) -> None:
    x = s.array(*FLOATS, *INTS)
    if x is not None:
        lower = 0 if x.type.dtype not in SIGNED else -2
        bounds = [
            s.scalar(x.type.dtype, n) if s.rng.random() < 0.5 else s.data(_tensor(x), n, n + 1)
            for n in (lower, 2)
        ]
        s.op("clamp", [bounds[0], x, bounds[1]], x.type, 3)


def convert(s: Scope) -> None:
    x = s.array(rank=0)
    if x is None:
        return
    to = s.rng.choice((*DTYPES, "f8e4m3fn", "f8e5m2", "i4", "u4"))
    if to == x.type.dtype:
        return
    if s.exact and s.bound[x] > _WHOLE.get(to, np.inf if to in INTS else 0):
        return
    if to in INTS and s.bound[x] > 127 and x.type.dtype not in INTS:
        x = s.tame(x)
    if s.bound[x] > _FINITE.get(to, np.inf) and s.rng.random() < 0.9:
        return
    small = s.op("convert", [x], TensorType(x.type.shape, to), min(s.bound[x], _WHOLE.get(to, np.inf)))
    if to not in DTYPES:  # few ops take these
        back = "f32" if to[0] == "f" else "i32"
        s.op("convert", [small], TensorType(x.type.shape, back), s.bound[small])


def parts(s: Scope) -> None:
    """Complex numbers from real ones, or real ones from complex ones."""
    x = s.array("f32", "f64", *COMPLEX)
    if x is None:
        return
    wide = "c128" if x.type.dtype in ("f64", "c128") else "c64"
    if x.type.dtype in COMPLEX:
        real = TensorType(x.type.shape, "f64" if wide == "c128" else "f32")
        s.op(s.rng.choice(("real", "imag")), [x], real, s.bound[x])
    else:
        y = s.like(x)
        s.op("complex", [x, y], TensorType(x.type.shape, wide), s.bound[x] + s.bound[y])


def bitcast(s: Scope) -> None:
    """To integers of the same size, of half the size with a dim more, or of twice the size with a dim less."""
    x = s.array(*FLOATS, *INTS)
    if x is None:
        return
    shape: tuple[int, ...] = x.type.shape
    bits = numpy_dtype(x.type.dtype).itemsize * 8
    ways = [(shape, bits), *(((*shape, bits // k), k) for k in (8, 16, 32) if k < bits)]
    *rows, last = shape
    if last in (2, 4, 8) and bits * last <= 64:
        ways.append((tuple(rows), bits * last))
    to, width = s.rng.choice(ways)
    kinds = [d for d in INTS if numpy_dtype(d).itemsize * 8 == width and d != x.type.dtype]
    s.op("bitcast_convert", [s.finite(x)], TensorType(to, s.rng.choice(kinds)), np.inf)


def mapped(s: Scope) -> None:
    x = s.array("f32", "i32")
    if x is None:
        return
    scalar, y = TensorType((), x.type.dtype), s.like(x)
    a, b, c, d = (Value(scalar) for _ in range(4))
    region = Block([a, b], [Op("maximum", [a, b], [c]), Op("multiply", [c, b], [d])], [d])
    attrs: dict[str, object] = {"dimensions": tuple(range(x.type.rank))}
    s.op("map", [x, y], x.type, (s.bound[x] + s.bound[y]) * s.bound[y], attrs, (region,))


# ---------------------------------------------------------------------------------------- functions that round
def _as_is(s: Scope, x: Value) -> Value:
    return s.small(x)


def _positive(s: Scope, x: Value) -> Value:
    """Mostly without the numbers for which the function has no value."""
    if x.type.dtype in COMPLEX or s.rng.random() < 0.1:
        return s.small(x)
    x = s.op("abs", [s.small(x)], x.type, 8)
    return s.op("add", [x, s.constant(np.asarray(0.5), _tensor(x))], x.type, 9)


def _unit(s: Scope, x: Value) -> Value:
    return s.small(x) if s.rng.random() < 0.1 else s.op("tanh", [s.small(x)], x.type, 1)


def _above_one(s: Scope, x: Value) -> Value:
    x = s.op("abs", [s.small(x)], x.type, 8)
    return s.op("add", [x, s.constant(np.asarray(1.25), _tensor(x))], x.type, 10)


def _tensor(x: Value) -> TensorType:
    assert isinstance(x.type, TensorType)
    return x.type


_FUNCTIONS: dict[str, tuple[Callable[[Scope, Value], Value], float]] = {
    **dict.fromkeys(("cosine", "sine", "tanh", "logistic", "cbrt", "chlo.erf", "chlo.erfc"), (_as_is, 2.0)),
    **dict.fromkeys(("exponential", "exponential_minus_one", "chlo.sinh", "chlo.cosh"), (_as_is, 3000.0)),
    **dict.fromkeys(("tan", "chlo.tan"), (_as_is, 1000.0)),
    **dict.fromkeys(("chlo.atan", "chlo.asinh", "chlo.bessel_i1e"), (_as_is, 4.0)),
    **dict.fromkeys(("log", "log_plus_one", "sqrt", "rsqrt"), (_positive, 5.0)),
    **dict.fromkeys(("chlo.lgamma", "chlo.digamma"), (_positive, 20.0)),
    **dict.fromkeys(("chlo.acos", "chlo.asin", "chlo.atanh", "chlo.erf_inv"), (_unit, 10.0)),
    "chlo.acosh": (_above_one, 4.0),
}
_COMPLEX_FUNCTIONS = (
    "cosine",
    "sine",
    "tanh",
    "exponential",
    "log",
    "sqrt",
    "exponential_minus_one",
    "rsqrt",
)
_WIDE_ONLY = ("chlo.bessel_i1e", "chlo.digamma", "chlo.lgamma", "chlo.erf_inv")


def function(s: Scope) -> None:
    x = s.array(*FLOATS, *COMPLEX, rank=0)
    if x is None:
        return
    names = list(_FUNCTIONS) if x.type.dtype not in COMPLEX else _COMPLEX_FUNCTIONS
    name = s.rng.choice(names)
    if name in _WIDE_ONLY and x.type.dtype not in ("f32", "f64"):
        return
    prepare, bound = _FUNCTIONS[name]
    x = prepare(s, x)
    s.op(name, [x], x.type, bound)


def of_two(s: Scope) -> None:
    """Functions of two operands; the second is mostly where the function has a value."""
    x = s.array(*FLOATS, *COMPLEX, rank=0)
    if x is None:
        return
    dtype = x.type.dtype
    names = ["divide", "divide", "power"] + (["atan2"] if dtype not in COMPLEX else [])
    names += ["chlo.zeta", "chlo.polygamma", "chlo.next_after"] if dtype in ("f32", "f64") else []
    name, y = s.rng.choice(names), s.like(x)
    if name in ("power", "chlo.zeta"):
        x, y = _above_one(s, x) if dtype not in COMPLEX else s.small(x), _positive(s, y)
    elif name == "chlo.polygamma":
        x, y = s.constant(np.asarray(s.rng.randint(0, 3)), _tensor(x)), _positive(s, y)
    elif name == "divide":
        y = _positive(s, y)
    s.op(name, [x, y], x.type, {"power": 1e9, "chlo.zeta": 20.0, "atan2": 4.0}.get(name, 4 * s.bound[x]))


def reduce_precision(s: Scope) -> None:
    x = s.array("f32", "f64")
    if x is not None:
        bits = s.rng.choice(((8, 7), (5, 10)))
        x = s.small(x)
        attrs: dict[str, object] = {"exponent_bits": bits[0], "mantissa_bits": bits[1]}
        s.op("reduce_precision", [x], x.type, s.bound[x] + 1, attrs)
