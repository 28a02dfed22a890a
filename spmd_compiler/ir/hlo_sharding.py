"""XLA's `mhlo.sharding` strings: tiles with device numbers, and, in newer programs, axes of a mesh by name.

The parsers only read; `resolve` turns what they return into layouts on our mesh.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .annotations import DimText, ShardyText, checked_mesh, read_axes, read_dim, read_mesh_axes
from .scanner import Scanner

_SUBGROUPS = ("replicated", "manual", "unreduced")


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


class NamedText(NamedTuple):
    """One array's `mhlo.sharding` over named axes, `{mesh['a'=2,'b'=4], [{'a'}, {?}], manual={'b'}}`. Where it says only
    that all of the mesh is manual, the sharding has no dims."""

    sharding: ShardyText
    manual: tuple[str, ...] = ()


def parse_hlo_sharding(text: str) -> tuple[TileText | NamedText, ...]:
    """The shardings in an `mhlo.sharding` string, one per result; raises ParseError."""
    s = Scanner(text)
    if text.replace(" ", "").startswith("{{"):
        s.expect("{")
        parts = s.listed("}", lambda: _one(s))
    else:
        parts = [_one(s)]
    s.end()
    return tuple(parts)


def _one(s: Scanner) -> TileText | NamedText:
    s.expect("{")
    if s.skip("mesh"):
        return _named(s)
    if s.skip("maximal_mesh"):
        s.expect("[", "device_id", "=")
        device = s.integer()
        s.expect("]", "}")
        return TileText("maximal", ids=(device,))
    return _tiles(s)


def _named(s: Scanner) -> NamedText:
    start = s.position
    s.expect("[")
    axes = read_mesh_axes(s, "]")
    ids: tuple[int, ...] = ()
    dims: list[DimText] = []
    groups: dict[str, tuple[str, ...]] = {}
    while s.skip(","):
        if s.skip("["):
            dims += s.listed("]", lambda: read_dim(s))
        elif s.skip("device_ids"):
            s.expect("=", "(")
            ids = _device_ids(s)
        elif s.skip("metadata"):
            s.expect("=", "{")
            _skip_braces(s)
        elif s.peek() in _SUBGROUPS:
            kind = s.next()
            groups[kind] = _group(s, axes)
        else:
            s.fail(f"expected dims, device_ids, metadata or one of {', '.join(_SUBGROUPS)}")
    s.expect("}")
    mesh = checked_mesh(s, axes, ids, start)
    unreduced = groups.get("unreduced", ())
    return NamedText(
        ShardyText(mesh, tuple(dims), groups.get("replicated", ()), unreduced), groups.get("manual", ())
    )


def _group(s: Scanner, axes: tuple[tuple[str, int], ...]) -> tuple[str, ...]:
    """`={'a', 'b'}` behind a kind, perhaps with a reduction before the axes; nothing stands for all axes."""
    if not s.skip("="):
        return tuple(name for name, _ in axes)
    if s.peek() != "{":
        s.next()
    return read_axes(s) if s.peek() == "{" else tuple(name for name, _ in axes)


def _device_ids(s: Scanner) -> tuple[int, ...]:
    """`[4,16]T(1,0))` or `0,2,1,3)`."""
    start = s.position
    if s.peek() != "[":
        return s.integers(")")
    shape, order = _iota(s)
    s.expect(")")
    if sorted(order) != list(range(len(shape))):
        s.reject(f"T{order} does not order the dims of {list(shape)}", start)
    return tuple(np.arange(math.prod(shape)).reshape(shape).transpose(order).ravel().tolist())


def _tiles(s: Scanner) -> TileText:
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


def _iota(s: Scanner) -> tuple[tuple[int, ...], tuple[int, ...]]:
    s.expect("[")
    shape = s.integers("]")
    if s.skip("T"):
        s.expect("(")
        return shape, s.integers(")")
    return shape, tuple(range(len(shape)))


def _words(s: Scanner) -> tuple[str, ...]:
    def word() -> str:
        if s.peek() not in _SUBGROUPS:
            s.fail(f"expected one of {', '.join(_SUBGROUPS)}")
        return s.next()

    return tuple(s.listed("}", word))


def _skip_braces(s: Scanner) -> None:
    depth = 1
    while depth:
        token = s.next()
        if not token:
            s.fail("expected '}'")
        depth += {"{": 1, "}": -1}.get(token, 0)
