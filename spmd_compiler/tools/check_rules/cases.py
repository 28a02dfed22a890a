"""Instances of each op of the rule table: small programs that end in the op."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from functools import cache

import numpy as np

from ...ir.graph import Block, Function, Module, Op, Raw, Value
from ...ir.mesh import Mesh
from ...ir.optable import ELEMENTWISE
from ...ir.types import TensorType
from ..fuzz import kinds
from ..fuzz.scope import FLOATS, Scope, reducer, tensor
from ..interpret import InterpretError, run

Make = Callable[[Scope], object]

_COMPARISONS = {"chlo.is_inf", "chlo.is_neg_inf", "chlo.is_pos_inf", "is_finite"}
_BITS = {"not", "and", "or", "xor"}
_INTEGERS = {"count_leading_zeros", "popcnt", "shift_left", "shift_right_arithmetic", "shift_right_logical"}
_NOT_SIMPLE = {
    "bitcast_convert",
    "clamp",
    "compare",
    "complex",
    "convert",
    "imag",
    "real",
    "reduce_precision",
    "select",
}


def cases(op_name: str, count: int, seed: int = 0) -> Iterator[Module]:
    """Up to `count` programs whose last op is an `op_name`, different from each other; none if no kind makes it."""
    makers = _makers(op_name)
    seen: set[str] = set()
    for attempt in range(30 * count if makers else 0):
        if len(seen) == count:
            return
        rng = random.Random(f"{op_name} {seed} {attempt}")
        args = [Value(tensor(rng), None, f"x{i}") for i in range(rng.randint(1, 3))]
        scope = Scope(rng, Block(args, [], []))
        rng.choice(makers)(scope)
        module = _upto(scope.block, op_name)
        if module is not None and str(module) not in seen and _runs(module):
            seen.add(str(module))
            yield module


def _upto(block: Block, op_name: str) -> Module | None:
    """The program up to the last op of a name, with that op's results."""
    at = max((i for i, op in enumerate(block.ops) if op.name == op_name), default=None)
    if at is None:
        return None
    body = Block(block.args, block.ops[: at + 1], list(block.ops[at].results))
    return Module(Mesh([]), {"main": Function("main", body)})


def _runs(module: Module) -> bool:
    try:
        run(module, [np.zeros(v.type.shape, bool) for v in module.main.body.args])
    except InterpretError:
        return False
    return True


def _makers(op_name: str) -> list[Make]:
    if op_name in _SPECIAL:
        return [_SPECIAL[op_name]]
    if op_name in ELEMENTWISE and op_name not in _NOT_SIMPLE:
        return [lambda s: _elementwise(s, op_name)]
    return list(_makers_by_op().get(op_name, ()))


@cache
def _makers_by_op() -> dict[str, list[Make]]:
    """Which of the fuzzer's kinds make an op, found by trying."""
    known: dict[str, list[Make]] = {}
    for make, _ in kinds.EXACT_KINDS:
        names: set[str] = set()
        for seed in range(20):
            rng = random.Random(seed)
            args = [Value(tensor(rng, d), None, f"x{i}") for i, d in enumerate(("f32", "i32", "i1"))]
            scope = Scope(rng, Block(args, [], []))
            make(scope)
            names.update(op.name for op in scope.block.ops)
        for name in names:
            known.setdefault(name, []).append(make)
    return known


def _elementwise(s: Scope, name: str) -> None:
    dtype = "f32"
    if name in _INTEGERS:
        dtype = "i32"
    elif name in _BITS:
        dtype = s.rng.choice(("i32", "i1"))
    elif name == "chlo.conj":
        dtype = "c64"
    elif name in ("add", "subtract", "multiply", "negate"):
        dtype = s.rng.choice((*FLOATS, "i32", "c64"))
    type = tensor(s.rng, dtype)
    xs = [s.data(type, 1, 3) for _ in range(ELEMENTWISE[name])]
    result = TensorType(type.shape, "i1") if name in _COMPARISONS else type
    s.op(name, xs, result, 9)


def _clamp(s: Scope) -> None:
    x = s.data(tensor(s.rng, "f32"))
    bounds = [s.scalar("f32", n) if s.rng.random() < 0.5 else s.data(x.type, n, n) for n in (-1, 2)]  # type: ignore[arg-type]
    s.op("clamp", [bounds[0], x, bounds[1]], x.type, 3)


def _complex(s: Scope) -> None:
    type = tensor(s.rng, "f32")
    s.op("complex", [s.data(type), s.data(type)], TensorType(type.shape, "c64"), 3)


def _part(name: str) -> Make:
    def make(s: Scope) -> None:
        type = tensor(s.rng, "c64")
        s.op(name, [s.data(type)], TensorType(type.shape, "f32"), 3)

    return make


def _bitcast(s: Scope) -> None:
    type = tensor(s.rng, s.rng.choice(("f32", "i32")))
    s.op(
        "bitcast_convert", [s.data(type)], TensorType(type.shape, "i32" if type.dtype == "f32" else "f32"), 3
    )


def _reduce_precision(s: Scope) -> None:
    x = s.data(tensor(s.rng, "f32"))
    s.op("reduce_precision", [x], x.type, 3, {"exponent_bits": 8, "mantissa_bits": 7})


def _scan(s: Scope) -> None:
    x = s.data(tensor(s.rng, s.rng.choice(("f32", "i32"))), 1, 2)
    d = s.rng.randrange(x.type.rank)
    type = TensorType(tuple(n for i, n in enumerate(x.type.shape) if i != d), x.type.dtype)
    attrs: dict[str, object] = {"dimension": d, "is_associative": True, "is_reverse": s.rng.random() < 0.5}
    attrs |= dict.fromkeys(("operandSegmentSizes", "resultSegmentSizes"), Raw("array<i32: 1, 1>"))
    args, out = [Value(type), Value(type)], Value(type)
    name = s.rng.choice(("add", "maximum", "minimum"))
    body = Block(args, [Op(name, list(args), [out], {})], [out, out])
    s.multi("chlo.scan", [x, s.data(type, 1, 3)], [x.type, type], [99, 99], attrs, (body,))


def _ragged_dot(s: Scope) -> None:
    """Of groups with a matrix each (its dims in either order), or of two operands with groups of rows."""
    rng = s.rng
    b, m, k, n, g = (rng.choice(sizes) for sizes in ((1, 2), (4, 5, 8), (3, 4), (2, 4), (1, 2, 3)))
    cuts = sorted(rng.sample(range(1, m + 1), g))  # what is behind the last one is in no group
    sizes = s.constant(np.diff([0, *cuts]), TensorType((g,), rng.choice(("i32", "i64", "u32"))))
    batch, turned, grouped = b > 1, rng.random() < 0.5, rng.random() < 0.6
    lead = (b,) * batch
    x = s.data(TensorType((*lead, m, k), "f32"))
    inner = (n, k) if turned else (k, n)
    y = s.data(TensorType((g, *lead, *inner) if grouped else (*lead, m, n), "f32"))
    first = len(lead)
    attrs: dict[str, object] = {
        "lhs_batching_dimensions": (0,) * batch,
        "rhs_batching_dimensions": (int(grouped),) * batch,
        "lhs_contracting_dimensions": (first + grouped,),
        "rhs_contracting_dimensions": (first + grouped + (grouped and turned),),
        "lhs_ragged_dimensions": (first,),
        "rhs_group_dimensions": (0,) * grouped,
    }
    shape = (*lead, m, n) if grouped else (g, *lead, k, n)
    s.op("chlo.ragged_dot", [x, y, sizes], TensorType(shape, "f32"), 99, attrs)


def _fft(s: Scope) -> None:
    kind = s.rng.choice(("FFT", "IFFT", "RFFT", "IRFFT"))
    long = tensor(s.rng, "c64")
    n = s.rng.randint(1, min(3, long.rank))
    short = TensorType((*long.shape[:-1], long.shape[-1] // 2 + 1), "c64")
    real = TensorType(long.shape, "f32")
    type, result = {"RFFT": (real, short), "IRFFT": (short, real)}.get(kind, (long, long))
    attrs: dict[str, object] = {"fft_type": kind, "fft_length": long.shape[-n:]}
    s.op("fft", [s.data(type)], result, 3, attrs)


def _square(s: Scope, n: int) -> Value:
    batch = tuple(s.rng.choice((1, 2, 3, 4, 5)) for _ in range(s.rng.randint(0, 2)))
    numbers = np.random.RandomState(s.rng.randrange(2**31)).randint(0, 2, (*batch, n, n)) + 4 * n * np.eye(n)
    numbers = numbers + np.swapaxes(numbers, -1, -2)
    return s.constant(numbers, TensorType((*batch, n, n), "f32"))


def _cholesky(s: Scope) -> None:
    a = _square(s, s.rng.choice((1, 3, 4)))
    s.op("cholesky", [a], a.type, 3, {"lower": True})


def _triangular_solve(s: Scope) -> None:
    n, m, left = s.rng.choice((1, 3, 4)), s.rng.choice((1, 2, 4, 5)), s.rng.random() < 0.5
    a = _square(s, n)
    b = s.data(TensorType((*a.type.shape[:-2], *((n, m) if left else (m, n))), "f32"))
    attrs: dict[str, object] = {
        "left_side": left,
        "lower": s.rng.random() < 0.5,
        "unit_diagonal": False,
        "transpose_a": s.rng.choice(("NO_TRANSPOSE", "TRANSPOSE")),
    }
    s.op("triangular_solve", [a, b], b.type, 3, attrs)


def _select_and_scatter(s: Scope) -> None:
    rng, rank = s.rng, s.rng.choice((1, 2, 3))
    shape = tuple(rng.choice((3, 4, 5, 8)) for _ in range(rank))
    window = tuple(rng.choice((1, 2, 2, 3)) for _ in range(rank))
    stride = tuple(rng.choice((1, 1, 2, 3)) for _ in range(rank))
    source = tuple((n - k) // t + 1 for n, k, t in zip(shape, window, stride, strict=True))
    flag, scalar = Value(TensorType((), "i1")), TensorType((), "f32")
    a, b = Value(scalar), Value(scalar)
    attrs: dict[str, object] = {"comparison_direction": "GE", "compare_type": "FLOAT"}
    choose = Block([a, b], [Op("compare", [a, b], [flag], attrs)], [flag])
    x, u = s.data(TensorType(shape, "f32")), s.data(TensorType(source, "f32"))
    s.op(
        "select_and_scatter",
        [x, u, s.scalar("f32", 0)],
        x.type,
        9,
        {"window_dimensions": window, "window_strides": stride, "padding": ((0, 0),) * rank},
        (choose, reducer("add", "f32")),
    )


def _barrier(s: Scope) -> None:
    x = s.data(tensor(s.rng))
    s.op("optimization_barrier", [x], x.type, 3)


_SPECIAL: dict[str, Make] = {
    "optimization_barrier": _barrier,
    "clamp": _clamp,
    "complex": _complex,
    "real": _part("real"),
    "imag": _part("imag"),
    "bitcast_convert": _bitcast,
    "reduce_precision": _reduce_precision,
    "fft": _fft,
    "chlo.scan": _scan,
    "chlo.ragged_dot": _ragged_dot,
    "cholesky": _cholesky,
    "triangular_solve": _triangular_solve,
    "select_and_scatter": _select_and_scatter,
}
