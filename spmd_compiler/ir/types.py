"""Types of IR values: ranked tensors, and the token that orders side effects.

Types are interned: two equal types are one object, so that comparing and hashing them costs nothing.
"""

from __future__ import annotations

import math
from typing import ClassVar

import ml_dtypes
import numpy as np

# IR name -> (numpy dtype name, bits, StableHLO spelling)
_DTYPES: dict[str, tuple[str, int, str]] = {
    "i1": ("bool", 8, "i1"),
    "i2": ("int2", 2, "i2"),
    "i4": ("int4", 4, "i4"),
    "i8": ("int8", 8, "i8"),
    "i16": ("int16", 16, "i16"),
    "i32": ("int32", 32, "i32"),
    "i64": ("int64", 64, "i64"),
    "u2": ("uint2", 2, "ui2"),
    "u4": ("uint4", 4, "ui4"),
    "u8": ("uint8", 8, "ui8"),
    "u16": ("uint16", 16, "ui16"),
    "u32": ("uint32", 32, "ui32"),
    "u64": ("uint64", 64, "ui64"),
    "bf16": ("bfloat16", 16, "bf16"),
    "f16": ("float16", 16, "f16"),
    "f32": ("float32", 32, "f32"),
    "f64": ("float64", 64, "f64"),
    "c64": ("complex64", 64, "complex<f32>"),
    "c128": ("complex128", 128, "complex<f64>"),
    "f4e2m1fn": ("float4_e2m1fn", 4, "f4E2M1FN"),
    "f8e3m4": ("float8_e3m4", 8, "f8E3M4"),
    "f8e4m3": ("float8_e4m3", 8, "f8E4M3"),
    "f8e4m3b11fnuz": ("float8_e4m3b11fnuz", 8, "f8E4M3B11FNUZ"),
    "f8e4m3fn": ("float8_e4m3fn", 8, "f8E4M3FN"),
    "f8e4m3fnuz": ("float8_e4m3fnuz", 8, "f8E4M3FNUZ"),
    "f8e5m2": ("float8_e5m2", 8, "f8E5M2"),
    "f8e5m2fnuz": ("float8_e5m2fnuz", 8, "f8E5M2FNUZ"),
    "f8e8m0fnu": ("float8_e8m0fnu", 8, "f8E8M0FNU"),
}
DTYPES = tuple(_DTYPES)
_FROM_MLIR = {mlir: name for name, (_, _, mlir) in _DTYPES.items()}
_FROM_NUMPY = {np_name: name for name, (np_name, _, _) in _DTYPES.items()}


class TensorType:
    """A ranked tensor of static shape, `f32[128,784]`; a scalar is `f32[]`."""

    __slots__ = ("dtype", "nbytes", "shape", "size")
    _interned: ClassVar[dict[tuple[tuple[int, ...], str], TensorType]] = {}

    shape: tuple[int, ...]
    dtype: str
    size: int
    nbytes: int

    def __new__(cls, shape: tuple[int, ...], dtype: str) -> TensorType:
        self = cls._interned.get((shape, dtype))
        if self is None:
            shape = tuple(int(d) for d in shape)
            self = object.__new__(cls)
            self.shape, self.dtype = shape, dtype
            self.size = math.prod(shape)
            self.nbytes = -(-self.size * _DTYPES[dtype][1] // 8)
            self = cls._interned.setdefault((shape, dtype), self)  # another thread may have been first
        return self

    @property
    def rank(self) -> int:
        return len(self.shape)

    def with_shape(self, shape: tuple[int, ...]) -> TensorType:
        return TensorType(shape, self.dtype)

    def __repr__(self) -> str:
        return f"{self.dtype}[{','.join(map(str, self.shape))}]"

    def __reduce__(self):
        return (TensorType, (self.shape, self.dtype))


class TokenType:
    """The type of a value that only orders side effects."""

    __slots__ = ()
    shape: tuple[int, ...] = ()
    rank = size = nbytes = 0
    dtype = "token"

    def __repr__(self) -> str:
        return "token"

    def __reduce__(self):
        return "TOKEN"


TOKEN = TokenType()
Type = TensorType | TokenType


def mlir_dtype(dtype: str) -> str:
    """StableHLO's spelling of an element type (`u32` -> `ui32`)."""
    return _DTYPES[dtype][2]


def dtype_from_mlir(name: str) -> str:
    """The element type that StableHLO spells `name`; raises KeyError for one we don't know."""
    return _FROM_MLIR[name]


def numpy_dtype(dtype: str) -> np.dtype:
    """The numpy dtype of an element type; small floats and int4 come from ml_dtypes."""
    name = _DTYPES[dtype][0]
    return np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name)


def dtype_from_numpy(dtype: np.dtype) -> str:
    return _FROM_NUMPY[np.dtype(dtype).name]


def is_float(dtype: str) -> bool:
    return dtype[0] in "fb"


def is_complex(dtype: str) -> bool:
    return dtype[0] == "c"


def is_integer(dtype: str) -> bool:
    return dtype[0] in "iu" and dtype != "i1"
