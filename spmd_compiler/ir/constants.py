"""Dense data: MLIR elements attributes to numpy arrays and back, without Python lists."""

from __future__ import annotations

import re
from typing import Any, cast

import numpy as np
from jaxlib.mlir import ir

from .graph import Dense
from .types import TensorType, numpy_dtype

# Element types whose attributes offer a Python buffer; the bytes of others are reachable as text only.
_BUFFERED = {"i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "f16", "f32", "f64"}
_HEX = re.compile(r'dense<"0x([0-9A-Fa-f]*)">')
_TOKEN = re.compile(r"0x[0-9A-Fa-f]+|-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?|true|false")


def read_dense(attr: ir.Attribute | str, type: TensorType) -> Dense:
    """The data of a `dense<…>` attribute of the given type, or of its text."""
    if not isinstance(attr, str) and type.dtype in _BUFFERED:
        source = ir.DenseElementsAttr(attr)
        view = np.asarray(source)
        splat = source.is_splat and type.shape != () and type.size > 0
        return Dense(np.array(view[(0,) * view.ndim] if splat else view), splat)
    array = _read_text(str(attr), type.dtype)
    splat = array.size == 1 and type.shape != ()
    return Dense(array.reshape(() if splat else type.shape), splat)


def read_blob(data: bytes, type: TensorType) -> Dense:
    """The data of a `dense_resource`, given its little-endian bytes (without the alignment header)."""
    return Dense(np.frombuffer(data, numpy_dtype(type.dtype)).reshape(type.shape).copy())


def elements(array: np.ndarray, type: ir.Type) -> ir.Attribute:
    """A `dense<…>` attribute with the bytes of an array, which one element fills; in the current context."""
    return ir.DenseElementsAttr.get(cast(Any, array), type=type)  # arrays are buffers, which 3.11 can't type


def matrix(array: np.ndarray) -> ir.Attribute:
    """`dense<…> : tensor<NxMxi64>` of an array of two dims."""
    i64 = ir.IntegerType.get_signless(64)
    return elements(np.ascontiguousarray(array, np.int64), ir.RankedTensorType.get(array.shape, i64))


def write_dense(value: Dense, type: ir.Type) -> ir.Attribute:
    """A `dense<…>` attribute of a ranked tensor type, in the current context."""
    return elements(np.ascontiguousarray(value.array).reshape(value.array.shape), type)


def _read_text(text: str, dtype: str) -> np.ndarray:
    np_dtype = numpy_dtype(dtype)
    packed = _HEX.match(text)
    if packed:
        return np.frombuffer(bytes.fromhex(packed[1]), np_dtype)
    body = text[text.index("<") + 1 : text.rindex("> : tensor<")]
    part = np.dtype(f"f{np_dtype.itemsize // 2}") if np_dtype.kind == "c" else np_dtype
    bits = np.dtype(f"u{part.itemsize}")
    tokens = _TOKEN.findall(body)
    out = np.empty(len(tokens), part)
    for i, token in enumerate(tokens):
        # A hexadecimal float is its bit pattern: NaN, infinities, and what decimals don't hold exactly.
        out[i] = np.array(int(token, 16), bits).view(part) if token.startswith("0x") else _number(token, part)
    return out.view(np_dtype)


def _number(token: str, dtype: np.dtype) -> np.ndarray:
    value = int(token) if dtype.kind in "iu" else float(token)
    return np.asarray(value).astype(dtype)
