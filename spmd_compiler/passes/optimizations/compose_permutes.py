"""Permutes of what was permuted become one: a block that goes along one mesh axis and then along another is sent once, to where
it ends up. So arrays are turned round, or rolled by whole blocks, along several dims at once.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from ...ir.graph import Block, Op, Value
from ...ir.groups import device_groups, permute_pairs, positions
from ...ir.mesh import Mesh, parse_axis
from ...ir.optable import sends
from ..estimate import read_in

# They keep the zeros of devices that no one sends to.
_BETWEEN = ("convert", "reshape", "reverse", "transpose")


def compose_permutes(block: Block, mesh: Mesh) -> None:
    """Changes a block that no one else holds, and the blocks inside."""
    for op in block.ops:
        for region in op.regions:
            compose_permutes(region, mesh)
    permutes = [op for op in block.ops if _is_permute(op)]
    if len(permutes) < 2:
        return
    made = block.makers()
    used = Counter(read_in(block))
    gone: set[Op] = set()
    for op in permutes:
        if reader := _reader_of_permute(op, made, used):
            first = made[reader.operands[0]]
            op.attrs = _composed(first.attrs, op.attrs, mesh)
            reader.operands = first.operands
            gone.add(first)
    if gone:
        block.ops[:] = [op for op in block.ops if op not in gone]


def _is_permute(op: Op) -> bool:
    return op.name == "collective_permute" and sends(op)


def _reader_of_permute(op: Op, made: dict[Value, Op], used: Counter[Value]) -> Op | None:
    """What reads the permute that a permute gets its operand from, by itself or through ops that only move numbers; None if it
    gets it from elsewhere, or others read what lies between."""
    while used[value := op.operands[0]] == 1 and (maker := made.get(value)) is not None:
        if _is_permute(maker):
            return op
        if maker.name not in _BETWEEN:
            break
        op = maker
    return None


def _composed(first: dict[str, Any], second: dict[str, Any], mesh: Mesh) -> dict[str, Any]:
    """The attributes of the permute that does what two do one after the other."""
    names = {parse_axis(a)[0] for a in (*first["axes"], *second["axes"])}
    axes = tuple([a for a in mesh.shape if a in names])
    group, at = device_groups(mesh, axes)[0], positions(mesh, axes).tolist()
    here, onward = (_among(group, permute_pairs(mesh, attrs)) for attrs in (first, second))
    pairs = tuple(sorted((at[a], at[onward[b]]) for a, b in here.items() if b in onward))
    cause = ", ".join(dict.fromkeys(attrs.get("cause", "") for attrs in (first, second)))
    return {"axes": axes, "pairs": pairs, "cause": cause}


def _among(group: np.ndarray, pairs: np.ndarray) -> dict[int, int]:
    return dict(pairs[np.isin(pairs[:, 0], group)].tolist())
