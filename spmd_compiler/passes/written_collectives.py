"""Collectives that the program itself has, in its manual regions: from groups of devices to mesh axes.

`jax.lax.psum` inside `jax.shard_map` arrives with lists of device numbers. Where these are the groups of mesh axes the op becomes
one like those that the compiler inserts: what sends the same is merged, what is small is combined, and all of it is counted. Where
they are no such groups (`axis_index_groups` that no digits of device numbers tell apart, permutes of some devices only) it stays as
it is written; `reach` tells roughly where it goes. `jax.lax.axis_index`, a digit of the device's number, becomes `axis_index`. What
a loop repeats of what stays the same in it runs once, in front of the loop: XLA moves it there too, but doesn't see any more then
that it may be there already.
"""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from ..ir.device_order import Atom, axes_of, decompose
from ..ir.graph import Block, Op, Value
from ..ir.groups import device_groups, listed_pairs, positions, shift_pairs
from ..ir.mesh import Mesh
from ..ir.optable import COLLECTIVES, RAGGED, collective_kind, is_pure, reducer_kind
from ..ir.types import TensorType

CAUSE = "the program has it"
Attrs = dict[str, Any]
_LISTED = re.compile(r"replica_groups = dense<(\[\[[\d, \[\]]*\]\])>")  # in a custom call's configuration
_INDEX = TensorType((), "i32")
_NUMBERS = _INDEX, TensorType((), "u32")


def name_axes(block: Block, mesh: Mesh) -> None:
    """Gives the collectives in a block that no one else holds, and in the blocks inside, their axes, where they have such."""
    _name_positions(block, mesh)
    for op in block.walk():
        if is_written(op) and _is_between_partitions(op) and (attrs := _named(op, mesh)):
            op.attrs, op.regions = {**attrs, "cause": CAUSE}, ()


def _name_positions(block: Block, mesh: Mesh) -> None:
    """Makes `axis_index` ops of what converts digits of the device's number."""
    numbers: dict[Value, int] = {}
    # what the device's number is divided by, and the remainder of that by what, or 0
    digits: dict[Value, Atom] = {}
    for op in block.walk():
        if len(op.results) != 1 or op.results[0].type not in _NUMBERS:
            continue
        (made,), source = op.results, op.operands[0] if op.operands else None
        if op.name == "constant":
            numbers[made] = int(op.attrs["value"].array)
        elif op.name == "partition_id":
            digits[made] = 1, 0
        elif source in digits:
            stride, size = digits[source]
            by = numbers.get(op.operands[-1], 0)
            if op.name == "divide" and by and not size:
                digits[made] = stride * by, 0
            elif op.name == "remainder" and by and not size:
                digits[made] = stride, by
            elif op.name == "convert" and size and made.type is _INDEX:
                axes = axes_of([(stride, size)], mesh)
                if axes is not None:
                    op.name, op.operands, op.attrs = "axis_index", [], {"axes": axes}


def has_written(block: Block) -> bool:
    """Whether there are any that `name_axes` found."""
    return any(map(_was_written, block.walk()))


def hoist_written(block: Block) -> None:
    """Moves collectives that the program repeats on what a loop leaves as it is in front of the loop. Changes a block that no one
    else holds, and the blocks inside."""
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            hoist_written(region)
        if op.name == "while":
            ops += _take_out(op)
        ops.append(op)
    block.ops[:] = ops


def _take_out(loop: Op) -> list[Op]:
    """Removes them from a loop, and what makes their operands."""
    body = loop.regions[1]
    outside = {
        arg: value
        for arg, back, value in zip(body.args, body.returns, loop.operands, strict=True)
        if back is arg
    }
    varying = {arg for arg in body.args if arg not in outside}
    fixed: dict[Value, Op] = {}
    for op in body.ops:
        if op.regions or not is_pure(op) or not varying.isdisjoint(op.operands):
            varying.update(op.results)
        else:
            fixed.update(dict.fromkeys(op.results, op))
    waiting = [op for op in fixed.values() if _was_written(op)]
    moved: set[Op] = set()
    while waiting:
        op = waiting.pop()
        if op not in moved:
            moved.add(op)
            waiting += [fixed[v] for v in op.operands if v in fixed]
    out = [op for op in body.ops if op in moved]
    for op in out:
        op.operands = [outside.get(v, v) for v in op.operands]
    body.ops[:] = [op for op in body.ops if op not in moved]
    return out


def _was_written(op: Op) -> bool:
    """Whether `name_axes` gave an op its axes."""
    return op.name in COLLECTIVES and op.attrs.get("cause") == CAUSE


def is_written(op: Op) -> bool:
    """Whether an op is a collective with groups or pairs of devices instead of axes."""
    return op.name in COLLECTIVES and "axes" not in op.attrs


def reach(op: Op, mesh: Mesh) -> tuple[tuple[str, ...], int]:
    """The axes along which the devices differ that a collective lets talk to each other, and how many those are."""
    if "axes" in op.attrs:
        return tuple(op.attrs["axes"]), mesh.axes_size(op.attrs["axes"])
    groups = _groups(op, mesh)
    groups = groups[(groups >= 0).all(1)]  # of smaller ones some are -1
    along = tuple(a for a, _ in mesh.axes if (np.ptp(positions(mesh, (a,))[groups], axis=1) > 0).any())
    return along, groups.shape[1]


def _groups(op: Op, mesh: Mesh) -> np.ndarray:
    """int64[groups, size], or int64[pairs, 2] of a permute."""
    if op.name == "collective_permute":
        return np.reshape(op.attrs["source_target_pairs"], (-1, 2)).astype(np.int64)
    listed = op.attrs.get("replica_groups", ())
    if collective_kind(op) == RAGGED and (found := _LISTED.search(str(op.attrs.get("backend_config")))):
        listed = json.loads(found[1])
    groups = np.asarray(listed, np.int64)
    return groups if groups.size else np.arange(mesh.size)[None]


def _is_between_partitions(op: Op) -> bool:
    """Whether device numbers are those of the mesh: without a channel they are replicas, of which a mesh has one."""
    return "channel_handle" in op.attrs


def _named(op: Op, mesh: Mesh) -> Attrs | None:
    """The attributes of the same collective over axes, or None."""
    if op.name == "collective_permute":
        return _permute(_groups(op, mesh), mesh)
    kind = None
    if op.name in ("all_reduce", "reduce_scatter"):
        kind = reducer_kind(op.regions[0])
        if kind is None:
            return None
    groups = _groups(op, mesh)
    if op.name == "all_reduce":
        groups = np.sort(groups, axis=1)  # who is first doesn't matter
    groups = groups[np.argsort(groups[:, 0])]
    dims = None if groups.shape[1] == 1 else decompose(groups[:1])
    axes = None if dims is None else axes_of(dims[1], mesh)
    if not axes or not np.array_equal(device_groups(mesh, axes), groups):
        return None
    attrs: Attrs = {"axes": axes} if kind is None else {"axes": axes, "kind": kind}
    if op.name == "all_gather":
        attrs["dim"] = op.attrs["all_gather_dim"]
    elif op.name == "reduce_scatter":
        attrs["dim"] = op.attrs["scatter_dimension"]
    elif op.name == "all_to_all":
        attrs["split_dim"], attrs["concat_dim"] = op.attrs["split_dimension"], op.attrs["concat_dimension"]
    return attrs


def _permute(pairs: np.ndarray, mesh: Mesh) -> Attrs | None:
    senders, receivers = pairs.T
    places = {a: positions(mesh, (a,)) for a, n in mesh.axes if n > 1}
    axes = tuple(a for a, place in places.items() if (place[senders] != place[receivers]).any())
    if not axes:
        return None
    index = positions(mesh, axes)
    listed = tuple(dict.fromkeys(zip(index[senders].tolist(), index[receivers].tolist(), strict=True)))
    if not _are_same(listed_pairs(mesh, axes, listed), pairs):
        return None  # other devices don't send so
    shift = listed[0][1] - listed[0][0]
    for wrap in (True, False):
        if _are_same(shift_pairs(mesh, axes, shift, wrap), pairs):
            return {"axes": axes, "shift": shift, **({"wrap": True} if wrap else {})}
    return {"axes": axes, "pairs": tuple(sorted(listed))}


def _are_same(some: np.ndarray, others: np.ndarray) -> bool:
    return sorted(some.tolist()) == sorted(others.tolist())
