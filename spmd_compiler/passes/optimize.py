"""optimize: cleans up the per-device program. Equal collectives and local ops are merged, unused ones dropped, and small
collectives that can run together are combined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Module
from .combine import combine_collectives
from .simplify import Simplify


@dataclass(frozen=True)
class Optimize:
    name: ClassVar[str] = "optimize"

    def __call__(self, module: Module) -> Module:
        module = Simplify()(module)
        combine_collectives(module.main.body, module.mesh)
        return module
