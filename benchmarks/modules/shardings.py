"""Random annotations: Shardy's shardings over random meshes, and `mhlo.sharding` strings."""

from __future__ import annotations

import math
from random import Random
from typing import NamedTuple

Shape = tuple[int, ...]

MESHES = (
    (("a", 4), ("b", 2)),
    (("a", 2), ("b", 2), ("c", 2)),
    (("a", 8),),
    (("a", 2), ("b", 3)),
    (("a", 1), ("b", 4)),
    (("a", 5),),
    (("a", 6),),
    (("a", 1),),
)


class Meshes(NamedTuple):
    """What a module declares. `axes` by mesh name, for meshes of all `devices`; `foreign` are other kinds of mesh,
    of one device, of none or of fewer."""

    devices: int
    axes: dict[str, tuple[tuple[str, int], ...]]
    declared: dict[str, str]
    foreign: tuple[str, ...]


def draw_meshes(rng: Random) -> Meshes:
    """A mesh, and perhaps others of the same devices in another shape or order, and some that shard nothing."""
    first = rng.choice(MESHES)
    devices = math.prod(size for _, size in first)
    axes = {"mesh": first}
    declared = {"mesh": _mesh(first, rng, devices, shuffled=0.2)}
    if rng.random() < 0.4:
        same = [m for m in MESHES if math.prod(size for _, size in m) == devices]
        axes["other"] = rng.choice(same)
        declared["other"] = _mesh(axes["other"], rng, devices, shuffled=0.4)
    declared |= {"none": "[]", "one": f"[], device_ids=[{rng.randrange(devices)}]"}
    if devices > 2:
        declared["small"] = '["z"=2]'
    return Meshes(devices, axes, declared, tuple(set(declared).difference(axes)))


def _mesh(axes: tuple[tuple[str, int], ...], rng: Random, devices: int, shuffled: float) -> str:
    text = "[" + ", ".join(f'"{n}"={size}' for n, size in axes) + "]"
    if rng.random() >= shuffled or devices == 1:
        return text
    ids = list(range(devices))
    if rng.random() < 0.5:  # an order of digits: the axes the other way round
        minor = axes[-1][1]
        ids = [i % minor * (devices // minor) + i // minor for i in ids]
    else:
        rng.shuffle(ids)
    return text if ids == sorted(ids) else f"{text}, device_ids={ids}"


def draw_shardy(rng: Random, shape: Shape, meshes: Meshes, even: bool, partial: bool = True) -> str:
    """The inside of `#sdy.sharding<...>` for a value. `even`: every dim divides into its shards. `partial`: the
    value may be called unreduced."""
    if rng.random() < 0.05:
        name = rng.choice(meshes.foreign)
        return f"@{name}, [{', '.join('{}' for _ in shape)}]" if name != "one" else "@one, []"
    name = rng.choice(list(meshes.axes))
    dims, rest = _hand_out(rng, shape, meshes.axes[name], even)
    texts: list[str] = []
    for axes in dims:
        is_open = rng.random() < 0.3
        inner = [f'"{a}"' if size is None else f'"{a}":({major}){size}' for a, major, size in axes]
        priority = f"p{rng.randrange(3)}" if rng.random() < 0.2 and (axes or is_open) else ""
        texts.append("{" + ", ".join([*inner, *(["?"] if is_open else [])]) + "}" + priority)
    text = f"@{name}, [{', '.join(texts)}]"
    for group in ("replicated", "unreduced"):
        if rest and rng.random() < 0.15 and (group == "replicated" or partial):
            text += f', {group}={{"{rest.pop(0)}"}}'
    return text


def _hand_out(
    rng: Random, shape: Shape, axes: tuple[tuple[str, int], ...], even: bool
) -> tuple[list[list[tuple[str, int, int | None]]], list[str]]:
    """Axes and pieces of axes for each dim, and the axes that are left."""
    pieces: list[tuple[str, int, int | None, int]] = []
    for name, size in axes:
        cuts = [k for k in range(2, size) if size % k == 0]
        if cuts and rng.random() < 0.3:
            cut = rng.choice(cuts)
            pieces += [(name, 1, cut, cut), (name, cut, size // cut, size // cut)]
        else:
            pieces.append((name, 1, None, size))
    rng.shuffle(pieces)
    dims: list[list[tuple[str, int, int | None]]] = [[] for _ in shape]
    shards = [1] * len(shape)
    left: set[str] = {name for name, _ in axes}
    for name, major, size, count in pieces:
        at = rng.randrange(len(shape)) if shape and rng.random() < 0.7 else None
        if at is None or any(name == n for n, _, _ in dims[at]):
            continue
        if even and shape[at] % (shards[at] * count):
            continue
        dims[at].append((name, major, size))
        shards[at] *= count
        left.discard(name)
    return dims, [name for name, _ in axes if name in left]


def draw_hlo(rng: Random, shape: Shape, devices: int, even: bool) -> str:
    """An `mhlo.sharding` of a value on so many devices."""
    kind = rng.random()
    if kind < 0.1:
        return "{replicated}"
    if kind < 0.15:
        return f"{{maximal device={rng.randrange(devices)}}}"
    if kind < 0.2:
        return "{unknown}"
    return tiled(rng, shape, devices, even)


def draw_named(rng: Random, shape: Shape, meshes: Meshes, even: bool) -> str:
    """An `mhlo.sharding` over a mesh's axes by name."""
    kind = rng.random()
    if kind < 0.05:
        return f"{{maximal_mesh[device_id={rng.randrange(meshes.devices)}]}}"
    name, _, rest = draw_shardy(rng, shape, meshes, even).partition(", ")
    axes, _, ids = meshes.declared[name[1:]].partition(", device_ids=")
    quoted = rng.random() < 0.5
    text = f"mesh{axes}" + (f", device_ids=({ids[1:-1]})" if ids else "")
    text += ", replicated" if kind < 0.15 else f", {rest}"
    return "{" + text.replace('"', "'" if quoted else "") + "}"


def tiled(rng: Random, shape: Shape, devices: int, even: bool, regular: bool = False) -> str:
    """A string with tiles, whose devices are an iota or a list. `regular`: in an order that some mesh axes give."""
    tiles = [1] * len(shape)
    left = devices
    for dim in rng.sample(range(len(shape)), len(shape)):
        counts = [k for k in range(1, left + 1) if left % k == 0 and not (even and shape[dim] % k)]
        tiles[dim] = rng.choice(counts)
        left //= tiles[dim]
    suffix = ""
    if left > 1 or rng.random() < 0.2:
        tiles.append(left)
        suffix = rng.choice((" last_tile_dim_replicate", " last_tile_dims={replicated}"))
    if not tiles:
        return "{replicated}"
    order = (
        ""
        if rng.random() < 0.8
        else rng.choice((" shard_as 1", " shard_like 1", " metadata={op_name=\\22x\\22}"))
    )
    return (
        "{" + f"devices=[{','.join(map(str, tiles))}]{_devices(rng, devices, regular)}{suffix}{order}" + "}"
    )


def _devices(rng: Random, devices: int, regular: bool) -> str:
    kind = rng.random() * (0.9 if regular else 1.0)
    if kind < 0.4:
        return f"<=[{devices}]"
    cuts = [k for k in range(2, devices) if devices % k == 0]
    if kind < 0.8 and cuts:
        cut = rng.choice(cuts)
        return f"<=[{cut},{devices // cut}]T(1,0)"
    ids = list(range(devices))
    if kind > 0.9:
        rng.shuffle(ids)
    return ",".join(map(str, ids))
