"""Sharding annotations as text: Shardy's `#sdy.sharding` and `#sdy.mesh`, and XLA's `mhlo.sharding` strings.

The parsers only read; `resolve` turns what they return into layouts on our mesh.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple, NoReturn

from ..errors import ParseError

_TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|@"(?:[^"\\]|\\.)*"|@?[A-Za-z_][\w.$-]*|-?\d+|<=|#|\S)')

_SUBGROUPS = ("replicated", "manual", "unreduced")


class AnnotationError(ParseError):
    """A malformed annotation: `text`, in which `column` counts."""

    def __init__(self, message: str, text: str, column: int):
        super().__init__(message, 1, column)
        self.text = text


class MeshText(NamedTuple):
    """`#sdy.mesh<["a"=4, "b"=2], device_ids=[...]>`; maximal (one device) if it has ids and no axes."""

    axes: tuple[tuple[str, int], ...]
    device_ids: tuple[int, ...] = ()


class DimText(NamedTuple):
    """`{"a", "b":(1)2, ?}p1`: an open dim may be sharded further."""

    axes: tuple[str, ...]
    open: bool = False
    priority: int | None = None


class ShardyText(NamedTuple):
    """`mesh` is the symbol of a mesh, or the mesh itself."""

    mesh: str | MeshText
    dims: tuple[DimText, ...]
    replicated: tuple[str, ...] = ()
    unreduced: tuple[str, ...] = ()


class TileText(NamedTuple):
    """One array's `mhlo.sharding`. `kind`: replicated, maximal, manual, unreduced, unknown or tiled.

    A tiled one has the number of `tiles` per dim, and then one for each of `subgroups` (replicated, manual,
    unreduced). Its devices, row-major over the tiles, are `ids`, or an iota: numbers row-major over
    `iota_shape`, transposed by `iota_order`.
    """

    kind: str
    tiles: tuple[int, ...] = ()
    subgroups: tuple[str, ...] = ()
    ids: tuple[int, ...] = ()
    iota_shape: tuple[int, ...] = ()
    iota_order: tuple[int, ...] = ()


class _Scanner:
    def __init__(self, text: str):
        self.text = text
        self._tokens = [(m[1], m.start(1)) for m in _TOKEN.finditer(text)]
        self._at = 0

    def peek(self) -> str:
        return self._tokens[self._at][0] if self._at < len(self._tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self._at += 1
        return token

    def skip(self, token: str) -> bool:
        if self.peek() != token:
            return False
        self._at += 1
        return True

    def expect(self, *tokens: str) -> None:
        for token in tokens:
            if not self.skip(token):
                self.fail(f"expected {token!r}")

    def fail(self, expected: str) -> NoReturn:
        self.reject(f"{expected}, not {self.peek() or 'the end'}", self._at)

    def reject(self, message: str, token: int) -> NoReturn:
        """Raises the error, at a token."""
        at = self._tokens[token][1] if token < len(self._tokens) else len(self.text)
        raise AnnotationError(f"sharding {self.text!r}: {message}", self.text, at + 1)

    @property
    def position(self) -> int:
        """The number of the next token."""
        return self._at

    def integer(self) -> int:
        token = self.peek()
        if not token.lstrip("-").isdigit():
            self.fail("expected a number")
        self._at += 1
        return int(token)

    def positive(self) -> int:
        at, number = self._at, self.integer()
        if number < 1:
            self.reject(f"{number} is not positive", at)
        return number

    def integers(self, close: str) -> tuple[int, ...]:
        """Numbers separated by commas, and the bracket behind them."""
        numbers = []
        while not self.skip(close):
            numbers.append(self.integer())
            if self.peek() != close:
                self.expect(",")
        return tuple(numbers)

    def string(self) -> str:
        token = self.peek()
        if not token.startswith('"'):
            self.fail("expected a name in quotes")
        self._at += 1
        return token[1:-1]

    def end(self) -> None:
        if self.peek():
            self.fail("expected the end")


def parse_mesh(text: str) -> MeshText:
    """`#sdy.mesh<["a"=4, "b"=2]>`; raises ParseError."""
    s = _Scanner(text)
    s.expect("#", "sdy.mesh", "<")
    mesh = _mesh(s)
    s.end()
    return mesh


def parse_sharding(text: str) -> ShardyText:
    """`#sdy.sharding<@mesh, [{"a"}, {?}], replicated={"b"}, unreduced={"c"}>`; raises ParseError."""
    s = _Scanner(text)
    s.expect("#", "sdy.sharding")
    sharding = _sharding(s)
    s.end()
    return sharding


def parse_shardings(text: str) -> tuple[ShardyText, ...]:
    """`#sdy.sharding_per_value<[<@mesh, [{"a"}]>, ...]>`, or a single sharding; raises ParseError."""
    if text.startswith("#sdy.sharding<"):
        return (parse_sharding(text),)
    s = _Scanner(text)
    s.expect("#", "sdy.sharding_per_value", "<", "[")
    shardings = []
    while not s.skip("]"):
        shardings.append(_sharding(s))
        if s.peek() != "]":
            s.expect(",")
    s.expect(">")
    s.end()
    return tuple(shardings)


def parse_manual_axes(text: str) -> tuple[str, ...]:
    """`#sdy<manual_axes{"a", "b"}>`; raises ParseError."""
    s = _Scanner(text)
    s.expect("#", "sdy", "<", "manual_axes")
    axes = _axes(s)
    s.expect(">")
    s.end()
    return axes


def _mesh(s: _Scanner) -> MeshText:
    start = s.position
    s.expect("[")
    axes: dict[str, int] = {}
    while not s.skip("]"):
        at, name = s.position, s.string()
        s.expect("=")
        if name in axes:
            s.reject(f"axis {name!r} is given twice", at)
        axes[name] = s.positive()
        if s.peek() != "]":
            s.expect(",")
    ids: tuple[int, ...] = ()
    if s.skip(","):
        s.expect("device_ids", "=", "[")
        ids = s.integers("]")
    s.expect(">")
    if axes and ids and sorted(ids) != list(range(math.prod(axes.values()))):
        s.reject(f"the device ids are not the numbers below {math.prod(axes.values())}, each once", start)
    return MeshText(tuple(axes.items()), ids)


def _sharding(s: _Scanner) -> ShardyText:
    s.expect("<")
    mesh: str | MeshText
    if s.peek().startswith("@"):
        mesh = s.next()[1:].strip('"')
    else:
        s.expect("mesh", "<")
        mesh = _mesh(s)
    s.expect(",", "[")
    dims = []
    while not s.skip("]"):
        dims.append(_dim(s))
        if s.peek() != "]":
            s.expect(",")
    groups: dict[str, tuple[str, ...]] = {}
    while s.skip(","):
        if s.peek() not in ("replicated", "unreduced"):
            s.fail("expected replicated or unreduced")
        key = s.next()
        s.expect("=")
        groups[key] = _axes(s)
    s.expect(">")
    return ShardyText(mesh, tuple(dims), groups.get("replicated", ()), groups.get("unreduced", ()))


def _dim(s: _Scanner) -> DimText:
    s.expect("{")
    axes, is_open = [], False
    while not s.skip("}"):
        if s.skip("?"):
            is_open = True
        else:
            axes.append(_axis(s))
        if s.peek() != "}":
            s.expect(",")
    priority = None
    if re.fullmatch(r"p\d+", s.peek()):
        priority = int(s.next()[1:])
    return DimText(tuple(axes), is_open, priority)


def _axes(s: _Scanner) -> tuple[str, ...]:
    s.expect("{")
    axes = []
    while not s.skip("}"):
        axes.append(_axis(s))
        if s.peek() != "}":
            s.expect(",")
    return tuple(axes)


def _axis(s: _Scanner) -> str:
    name = s.string()
    if not s.skip(":"):
        return name
    s.expect("(")
    major = s.positive()
    s.expect(")")
    return f"{name}:({major}){s.positive()}"


def parse_hlo_sharding(text: str) -> tuple[TileText, ...]:
    """The shardings in an `mhlo.sharding` string, one per result; raises ParseError."""
    s = _Scanner(text)
    if text.replace(" ", "").startswith("{{"):
        s.expect("{")
        parts = []
        while not s.skip("}"):
            parts.append(_tiles(s))
            if s.peek() != "}":
                s.expect(",")
    else:
        parts = [_tiles(s)]
    s.end()
    return tuple(parts)


def _tiles(s: _Scanner) -> TileText:
    s.expect("{")
    kind, start, tiles, subgroups = "", s.position, (), ()
    ids: tuple[int, ...] = ()
    shape: tuple[int, ...] = ()
    order: tuple[int, ...] = ()
    while not s.skip("}"):
        word = s.next()
        if word in ("replicated", "manual", "unknown", "unreduced", "maximal"):
            kind = word
        elif word == "device":
            s.expect("=")
            ids = (s.integer(),)
        elif word == "devices":
            kind = "tiled"
            s.expect("=", "[")
            tiles = s.integers("]")
            if s.skip("<="):
                shape, order = _iota(s)
            else:
                listed = [s.integer()]
                while s.skip(","):
                    listed.append(s.integer())
                ids = tuple(listed)
        elif word == "last_tile_dim_replicate":
            subgroups = ("replicated",)
        elif word == "last_tile_dims":
            s.expect("=", "{")
            subgroups = _words(s)
        elif word in ("shard_as", "shard_like"):
            s.integer()
        elif word == "metadata":
            s.expect("=", "{")
            _skip_braces(s)
        else:
            s.reject(f"unknown part {word!r}", s.position - 1)
        s.skip(",")
    if not kind:
        s.reject("it says neither replicated, maximal, manual nor devices=[...]", start)
    if kind == "tiled":
        count = math.prod(shape) if shape else len(ids)
        if min(tiles, default=1) < 1 or len(subgroups) > len(tiles):
            s.reject(f"tiles {list(tiles)} are no tiles of an array", start)
        if count != math.prod(tiles) or sorted(order) != list(range(len(shape))):
            s.reject(f"{count} devices do not fill tiles {list(tiles)}", start)
        if not shape and sorted(ids) != list(range(count)):
            s.reject(f"the devices are not the numbers below {count}, each once", start)
    return TileText(kind, tiles, subgroups, ids, shape, order)


def _iota(s: _Scanner) -> tuple[tuple[int, ...], tuple[int, ...]]:
    s.expect("[")
    shape = s.integers("]")
    if s.skip("T"):
        s.expect("(")
        return shape, s.integers(")")
    return shape, tuple(range(len(shape)))


def _words(s: _Scanner) -> tuple[str, ...]:
    words = []
    while not s.skip("}"):
        if s.peek() not in _SUBGROUPS:
            s.fail(f"expected one of {', '.join(_SUBGROUPS)}")
        words.append(s.next())
        if s.peek() != "}":
            s.expect(",")
    return tuple(words)


def _skip_braces(s: _Scanner) -> None:
    depth = 1
    while depth:
        token = s.next()
        if not token:
            s.fail("expected '}'")
        depth += {"{": 1, "}": -1}.get(token, 0)
