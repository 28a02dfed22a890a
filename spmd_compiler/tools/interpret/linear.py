"""Linear algebra and transforms, by numpy and scipy, one matrix after the other."""

from __future__ import annotations

import numpy as np
import scipy.linalg

from ...ir.graph import Op
from ...ir.types import numpy_dtype

Array = np.ndarray


def fft(op: Op, x: Array) -> Array:
    kind, lengths = op.attrs["fft_type"], op.attrs["fft_length"]
    axes = tuple(range(x.ndim - len(lengths), x.ndim))
    run = {"FFT": np.fft.fftn, "IFFT": np.fft.ifftn, "RFFT": np.fft.rfftn, "IRFFT": np.fft.irfftn}[kind]
    return run(x, s=lengths, axes=axes).astype(numpy_dtype(op.results[0].type.dtype))


def cholesky(op: Op, x: Array) -> Array:
    return _factors(x, op.attrs.get("lower", False))


def _factors(x: Array, lower: bool) -> Array:
    """NaN for matrices that are not positive definite."""
    out = np.zeros_like(x)
    for at in np.ndindex(*x.shape[:-2]):
        try:
            out[at] = scipy.linalg.cholesky(x[at], lower=lower, check_finite=False)
        except (np.linalg.LinAlgError, ValueError):
            out[at] = np.nan
    return out


def triangular_solve(op: Op, a: Array, b: Array) -> Array:
    out = np.zeros_like(b)
    trans = {"NO_TRANSPOSE": 0, "TRANSPOSE": 1, "ADJOINT": 2}[op.attrs["transpose_a"]]
    for at in np.ndindex(*a.shape[:-2]):
        if not np.diagonal(a[at]).all():
            out[at] = np.nan
            continue
        left = op.attrs["left_side"]
        lower, unit = op.attrs["lower"], op.attrs["unit_diagonal"]
        if left:
            out[at] = scipy.linalg.solve_triangular(a[at], b[at], trans, lower, unit, check_finite=False)
        else:  # x a = b is aᵀ xᵀ = bᵀ
            matrix = a[at] if trans != 2 else a[at].conj()
            flipped = 1 if trans == 0 else 0
            out[at] = scipy.linalg.solve_triangular(
                matrix, b[at].T, flipped, lower, unit, check_finite=False
            ).T
    return out


def lapack_cholesky(op: Op, x: Array) -> list[Array]:
    """`lapack_*potrf_ffi`: the lower factor, above it what was there, and 1 where there is no factor."""
    factor = _factors(x, lower=True)
    failed = np.isnan(factor).any(axis=(-2, -1))
    return [np.tril(factor) + np.triu(x, 1), np.asarray(failed, np.int32)]
