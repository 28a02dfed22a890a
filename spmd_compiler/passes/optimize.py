"""optimize: cleans up the per-device program. Equal collectives and local ops are merged, unused ones dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Module
from .simplify import Simplify


@dataclass(frozen=True)
class Optimize:
    name: ClassVar[str] = "optimize"

    def __call__(self, module: Module) -> Module:
        return Simplify()(module)
