"""Whether XLA for CPUs cuts kernels among threads.

It cuts those that take long into up to as many pieces as it has threads, for each device as if that were the only one. Where the
devices keep all cores busy by themselves the pieces only wait for each other: cutting none, steps of 8 devices on 2 cores take
0.92 of the time.

XLA of JAX 0.12 miscounts, too. It cuts the tiles of a result, 8 numbers along a dim, evenly, rounding up, so that fewer pieces may
hold all of them: 744 tiles are 62 pieces of 12, not 64. It runs all 64 nevertheless, and the last one, whose number of tiles is
negative, writes past the end of the result.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Sequence
from typing import Any

import jax

DISABLED = "xla_disable_hlo_passes"
WHOLE = {DISABLED: "cpu-parallel-task-assigner"}
TILE = 8
MISCOUNTS = jax.__version_info__ >= (0, 12)
_CUT = re.compile(r'= \(?\w+\[([\d,]+)\].*"outer_dimension_partitions":\[([^\]]+)\]')


def are_busy(devices: Sequence[Any]) -> bool:
    """Whether this process's devices, CPUs all, leave less than a core idle for each of them."""
    ours = sum(device.process_index == device.client.process_index() for device in devices)
    return cores() < 2 * ours


def cores() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def overruns(loaded: Any) -> bool:
    """Whether an executable has kernels that write past the end."""
    return MISCOUNTS and has_empty_pieces(loaded.get_hlo_text())


def has_empty_pieces(hlo: str) -> bool:
    """Whether a kernel of an optimized module is cut into more pieces than hold its tiles, along whichever dim these are."""
    for dims, cuts in _CUT.findall(hlo):
        shape, partitions = ([int(n) for n in re.findall(r"\d+", text)] for text in (dims, cuts))
        pieces = math.prod(partitions)
        for size in shape:
            tiles = math.prod(shape) // size * math.ceil(size / TILE)
            if math.ceil(tiles / math.ceil(tiles / pieces)) < pieces:
                return True
    return False
