"""A collective-permute by means of an all-gather, for where devices go different ways (see `divergence`): an all-gather
waits only for the devices of its own group. It sends more; nothing that sends less waits for so few."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...ir.graph import Value
from ...ir.groups import permute_pairs, positions
from ...ir.layout import Axes
from ...ir.mesh import Mesh
from ...ir.types import TensorType

if TYPE_CHECKING:
    from .builder import Builder


def permute_in_groups(b: Builder, value: Value, axes: Axes, attrs: dict[str, Any]) -> Value:
    """What a collective_permute with these attributes gives."""
    sender = _senders(b.mesh, axes, attrs)
    index = TensorType((), "i32")
    table = b.constant(sender, TensorType(sender.shape, "i32"))
    mine = b.dynamic_slice(table, 0, b.axis_index(axes), 1)
    mine = b.op("reshape", [mine], index)
    shape = value.type.shape
    everyone = b.all_gather(b.reshape(value, (1, *shape)), axes, 0)
    got = b.reshape(b.dynamic_slice(everyone, 0, mine, 1), shape)
    if (sender >= 0).all():
        return got
    assert isinstance(got.type, TensorType)
    received = b.broadcast(b.compare("GE", mine, b.index(0)), shape)
    return b.select(received, got, b.constant(0, got.type))


def _senders(mesh: Mesh, axes: Axes, attrs: dict[str, Any]) -> np.ndarray:
    """int32[n]: per position on `axes` that of the device that sends there, -1 where none does."""
    pairs, at = permute_pairs(mesh, {"axes": axes, **attrs}), positions(mesh, axes)
    sender = np.full(mesh.axes_size(axes), -1, np.int32)
    sender[at[pairs[:, 1]]] = at[pairs[:, 0]]
    return sender
