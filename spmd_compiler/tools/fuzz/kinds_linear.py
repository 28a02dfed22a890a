"""Kinds of ops of linear algebra and transforms, on batches of problems."""

from __future__ import annotations

import math

import numpy as np

from ...ir.graph import Value
from ...ir.types import TensorType
from .scope import COMPLEX, Scope

_REAL = {"c64": "f32", "c128": "f64"}
_COMPLEX = {real: wide for wide, real in _REAL.items()}


def fft(s: Scope) -> None:
    x = s.array("f32", "f64", *COMPLEX)
    if x is None or not x.type.size:
        return
    n, shape = s.rng.randint(1, min(3, x.type.rank)), x.type.shape
    if x.type.dtype in _COMPLEX:
        kind, lengths = "RFFT", shape[-n:]
        out = TensorType((*shape[:-1], shape[-1] // 2 + 1), _COMPLEX[x.type.dtype])
    else:
        kind, lengths, out = s.rng.choice(("FFT", "IFFT")), shape[-n:], x.type
        if s.rng.random() < 0.4 and shape[-1] > 1:
            kind, last = "IRFFT", 2 * (shape[-1] - 1) + s.rng.randint(0, 1)
            lengths = (*shape[-n:-1], last)
            out = TensorType((*shape[:-1], last), _REAL[x.type.dtype])
    attrs: dict[str, object] = {"fft_type": kind, "fft_length": lengths}
    s.op("fft", [x], out, s.bound[x] * 2 * math.prod(lengths), attrs)


def _matrices(s: Scope, positive: bool) -> Value:
    """Batches of well-conditioned matrices, made of a value that is there or of new numbers."""
    rng = s.rng
    n = rng.choice((1, 2, 3, 4))
    batch = tuple(rng.choice((1, 2, 3, 4, 5, 8)) for _ in range(rng.randint(0, 2)))
    type = TensorType((*batch, n, n), rng.choice(("f32", "f32", "f64", "c64")))
    state = np.random.RandomState(rng.randrange(2**31))
    numbers = state.uniform(-1, 1, type.shape) + (1j * state.uniform(-1, 1, type.shape)) * (
        type.dtype in COMPLEX
    )
    if positive:
        numbers = numbers @ np.swapaxes(numbers.conj(), -1, -2)
    a = s.constant(numbers + 3 * np.eye(n), type)
    made = s.pick(lambda v: v.type.shape == batch and v.type.dtype == type.dtype)
    if made is None or type.dtype in COMPLEX or rng.random() < 0.3:
        return a
    scale = s.op("exponential", [s.op("tanh", [made], made.type, 1)], made.type, 3)
    spread: dict[str, object] = {"broadcast_dimensions": tuple(range(len(batch)))}
    return s.op("multiply", [a, s.op("broadcast_in_dim", [scale], type, 3, spread)], type, 100)


def cholesky(s: Scope) -> None:
    a = _matrices(s, positive=True)
    s.op("cholesky", [a], a.type, 30, {"lower": s.rng.random() < 0.5})


def lapack(s: Scope) -> None:
    """The custom call that JAX makes of a Cholesky decomposition on CPU."""
    a = _matrices(s, positive=True)
    kernel = {"f32": "lapack_spotrf_ffi", "f64": "lapack_dpotrf_ffi", "c64": "lapack_cpotrf_ffi"}[
        a.type.dtype
    ]
    info = TensorType(a.type.shape[:-2], "i32")
    s.multi("custom_call", [a], [a.type, info], [30, 4], {"call_target_name": kernel})


def triangular_solve(s: Scope) -> None:
    rng, a = s.rng, _matrices(s, positive=False)
    n, m, left = a.type.shape[-1], rng.choice((1, 2, 4, 5, 8)), rng.random() < 0.5
    type = TensorType((*a.type.shape[:-2], *((n, m) if left else (m, n))), a.type.dtype)
    known = s.pick(lambda v: v.type is type)
    b = known if known is not None else s.data(type)
    attrs: dict[str, object] = {
        "left_side": left,
        "lower": rng.random() < 0.5,
        "unit_diagonal": rng.random() < 0.2,
        "transpose_a": rng.choice(("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")),
    }
    s.op("triangular_solve", [a, b], type, 100 * s.bound[b], attrs)
