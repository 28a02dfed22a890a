"""Annotations to layouts on one mesh: `ShardingResolver`, and the mesh itself where none is given."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from ..errors import LayoutError, MeshError
from .annotations import DimText, MeshText, ShardyText, parse_shardings
from .device_order import axes_of, common_mesh, ordered_mesh, tile_atoms
from .hlo_sharding import NamedText, TileText, parse_hlo_sharding
from .layout import Layout, canonical
from .mesh import Mesh, parse_axis
from .types import Type


class Resolved(NamedTuple):
    """What an annotation says of a value. `layout` None: nothing. On `open` dims the layout is a hint only.
    `manual`: the axes over which the value is per device already, where an `mhlo.sharding` says so."""

    layout: Layout | None
    open: tuple[int, ...] = ()
    manual: tuple[str, ...] | None = None

    @property
    def fully_open(self) -> bool:
        return self.layout is None or (self.layout.is_replicated and 0 < self.layout.rank == len(self.open))


class ShardingResolver:
    """Resolves annotation texts; every distinct one once. `notes`: what could not be honoured, and why."""

    def __init__(self, mesh: Mesh, meshes: dict[str, MeshText]):
        self.mesh = mesh
        self.notes: dict[str, None] = {}
        self._meshes = meshes
        self._renames: dict[MeshText, dict[str, tuple[str, ...]] | None] = {}
        self._shardy: dict[str, tuple[ShardyText, ...]] = {}
        self._hlo: dict[str, tuple[TileText | NamedText, ...]] = {}
        self._cuts: dict[str, tuple[int, ...]] = {}  # per axis where its sub-axes begin and end

    def shardy(self, text: str, types: Sequence[Type], where: str) -> list[Resolved]:
        """What `#sdy.sharding...` says of values of these types; LayoutError names `where`."""
        parsed = self._shardy.get(text)
        if parsed is None:
            parsed = self._shardy[text] = parse_shardings(text)
        if len(parsed) != len(types):
            raise LayoutError(f"{where}: {len(parsed)} shardings for {len(types)} values: {text}")
        return [self._from_shardy(s, t, where) for s, t in zip(parsed, types, strict=True)]

    def hlo(self, text: str, types: Sequence[Type], where: str, open: tuple[int, ...] = ()) -> list[Resolved]:
        """What an `mhlo.sharding` says of values of these types; `open`: JAX's unspecified dims."""
        parsed = self._hlo.get(text)
        if parsed is None:
            parsed = self._hlo[text] = parse_hlo_sharding(text)
        if len(parsed) == 1 and len(types) > 1:
            parsed *= len(types)
        if len(parsed) != len(types):
            raise LayoutError(f"{where}: {len(parsed)} shardings for {len(types)} values: {text}")
        return [
            self._from_named(p, t, where)
            if isinstance(p, NamedText)
            else self._from_tiles(p, t, text, where, open)
            for p, t in zip(parsed, types, strict=True)
        ]

    def axes(self, names: Iterable[str], mesh: str | MeshText, where: str) -> tuple[str, ...] | None:
        """Axes of a mesh of the text as axes of ours; None if ours has no such pieces."""
        text = self._mesh(mesh, where)
        names = tuple(names)
        if not names:
            return ()
        rename = self._renames.get(text)
        if text not in self._renames:
            rename = self._renames[text] = self._rename(text)
        if rename is None:
            return None
        out: list[str] = []
        for axis in names:
            name, major, size = parse_axis(axis)
            if name not in rename:
                known = ", ".join(n for n, _ in text.axes)
                raise LayoutError(f"{where}: mesh axis {name!r} does not exist; the mesh has {known}")
            pieces = rename[name]
            out += pieces if size is None else self._piece(pieces, major, size, axis, where)
        return tuple(out)

    def has_axes(self, mesh: str | MeshText, where: str) -> bool:
        """False for the empty mesh, and for a maximal one, which is one device."""
        return bool(self._mesh(mesh, where).axes)

    def _mesh(self, mesh: str | MeshText, where: str) -> MeshText:
        if isinstance(mesh, MeshText):
            return mesh
        if mesh not in self._meshes:
            raise MeshError(f"{where}: there is no mesh @{mesh}")
        return self._meshes[mesh]

    def _rename(self, text: MeshText) -> dict[str, tuple[str, ...]] | None:
        """Per axis of a mesh of the text, the axes of ours; None if devices are numbered in a foreign way."""
        names = axis_names(text)
        ours = self.mesh.shape
        if all(ours.get(names[n]) == size for n, size in text.axes) and self._same_order(text, names):
            return {n: (names[n],) for n, _ in text.axes}
        if math.prod(size for _, size in text.axes) != self.mesh.size:
            return None
        ordered = text_mesh(text)
        if ordered is None:
            return None
        out: dict[str, tuple[str, ...]] = {}
        for name, _ in text.axes:
            pieces = axes_of([ordered.stride_and_size(names[name])], self.mesh)
            if pieces is None:
                return None
            out[name] = pieces
        return out

    def _same_order(self, text: MeshText, names: dict[str, str]) -> bool:
        ordered = text_mesh(text)
        if ordered is None:  # device numbers without system: ours are positions in this mesh then
            return [names[n] for n, _ in text.axes] == list(self.mesh.axis_names)
        mine = [a for a in self.mesh.axes if a[1] > 1]
        return [a for a in ordered.axes if a[1] > 1] == mine

    def _piece(
        self, pieces: tuple[str, ...], major: int, size: int, axis: str, where: str
    ) -> tuple[str, ...]:
        whole = self.mesh.axes_size(pieces)
        if whole % (major * size):
            raise LayoutError(f"{where}: {axis} is no piece of an axis of size {whole}")
        minor = whole // (major * size)
        if len(pieces) == 1:
            stride, _ = self.mesh.stride_and_size(pieces[0])
            found = axes_of([(stride * minor, size)], self.mesh)
            return found or ()
        return self._cut(pieces, major, size)

    def _cut(self, pieces: tuple[str, ...], major: int, size: int) -> tuple[str, ...]:
        """Positions [major, major * size) of several axes, counted from the major end."""
        out: list[str] = []
        before = 1
        for piece in pieces:
            stride, n = self.mesh.stride_and_size(piece)
            low, high = max(major, before), min(major * size, before * n)
            if low < high:
                out += axes_of([(stride * (before * n // high), high // low)], self.mesh) or ()
            before *= n
        return tuple(out)

    def _from_shardy(self, sharding: ShardyText, type: Type, where: str) -> Resolved:
        if not self._mesh(sharding.mesh, where).axes:
            return Resolved(Layout.replicated(type.rank))  # a maximal mesh holds the value on one device
        dims = []
        for dim in sharding.dims:
            axes = self.axes(dim.axes, sharding.mesh, where)
            if axes is None:
                return self._irregular(f"{where}: mesh {_show(self._mesh(sharding.mesh, where))}", type)
            dims.append(axes)
        unreduced = self.axes(sharding.unreduced, sharding.mesh, where) or ()
        if len(dims) != type.rank:
            raise LayoutError(f"{where}: a sharding of {len(dims)} dims for {type}: {sharding}")
        layout = self._layout(tuple(dims), tuple((a, "sum") for a in unreduced), type, where)
        if not self._nests(layout):
            return self._irregular(f"{where}: {layout}", type)
        return Resolved(layout, tuple(i for i, d in enumerate(sharding.dims) if d.open))

    def _from_named(self, named: NamedText, type: Type, where: str) -> Resolved:
        sharding = named.sharding
        manual = self.axes(named.manual, sharding.mesh, where) if named.manual else None
        if manual and not sharding.dims:
            return Resolved(None, (), manual)
        closed = (DimText(()),) * (type.rank - len(sharding.dims))
        return self._from_shardy(sharding._replace(dims=(*sharding.dims, *closed)), type, where)._replace(
            manual=manual
        )

    def _from_tiles(
        self, tiles: TileText, type: Type, text: str, where: str, open: tuple[int, ...]
    ) -> Resolved:
        if tiles.kind == "unknown":
            return Resolved(None)
        if tiles.kind == "manual":
            return Resolved(None, (), self.mesh.axis_names)
        if tiles.kind == "unreduced":
            everywhere = tuple((a, "sum") for a, size in self.mesh.axes if size > 1)
            return Resolved(Layout(((),) * type.rank, everywhere))
        if tiles.kind in ("replicated", "maximal"):
            return Resolved(Layout.replicated(type.rank), open)
        dims = len(tiles.tiles) - len(tiles.subgroups)
        if dims != type.rank:
            raise LayoutError(f"{where}: a sharding of {dims} dims for {type}: {text}")
        if math.prod(tiles.tiles) != self.mesh.size:
            raise MeshError(
                f"{where}: sharding {text} is for {math.prod(tiles.tiles)} devices, not {self.mesh}"
            )
        axes = None
        atoms = tile_atoms(tiles)
        if atoms is not None:
            axes = [axes_of(a, self.mesh) for a in atoms]
        if axes is None or None in axes:
            return self._irregular(text, type)
        found = [a for a in axes if a is not None]
        partial: list[tuple[str, str]] = []
        manual: tuple[str, ...] | None = None
        for kind, group in zip(tiles.subgroups, found[dims:], strict=True):
            if kind == "manual":
                manual = group
            elif kind == "unreduced":
                partial += [(a, "sum") for a in group]
        layout = self._layout(tuple(found[:dims]), tuple(partial), type, where)
        return Resolved(layout, open, manual) if self._nests(layout) else self._irregular(text, type)

    def _layout(
        self, dims: tuple[tuple[str, ...], ...], partial: tuple[tuple[str, str], ...], type: Type, where: str
    ) -> Layout:
        # An axis of size 1 cuts nothing, and Shardy lets it stand in several places.
        one = {a for a, size in self.mesh.axes if size == 1}
        try:
            layout = Layout(
                tuple(tuple(a for a in axes if a not in one) for axes in dims),
                tuple(p for p in partial if p[0] not in one),
            )
            return canonical(layout, type, self.mesh)
        except ValueError as error:
            raise LayoutError(f"{where}: {error}") from None

    def _nests(self, layout: Layout) -> bool:
        """Whether the sub-axes of the layout and of those before it are pieces of one another, as 2 and 4 of 8 are, and
        not 2 and 3 of 6. If so, the next ones have to fit these too."""
        if not layout.has_pieces:
            return True
        cuts = dict(self._cuts)
        for axis in layout.axes:
            name, major, size = parse_axis(axis)
            if size is not None:
                cuts[name] = tuple(sorted({*cuts.get(name, ()), major, major * size}))
        if any(high % low for points in cuts.values() for low, high in pairwise(points)):
            return False
        self._cuts = cuts
        return True

    def _irregular(self, what: str, type: Type) -> Resolved:
        self.notes[f"{what}: no order of the axes of {self.mesh} gives these devices; replicated instead"] = (
            None
        )
        return Resolved(Layout.replicated(type.rank))


def axis_names(text: MeshText) -> dict[str, str]:
    """Per axis of a mesh of a foreign program the name that we can print; no two are equal."""
    names: dict[str, str] = {}
    for name, _ in text.axes:
        clean = re.sub(r"\W", "_", name, flags=re.ASCII)
        clean = clean if clean[:1].isalpha() or clean[:1] == "_" else f"_{clean}"
        while clean in names.values():
            clean += "_"
        names[name] = clean
    return names


def text_mesh(text: MeshText) -> Mesh | None:
    """A mesh of the text with devices numbered as it says; None if the order is irregular."""
    names = axis_names(text)
    axes = [(names[n], size) for n, size in text.axes]
    return ordered_mesh(axes, text.device_ids) if text.device_ids else Mesh(axes)


def find_mesh(meshes: Iterable[MeshText], hlo: Iterable[str], devices: int) -> Mesh:
    """The mesh of a program that brings its own: its first Shardy mesh, else one refined from its tilings."""
    named = [m for m in meshes if m.axes]
    if named:
        largest = max(named, key=lambda m: math.prod(size for _, size in m.axes))
        return text_mesh(largest) or text_mesh(MeshText(largest.axes)) or Mesh([])
    found = [t for text in hlo for t in parse_hlo_sharding(text)]
    tilings = [t for t in found if isinstance(t, TileText) and t.kind == "tiled"]
    counts = {math.prod(t.tiles) for t in tilings}
    if len(counts) > 1:
        raise MeshError(f"shardings for {' and '.join(map(str, sorted(counts)))} devices in one program")
    atoms = [a for t in tilings for dim in tile_atoms(t) or () for a in dim]
    return common_mesh(counts.pop() if counts else devices, atoms)


def _show(mesh: MeshText) -> str:
    return "{" + ", ".join(f"{n}={size}" for n, size in mesh.axes) + "}"
