"""Shardy's annotations as text: `#sdy.sharding` and `#sdy.mesh`; and StableHLO's groups of devices over axes of a mesh.

The parsers only read; `resolve` turns what they return into layouts on our mesh.
"""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from .scanner import Scanner

_GROUP_MESH = re.compile(r'<mesh = @(?:"([^"]*)"|([\w.$-]+)),')
_GROUP_AXIS = re.compile(r'axis_ref<name = "([^"]*)"(?:, sub_axis_info = (\(\d+\)\d+))?>')
_MESH_AXIS = re.compile(r'<name = "([^"]*)", size = (\d+)>')


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


def parse_mesh(text: str) -> MeshText:
    """`#sdy.mesh<["a"=4, "b"=2]>`; raises ParseError."""
    s = Scanner(text)
    s.expect("#", "sdy.mesh", "<")
    mesh = _mesh(s)
    s.end()
    return mesh


def parse_sharding(text: str) -> ShardyText:
    """`#sdy.sharding<@mesh, [{"a"}, {?}], replicated={"b"}, unreduced={"c"}>`; raises ParseError."""
    s = Scanner(text)
    s.expect("#", "sdy.sharding")
    sharding = _sharding(s)
    s.end()
    return sharding


def parse_shardings(text: str) -> tuple[ShardyText, ...]:
    """`#sdy.sharding_per_value<[<@mesh, [{"a"}]>, ...]>`, or a single sharding; raises ParseError."""
    if text.startswith("#sdy.sharding<"):
        return (parse_sharding(text),)
    s = Scanner(text)
    s.expect("#", "sdy.sharding_per_value", "<", "[")
    shardings = s.listed("]", lambda: _sharding(s))
    s.expect(">")
    s.end()
    return tuple(shardings)


def parse_group_axes(text: str) -> tuple[str | MeshText, tuple[str, ...]]:
    """The mesh, or its symbol, and the axes of `#stablehlo.replica_group_mesh_axes<mesh = @mesh, axes = [...]>`."""
    axes = tuple(f"{name}:{piece}" if piece else name for name, piece in _GROUP_AXIS.findall(text))
    if symbol := _GROUP_MESH.search(text):
        return symbol[1] or symbol[2], axes
    return MeshText(tuple((name, int(size)) for name, size in _MESH_AXIS.findall(text))), axes


def split_shardings(text: str) -> list[str]:
    """The texts of the shardings in `#sdy.sharding_per_value<[<...>, <...>]>`; raises ParseError."""
    s = Scanner(text)
    s.expect("#", "sdy.sharding_per_value", "<", "[")

    def part() -> str:
        start = s.offset
        _sharding(s)
        return text[start : s.offset].rstrip()

    return s.listed("]", part)


def parse_manual_axes(text: str) -> tuple[str, ...]:
    """`#sdy<manual_axes{"a", "b"}>`; raises ParseError."""
    s = Scanner(text)
    s.expect("#", "sdy", "<", "manual_axes")
    axes = read_axes(s)
    s.expect(">")
    s.end()
    return axes


def _mesh(s: Scanner) -> MeshText:
    start = s.position
    close = "]" if s.skip("[") else ">"  # the first version of Shardy wrote no brackets
    axes = read_mesh_axes(s, close)
    ids: tuple[int, ...] = ()
    if close == "]":
        if s.skip(","):
            s.expect("device_ids", "=", "[")
            ids = s.integers("]")
        s.expect(">")
    return checked_mesh(s, axes, ids, start)


def read_mesh_axes(s: Scanner, close: str) -> tuple[tuple[str, int], ...]:
    """`"a"=4, "b"=2`, and the bracket behind them."""
    axes: dict[str, int] = {}

    def axis() -> None:
        at, name = s.position, s.name()
        s.expect("=")
        if name in axes:
            s.reject(f"axis {name!r} is given twice", at)
        axes[name] = s.positive()

    s.listed(close, axis)
    return tuple(axes.items())


def checked_mesh(s: Scanner, axes: tuple[tuple[str, int], ...], ids: tuple[int, ...], start: int) -> MeshText:
    """The mesh, if its devices are the numbers from 0 on, each once; `start`: where it stands."""
    count = math.prod(size for _, size in axes)
    if axes and ids and sorted(ids) != list(range(count)):
        s.reject(f"the device ids are not the numbers below {count}, each once", start)
    return MeshText(axes, ids)


def _sharding(s: Scanner) -> ShardyText:
    s.expect("<")
    mesh: str | MeshText
    if s.peek().startswith("@"):
        mesh = s.next()[1:].strip('"')
    else:
        s.expect("mesh", "<")
        mesh = _mesh(s)
    s.expect(",", "[")
    dims = s.listed("]", lambda: read_dim(s))
    groups: dict[str, tuple[str, ...]] = {}
    while s.skip(","):
        if s.peek() not in ("replicated", "unreduced"):
            s.fail("expected replicated or unreduced")
        key = s.next()
        s.expect("=")
        groups[key] = read_axes(s)
    s.expect(">")
    return ShardyText(mesh, tuple(dims), groups.get("replicated", ()), groups.get("unreduced", ()))


def read_dim(s: Scanner) -> DimText:
    """`{"a", "b":(1)2, ?}p1`."""
    s.expect("{")
    found = s.listed("}", lambda: None if s.skip("?") else _axis(s))
    axes = [x for x in found if x is not None]
    priority = None
    if re.fullmatch(r"p\d+", s.peek()):
        priority = int(s.next()[1:])
    return DimText(tuple(axes), None in found, priority)


def read_axes(s: Scanner) -> tuple[str, ...]:
    """`{"a", "b":(1)2}`."""
    s.expect("{")
    return tuple(s.listed("}", lambda: _axis(s)))


def _axis(s: Scanner) -> str:
    name = s.name()
    if not s.skip(":"):
        return name
    s.expect("(")
    major = s.positive()
    s.expect(")")
    return f"{name}:({major}){s.positive()}"
