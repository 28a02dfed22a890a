"""optimize: cleans up the per-device program. Equal collectives and local ops are merged, unused ones dropped, and small
collectives that can run together are combined. Loops end on each device by itself where they may; starts of slices that XLA
would misread are clamped, and reductions that it lacks written otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Module
from .barriers import join_barriers
from .bitwise_reductions import expand_bitwise
from .clamp_starts import clamp_starts
from .combine import combine_collectives
from .independent_loops import free_loops
from .simplify import Simplify


@dataclass(frozen=True)
class Optimize:
    name: ClassVar[str] = "optimize"

    def __call__(self, module: Module) -> Module:
        module = Simplify()(module)
        join_barriers(module.main.body)
        free_loops(module.main.body)
        combine_collectives(module.main.body, module.mesh)
        expand_bitwise(module.main.body, module.mesh)
        clamp_starts(module.main.body, module.mesh)
        return module
