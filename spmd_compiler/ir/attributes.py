"""Attributes of ops: MLIR's to plain Python data and back.

The writer decides by the attribute's name and the value's Python type. The reader turns an attribute into
plain data only if the writer would give back that very attribute, and keeps everything else as `Raw` text. So
import followed by export loses nothing, whatever a dialect puts into an attribute.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, stablehlo

from ..errors import SpmdError
from .constants import matrix, write_dense
from .graph import Dense, Raw

# Attribute name -> mnemonic of its enum; the dialect is the op's.
_ENUMS = {
    "comparison_direction": "comparison_direction",
    "compare_type": "comparison_type",
    "fft_type": "fft_type",
    "rng_algorithm": "rng_algorithm",
    "rng_distribution": "rng_distribution",
    "transpose_a": "transpose",
}
_ENUM_ARRAYS = {"precision_config": "precision"}
_SYMBOLS = frozenset({"callee", "decomposition"})
_SYMBOL_ARRAYS = frozenset({"called_computations"})
_UNITS = frozenset({"use_global_device_ids"})
_INT32 = {
    "api_version",
    "exponent_bits",
    "mantissa_bits",
    "mhlo.num_partitions",
    "mhlo.num_replicas",
    "tf.aliasing_output",
    "version",
}
# Attributes that are matrices, and their number of columns when they have no row.
_MATRICES = {"padding": 2, "source_target_pairs": 2, "replica_groups": 0}

_ENUM_TEXT = re.compile(r"#(?:stablehlo|chlo|mhlo)<\w+ (\w+)>\Z")


class _Struct(NamedTuple):
    """Dimension numbers: `fields` are our attributes of the op, in place of the one MLIR attribute `key`."""

    key: str
    fields: tuple[str, ...]
    read: Callable[[ir.Attribute], dict[str, Any]]
    write: Callable[[dict[str, Any]], ir.Attribute]


def _fields_of(
    cls: Any, fields: tuple[str, ...], renamed: dict[str, str]
) -> Callable[[ir.Attribute], dict[str, Any]]:
    sources = [(f, renamed.get(f, f)) for f in fields]

    def read(attr: ir.Attribute) -> dict[str, Any]:
        struct = cls(attr)
        values = ((f, getattr(struct, source)) for f, source in sources)
        return {f: tuple(v) if isinstance(v, list) else v for f, v in values}

    return read


def _struct(key: str, cls: Any, fields: str, renamed: dict[str, str] | None = None) -> _Struct:
    names = tuple(fields.split())

    def write(attrs: dict[str, Any]) -> ir.Attribute:
        return cls.get(*(list(v) if isinstance(v, tuple) else v for v in (attrs.get(n, ()) for n in names)))

    return _Struct(key, names, _fields_of(cls, names, renamed or {}), write)


def _read_dot(attr: ir.Attribute) -> dict[str, Any]:
    dims = stablehlo.DotDimensionNumbers(attr)
    return {
        "contract": (tuple(dims.lhs_contracting_dimensions), tuple(dims.rhs_contracting_dimensions)),
        "batch": (tuple(dims.lhs_batching_dimensions), tuple(dims.rhs_batching_dimensions)),
    }


def _write_dot(attrs: dict[str, Any]) -> ir.Attribute:
    (lc, rc), (lb, rb) = attrs["contract"], attrs.get("batch", ((), ()))
    return stablehlo.DotDimensionNumbers.get(list(lb), list(rb), list(lc), list(rc))


_GATHER = _struct(
    "dimension_numbers",
    stablehlo.GatherDimensionNumbers,
    "offset_dims collapsed_slice_dims operand_batching_dims start_indices_batching_dims start_index_map "
    "index_vector_dim",
)
_SCATTER = _struct(
    "scatter_dimension_numbers",
    stablehlo.ScatterDimensionNumbers,
    "update_window_dims inserted_window_dims input_batching_dims scatter_indices_batching_dims "
    "scatter_dims_to_operand_dims index_vector_dim",
    {"scatter_dims_to_operand_dims": "scattered_dims_to_operand_dims"},
)
_CONVOLUTION = _struct(
    "dimension_numbers",
    stablehlo.ConvDimensionNumbers,
    "input_batch_dimension input_feature_dimension input_spatial_dimensions kernel_input_feature_dimension "
    "kernel_output_feature_dimension kernel_spatial_dimensions "
    "output_batch_dimension output_feature_dimension output_spatial_dimensions",
)
STRUCTS: dict[str, _Struct] = {
    "dot_general": _Struct("dot_dimension_numbers", ("contract", "batch"), _read_dot, _write_dot),
    "gather": _GATHER,
    "dynamic_gather": _GATHER,
    "scatter": _SCATTER,
    "convolution": _CONVOLUTION,
    "dynamic_conv": _CONVOLUTION,
    "chlo.ragged_dot": _struct(
        "ragged_dot_dimension_numbers",
        chlo.RaggedDotDimensionNumbers,
        "lhs_batching_dimensions rhs_batching_dimensions lhs_contracting_dimensions rhs_contracting_dimensions "
        "lhs_ragged_dimensions rhs_group_dimensions",
    ),
}


class AttributeWriter:
    """Plain data to MLIR attributes, in the current context; every distinct one is made once."""

    def __init__(self) -> None:
        self._cache: dict[tuple, ir.Attribute] = {}
        self._dense: dict[tuple[Dense, ir.Type], ir.Attribute] = {}
        self._i64 = ir.IntegerType.get_signless(64)

    def attribute(self, op_name: str, key: str, value: Any) -> ir.Attribute:
        """The attribute `key` of op `op_name`; raises SpmdError for a value no attribute stands for."""
        # The type tells 1 from True; inside tuples the key decides, so that equal tuples mean one attribute.
        memo = (key, value, value.__class__, op_name if key in _ENUMS or key in _ENUM_ARRAYS else "")
        attr = self._cache.get(memo)
        if attr is None:
            attr = self._cache[memo] = self._make(op_name, key, value)
        return attr

    def struct(self, op_name: str, struct: _Struct, attrs: dict[str, Any]) -> ir.Attribute:
        """The dimension numbers that `attrs` holds flattened."""
        memo = (op_name, *map(attrs.get, struct.fields))
        attr = self._cache.get(memo)
        if attr is None:
            attr = self._cache[memo] = struct.write(attrs)
        return attr

    def dense(self, value: Dense, type: ir.Type) -> ir.Attribute:
        memo = (value, type)
        attr = self._dense.get(memo)
        if attr is None:
            attr = self._dense[memo] = write_dense(value, type)
        return attr

    def _make(self, op_name: str, key: str, value: Any) -> ir.Attribute:
        if isinstance(value, Raw):
            return ir.Attribute.parse(value.text)
        if isinstance(value, bool):
            return ir.UnitAttr.get() if key in _UNITS and value else ir.BoolAttr.get(value)
        if isinstance(value, int):
            return ir.IntegerAttr.get(ir.IntegerType.get_signless(32) if key in _INT32 else self._i64, value)
        if isinstance(value, float):
            return ir.FloatAttr.get(ir.F32Type.get(), value)
        if isinstance(value, str):
            if key in _ENUMS:
                return _enum(op_name, _ENUMS[key], value)
            return ir.FlatSymbolRefAttr.get(value) if key in _SYMBOLS else ir.StringAttr.get(value)
        if isinstance(value, tuple):
            return self._make_tuple(op_name, key, value)
        raise SpmdError(f"{op_name}: attribute {key}={value!r} has no StableHLO form")

    def _make_tuple(self, op_name: str, key: str, value: tuple) -> ir.Attribute:
        if key in _ENUM_ARRAYS:
            return ir.ArrayAttr.get([_enum(op_name, _ENUM_ARRAYS[key], v) for v in value])
        if key in _SYMBOL_ARRAYS:
            return ir.ArrayAttr.get([ir.FlatSymbolRefAttr.get(v) for v in value])
        if key in _MATRICES:
            columns = _MATRICES[key]
            return matrix(np.array(value, np.int64) if value else np.empty((0, columns), np.int64))
        if key == "window_reversal" or (value and isinstance(value[0], bool)):
            return ir.DenseBoolArrayAttr.get(list(value))
        return ir.DenseI64ArrayAttr.get(list(value))


class AttributeReader:
    """MLIR attributes to plain data."""

    def __init__(self) -> None:
        self._cache: dict[tuple[str, ir.Attribute], Any] = {}
        self._writer = AttributeWriter()

    def attribute(self, op_name: str, key: str, attr: ir.Attribute) -> Any:
        """The value of attribute `key`; for dimension numbers a dict of the attributes that replace it."""
        memo = (key, attr)
        value = self._cache.get(memo)
        if value is None:
            struct = STRUCTS.get(op_name)
            if struct is not None and key == struct.key:
                value = struct.read(attr)
            else:
                value = self._plain(op_name, key, attr)
            self._cache[memo] = value
        return value

    def _plain(self, op_name: str, key: str, attr: ir.Attribute) -> Any:
        convert = _READERS.get(type(attr))
        value = convert(attr) if convert is not None else None
        return Raw(str(attr)) if value is None or not self._rewrites(op_name, key, value, attr) else value

    def _rewrites(self, op_name: str, key: str, value: Any, attr: ir.Attribute) -> bool:
        try:
            return self._writer.attribute(op_name, key, value) == attr
        except (ir.MLIRError, OverflowError, TypeError):
            return False  # e.g. an enum of another dialect, an unsigned 64-bit number


def _enum(op_name: str, mnemonic: str, value: str) -> ir.Attribute:
    dialect = op_name.partition(".")[0] if "." in op_name else "stablehlo"
    return ir.Attribute.parse(f"#{dialect}<{mnemonic} {value}>")


def _read_string(attr: ir.StringAttr) -> str | None:
    try:
        return attr.value_bytes.decode()
    except UnicodeDecodeError:  # serialized data in a custom call; the text form escapes the bytes
        return None


def _read_enum(attr: ir.Attribute) -> str | None:
    found = _ENUM_TEXT.match(str(attr))
    return found[1] if found else None


def _read_array(attr: ir.ArrayAttr) -> tuple | None:
    values = tuple(a.value if isinstance(a, ir.FlatSymbolRefAttr) else _read_enum(a) for a in attr)
    return None if None in values else values


def _read_matrix(attr: ir.DenseIntElementsAttr) -> tuple | None:
    array = np.asarray(ir.DenseElementsAttr(attr))  # only this class has the buffer
    return tuple(map(tuple, array.tolist())) if array.ndim == 2 else None


_READERS: dict[type, Callable[[Any], Any]] = {
    ir.BoolAttr: lambda a: a.value,
    ir.IntegerAttr: lambda a: a.value,
    ir.FloatAttr: lambda a: a.value,
    ir.StringAttr: _read_string,
    ir.FlatSymbolRefAttr: lambda a: a.value,
    ir.UnitAttr: lambda a: True,
    ir.DenseI64ArrayAttr: tuple,
    ir.DenseBoolArrayAttr: tuple,
    ir.ArrayAttr: _read_array,
    ir.DenseIntElementsAttr: _read_matrix,
    ir.Attribute: _read_enum,
}
