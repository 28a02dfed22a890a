"""Finds the functions with sharding rules that custom calls of an imported program stand for."""

from __future__ import annotations

from functools import partial
from typing import Any

from .ir.graph import Module
from .mesh import Mesh
from .partitioning import callback_of
from .passes.rules.custom import PARTITIONED, UNIT
from .passes.units import Localize, Units
from .units import Blocks, unit_of_key


def local_units(module: Module, mesh: Mesh, callbacks: list[Any]) -> Units:
    """What these calls run on a device. Host functions that they call join `callbacks`."""
    blocks = Blocks(mesh, callbacks)
    units: dict[str, Localize] = {}
    for op in module.walk():
        target, key = op.attrs.get("call_target_name"), op.attrs.get("backend_config")
        if op.name != "custom_call" or target not in (UNIT, PARTITIONED) or not isinstance(key, str):
            continue
        found = unit_of_key(key) or (callback_of(key) if target == PARTITIONED else None)
        if found is not None:
            units[key] = partial(found.localize, mesh=mesh, blocks=blocks)
    return units
