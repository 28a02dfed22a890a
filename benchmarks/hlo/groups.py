"""Replica groups in each of HLO's syntaxes."""

from __future__ import annotations

import itertools
import math
import re
from typing import NamedTuple

from .text import balanced, split_top

_IOTA = re.compile(r"\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_TRANSPOSED = re.compile(r"\[([\d,]+)\]T\(([\d,]+)\)")
_LIST = re.compile(r"\{([\d,\s]*)\}")
_AXIS = re.compile(r"['\"]?([^'\":]+)['\"]?(?::\((\d+)\)(\d+))?$")
_DEVICE_IDS = re.compile(r"\s*,?\s*device_ids=\(")

Groups = list[list[int]]


def parse_groups(attrs: str, devices: int) -> Groups:
    """The groups of a collective from the text of its attributes; ValueError for an unknown syntax."""
    m = re.search(r"replica_groups=", attrs)
    if not m:
        return [list(range(devices))]
    text = attrs[m.end() :]
    if text.startswith("{"):
        body = text[1 : balanced(text, 0, "{", "}") - 1]
        groups = [[int(x) for x in g.split(",") if x.strip()] for g in _LIST.findall(body)]
        return [g for g in groups if g] or [list(range(devices))]
    groups = _iota_groups(text) if text.startswith("[") else _mesh_groups(text)
    if groups is None:
        raise ValueError("replica_groups not understood: " + text[:120])
    return groups


def group_axes(groups: Groups, mesh: list[tuple[str, int]]) -> tuple[str, ...] | None:
    """The mesh axes that the groups span; None if there are none such."""
    if math.prod(size for _, size in mesh) != sum(map(len, groups)):
        return None
    wanted = {frozenset(g) for g in groups}
    pieces = [_Piece(name, 1, size) for name, size in mesh]
    for count in range(1, len(mesh) + 1):
        for chosen in itertools.combinations(range(len(mesh)), count):
            if {frozenset(g) for g in _spanned(pieces, list(chosen))} == wanted:
                return tuple(mesh[i][0] for i in chosen)
    return None


class _Piece(NamedTuple):
    """A piece of a mesh axis: `size` positions after `major` slower-varying ones."""

    axis: str
    major: int
    size: int


def _ints(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def _iota_groups(text: str) -> Groups | None:
    """`[2,4]<=[4,2]T(1,0)`"""
    m = _IOTA.match(text)
    if not m:
        return None
    dims, shape = _ints(m[1]), _ints(m[2])
    ids = _transposed_iota(shape, _ints(m[3]) if m[3] else list(range(len(shape))))
    count, size = (dims[0], math.prod(dims[1:])) if len(dims) > 1 else (1, dims[0])
    return [ids[i * size : (i + 1) * size] for i in range(count)]


def _transposed_iota(shape: list[int], order: list[int]) -> list[int]:
    strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
    ids = [0]
    for dim in order:
        ids = [i + k * strides[dim] for i in ids for k in range(shape[dim])]
    return ids


def _mesh_groups(text: str) -> Groups | None:
    """`mesh['a'=4,'b'=2] {'a','b':(1)2}`, with or without `device_ids=(...)`."""
    m = re.match(r"mesh\[([^\]]*)\]", text)
    if not m:
        return None
    pairs = (a.split("=") for a in m[1].split(","))
    mesh = [(name.strip().strip("'\""), int(size)) for name, size in pairs]
    ids, rest = list(range(math.prod(s for _, s in mesh))), text[m.end() :]
    listed = _DEVICE_IDS.match(rest)
    if listed:
        end = balanced(rest, listed.end() - 1)
        ids, rest = _device_ids(rest[listed.end() : end - 1].strip()), rest[end:]
    start = rest.find("{")
    if start < 0:
        return None
    axes = [_AXIS.match(a) for a in split_top(rest[start + 1 : balanced(rest, start, "{", "}") - 1])]
    selected = [_selected(a, dict(mesh)) for a in axes if a]
    pieces = _pieces(mesh, selected)
    chosen = [
        i
        for want in selected
        for i, p in enumerate(pieces)
        if p.axis == want.axis and p.major >= want.major and p.major * p.size <= want.major * want.size
    ]
    return [[ids[i] for i in group] for group in _spanned(pieces, chosen)]


def _device_ids(text: str) -> list[int]:
    groups = _iota_groups(text)
    if groups is not None:
        return [i for group in groups for i in group]
    m = _TRANSPOSED.match(text)
    return _transposed_iota(_ints(m[1]), _ints(m[2])) if m else [int(x) for x in re.findall(r"\d+", text)]


def _selected(match: re.Match[str], sizes: dict[str, int]) -> _Piece:
    name = match[1]
    return _Piece(name, int(match[2]), int(match[3])) if match[2] else _Piece(name, 1, sizes[name])


def _pieces(mesh: list[tuple[str, int]], selected: list[_Piece]) -> list[_Piece]:
    """The mesh cut wherever a selected piece begins or ends."""
    pieces = []
    for name, size in mesh:
        cuts = {1, size}
        for s in selected:
            if s.axis == name:
                cuts |= {s.major, s.major * s.size}
        bounds = sorted(cuts)
        pieces += [_Piece(name, lo, hi // lo) for lo, hi in itertools.pairwise(bounds)]
        if size == 1:
            pieces.append(_Piece(name, 1, 1))
    return pieces


def _spanned(pieces: list[_Piece], chosen: list[int]) -> Groups:
    strides = [math.prod(p.size for p in pieces[i + 1 :]) for i in range(len(pieces))]

    def offsets(which: list[int]) -> list[int]:
        out = [0]
        for i in which:
            out = [o + k * strides[i] for o in out for k in range(pieces[i].size)]
        return out

    within = offsets(chosen)
    return [
        [base + o for o in within] for base in offsets([i for i in range(len(pieces)) if i not in chosen])
    ]
