"""What `.lower()` returns: every stage of the compilation, and what the program sends."""

from __future__ import annotations

from typing import Any

import jax

from .errors import MeshError
from .ir.exporter import export_text
from .ir.graph import Module
from .layout import Layout
from .passes.report import Collective, collectives, explain
from .program import Program


class Lowered:
    """A compiled program before XLA. `stages`: "import", "propagate", "expand", "optimize" -> `ir.Module`."""

    def __init__(self, program: Program, in_tree: Any, out_tree: Any, traced: Any):
        self._program = program
        self._in_tree, self._out_tree = in_tree, out_tree
        self._traced = traced

    @property
    def stages(self) -> dict[str, Module]:
        return self._program.stages

    def as_text(self, stage: str = "optimize") -> str:
        return str(self.stages[stage])

    def stablehlo(self) -> str:
        """The per-device module's text."""
        return export_text(self.stages["optimize"], locations=False)

    @property
    def in_layouts(self) -> Any:
        """The layouts of the arguments, as a tuple of their pytrees."""
        n = self._in_tree.num_leaves
        layouts = self._program.in_layouts[len(self._program.in_layouts) - n :]
        return jax.tree.unflatten(self._in_tree, [Layout.from_ir(x, self._program.mesh) for x in layouts])

    @property
    def out_layouts(self) -> Any:
        layouts = [Layout.from_ir(x, self._program.mesh) for x in self._program.out_layouts]
        return jax.tree.unflatten(self._out_tree, layouts)

    def collectives(self) -> list[Collective]:
        """The collectives of the last stage, in program order."""
        return collectives(self.stages["optimize"])

    def comm_bytes(self) -> float:
        """Bytes that each device sends per call (ring model, loops counted by their trips)."""
        return sum(c.bytes_per_device * c.trips for c in self.collectives())

    def explain(self) -> str:
        """The collectives with their causes, and the ops that run replicated for want of a rule."""
        return explain(self.stages)

    def compile(self) -> Compiled:
        """Compiles with XLA. Raises MeshError for an abstract mesh."""
        if self._traced is None:
            raise MeshError(
                "the mesh is abstract: there are no devices to compile for; use create_mesh with devices"
            )
        return Compiled(self._traced.lower().compile())


class Compiled:
    """An executable: call it with arrays that have the program's layouts."""

    def __init__(self, executable: Any):
        self._executable = executable

    def __call__(self, *args: Any) -> Any:
        return self._executable(*args)

    def as_text(self) -> str:
        """The optimized HLO."""
        return self._executable.as_text()

    def memory_analysis(self) -> Any:
        return self._executable.memory_analysis()

    @property
    def output_shardings(self) -> Any:
        return self._executable.output_shardings
