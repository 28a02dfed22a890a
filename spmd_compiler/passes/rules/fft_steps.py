"""Bailey's four steps over a sharded dim: transforms of columns, roots of unity, transforms of rows.

A dim of N = R·C positions j = j1·C + j2 is transformed over j1, multiplied by the N-th roots of unity to the power j2·k1, and
transformed over j2: that gives position k1 + R·k2. Real numbers have the frequencies of half the rows (or columns), and
those of the other half are their conjugates, in reverse order: their devices send them twice.
"""

from __future__ import annotations

import math

import numpy as np

from ...ir.graph import Value
from ...ir.layout import Axes
from ...ir.types import TensorType
from ..emit.builder import INDEX, Builder
from ..emit.halo import block_window, fetch_window
from .fft_local import along_last
from .fft_plan import Lines, Way, borders, frequency_rows

_SWAPPED = (0, 2, 1)


def four_steps(b: Builder, x: Value, lines: Lines, way: Way, axes: Axes) -> Value:
    """x: [batch, positions that the device has]; so is the result."""
    enter, leave = borders(lines, way)
    rows, columns = way.rows, way.columns
    x = _reblock(b, x, axes, enter)
    if lines.kind == "IRFFT":
        x = _columns_of_frequencies(b, x, lines.size, columns, axes)
    else:
        x = _turn(b, _in_rows(b, x, columns), rows, axes)
    x = along_last(b, x, {"IRFFT": "IFFT"}.get(lines.kind, lines.kind), (rows,))
    x = b.binary("multiply", x, _roots(b, x, lines, axes))
    x = _turn(b, x, columns // 2 + 1 if lines.kind == "IRFFT" else columns, axes)
    x = along_last(b, x, {"RFFT": "FFT"}.get(lines.kind, lines.kind), (columns,))
    x = (
        _rows_of_frequencies(b, x, lines.size, rows, axes)
        if lines.kind == "RFFT"
        else _turn(b, x, rows, axes)
    )
    batch, own, row = x.type.shape
    return _reblock(b, b.reshape(x, (batch, own * row)), axes, leave)


def _reblock(b: Builder, x: Value, axes: Axes, border: tuple[int, int, int]) -> Value:
    have, want, size = border
    return x if have == want else fetch_window(b, x, 1, axes, block_window(want, size))


def _in_rows(b: Builder, x: Value, row: int) -> Value:
    batch, positions = x.type.shape
    return b.reshape(x, (batch, positions // row, row))


def _exchange(b: Builder, x: Value, size: int, axes: Axes) -> Value:
    """Splits the last dim over the devices; the one before becomes whole, of `size`."""
    last, n = x.type.rank - 1, b.mesh.axes_size(axes)
    x = b.pad_to_split(x, last, -(-x.type.shape[last] // n), axes)
    return b.slice(b.all_to_all(x, axes, last, last - 1), last - 1, 0, size)


def _turn(b: Builder, x: Value, size: int, axes: Axes) -> Value:
    """[batch, part of a dim of `size`, whole dim] -> [batch, part of the latter, `size`]."""
    return b.transpose(_exchange(b, x, size, axes), _SWAPPED)


def _rows_of_frequencies(b: Builder, x: Value, size: int, rows: int, axes: Axes) -> Value:
    """x: [batch, part of k1 up to R/2, all k2] -> [batch, part of the k2 that make frequencies up to N/2, all k1]."""
    columns, wanted = x.type.shape[2], frequency_rows(size, rows)
    mirrored = _conjugate(b, _reversed(b, b.slice(x, 2, columns - wanted, columns), 2))
    both = _exchange(b, _stacked(b, x=b.slice(x, 2, 0, wanted), y=mirrored), rows // 2 + 1, axes)
    direct, mirrored = _unstacked(b, both)
    upper = _reversed(b, b.slice(mirrored, 1, 1, (rows - 1) // 2 + 1), 1)
    return b.transpose(b.concatenate([direct, upper], 1) if upper.type.size else direct, _SWAPPED)


def _columns_of_frequencies(b: Builder, x: Value, size: int, columns: int, axes: Axes) -> Value:
    """x: [batch, part of the frequencies up to N/2] -> [batch, part of the columns up to C/2, all rows]."""
    rows, half = size // columns, columns // 2 + 1
    x = _in_rows(b, _real_at_ends(b, x, size, axes), columns)
    have = frequency_rows(size, columns)
    first, others = b.slice(x, 2, 0, 1), b.slice(x, 2, columns - half + 1, columns)
    mirrored = b.concatenate([first, _reversed(b, others, 2)], 2) if half > 1 else first
    both = _exchange(b, _stacked(b, b.slice(x, 2, 0, half), _conjugate(b, mirrored)), have, axes)
    direct, mirrored = _unstacked(b, both)
    type = TensorType((x.type.shape[0], rows, direct.type.shape[2]), INDEX)
    part = type.shape[2]
    column = b.binary("add", b.iota(type, 2), b.broadcast(b.offset(axes, part), type.shape))
    # the mirror image of column 0 is in the row after that of the others
    around = b.slice(_reversed(b, b.pad(mirrored, 1, 0, rows + 1 - have), 1), 1, 0, rows)
    across = _reversed(b, b.pad(mirrored, 1, 0, rows - have), 1)
    image = b.select(b.compare("EQ", column, b.constant(0, type)), around, across)
    frequency = b.binary("add", b.binary("multiply", b.iota(type, 1), b.constant(columns, type)), column)
    known = b.compare("LE", frequency, b.constant(size // 2, type))
    return b.transpose(b.select(known, b.pad(direct, 1, 0, rows - have), image), _SWAPPED)


def _real_at_ends(b: Builder, x: Value, size: int, axes: Axes) -> Value:
    """Frequencies 0 and N/2 of real numbers are real: what they have besides does not count."""
    batch, block = x.type.shape
    index = TensorType((batch, block), INDEX)
    at = b.binary("add", b.iota(index, 1), b.broadcast(b.offset(axes, block), index.shape))
    end = b.compare("EQ", at, b.constant(0, index))
    if size % 2 == 0:
        last = b.compare("EQ", at, b.constant(size // 2, index))
        end = b.binary("or", end, last)
    real, imaginary = _parts(b, x)
    imaginary = b.select(end, b.constant(0, TensorType(index.shape, imaginary.type.dtype)), imaginary)
    return b.op("complex", [real, imaginary], x.type)


def _stacked(b: Builder, x: Value, y: Value) -> Value:
    batch, rows, columns = x.type.shape
    return b.concatenate([b.reshape(v, (batch, 1, rows, columns)) for v in (x, y)], 1)


def _unstacked(b: Builder, both: Value) -> tuple[Value, Value]:
    batch, _, rows, columns = both.type.shape
    x, y = (b.reshape(b.slice(both, 1, i, i + 1), (batch, rows, columns)) for i in (0, 1))
    return x, y


def _reversed(b: Builder, x: Value, dim: int) -> Value:
    return b.op("reverse", [x], x.type, {"dimensions": (dim,)})


def _parts(b: Builder, x: Value) -> tuple[Value, Value]:
    type = TensorType(x.type.shape, _real(x.type.dtype))
    return b.op("real", [x], type), b.op("imag", [x], type)


def _conjugate(b: Builder, x: Value) -> Value:
    real, imaginary = _parts(b, x)
    return b.op("complex", [real, b.op("negate", [imaginary], imaginary.type)], x.type)


def _real(dtype: str) -> str:
    return "f32" if dtype == "c64" else "f64"


def _roots(b: Builder, x: Value, lines: Lines, axes: Axes) -> Value:
    """Roots of unity to the power j2·k1, of x's type: j2 is along dim 1, of which this device has a part, k1 along dim 2.

    The angles are brought into an eighth of a turn from a quarter, where few bits of them are lost."""
    _, part, whole = x.type.shape
    size = lines.size
    wide = 4 * max(size, lines.shards * part * whole) >= 1 << 31
    index = TensorType((part, whole), "i64" if wide else INDEX)
    real = TensorType(index.shape, _real(x.type.dtype))

    def number(value: int) -> Value:
        return b.constant(value, index)

    first = b.offset(axes, part)
    if wide:
        first = b.op("convert", [first], TensorType((), "i64"))
    j2 = b.binary("add", b.iota(index, 0), b.broadcast(first, index.shape))
    power = b.binary("remainder", b.binary("multiply", j2, b.iota(index, 1)), number(size))
    power = b.binary("multiply", power, number(4))
    quarter = b.binary("divide", b.binary("add", power, number(size // 2)), number(size))
    rest = b.binary("subtract", power, b.binary("multiply", quarter, number(size)))
    unit = b.constant(np.float64(math.pi / 2 / size), real)
    angle = b.binary("multiply", b.op("convert", [rest], real), unit)
    cosine, sine = b.op("cosine", [angle], real), b.op("sine", [angle], real)
    quarter = b.binary("and", quarter, number(3))
    odd = b.compare("NE", b.binary("and", quarter, number(1)), number(0))
    below = b.compare("GE", quarter, number(2))
    left = b.compare("EQ", b.binary("and", b.binary("add", quarter, number(1)), number(2)), number(2))
    re, im = b.select(odd, sine, cosine), b.select(odd, cosine, sine)
    re = b.select(left, b.op("negate", [re], real), re)
    if lines.kind in ("FFT", "RFFT"):  # which turn the other way
        below = b.op("not", [below], below.type)
    im = b.select(below, b.op("negate", [im], real), im)
    roots = b.op("complex", [re, im], TensorType(index.shape, x.type.dtype))
    return b.broadcast(roots, x.type.shape, (1, 2))
