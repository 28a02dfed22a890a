"""What `.lower()` returns: every stage of the compilation, and what the program sends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from . import compat, compat_executables
from .errors import ArgumentError, MeshError, UnsupportedError
from .estimates import Cost, Memory, estimate_cost, estimate_memory
from .ir import layout as ir_layout
from .ir.exporter import export_text
from .ir.graph import Module
from .layout import Layout
from .partitioned import Partitioned
from .passes.hardware import Hardware, find_hardware
from .passes.report import Collective, collectives, explain
from .placement import Placer, check_deleted
from .signature import Call


class _Stage:
    """What both stages tell of the arguments and the result."""

    def __init__(self, partitioned: Partitioned, arguments: Call, out_tree: Any, quiet: bool):
        """`arguments` and `out_tree`: the structure of arguments and result. `quiet`: arguments in another layout are
        relaid without a warning."""
        self._partitioned, self._arguments, self._quiet = partitioned, arguments, quiet
        self.out_tree = out_tree

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._partitioned.name} on {self._partitioned.mesh!r}>"

    @property
    def in_tree(self) -> Any:
        """The structure of (args, kwargs), static ones left out."""
        return jax.tree.structure(self.in_avals)

    @property
    def in_avals(self) -> Any:
        """The shapes and dtypes of (args, kwargs)."""
        return self._arguments.args_and_kwargs(self._partitioned.ins[self._captured :])

    @property
    def _captured(self) -> int:
        """How many inputs are arrays that the function captured: they come before the arguments."""
        return len(self._partitioned.ins) - len(self._arguments.leaves)

    @property
    def out_info(self) -> Any:
        """The result's shapes, dtypes and shardings, in its structure."""
        rows = zip(self._partitioned.outs, self._partitioned.out_shardings, strict=True)
        leaves = [struct.update(sharding=sharding) for struct, sharding in rows]
        return jax.tree.unflatten(self.out_tree, leaves)


class Lowered(_Stage):
    """A partitioned program before XLA."""

    @property
    def in_layouts(self) -> Any:
        """The layouts of the arguments, in their structure: a tuple, or (tuple, dict) if there are keywords."""
        return self._arguments.arrange(self._public(self._partitioned.in_layouts[self._captured :]))

    @property
    def out_layouts(self) -> Any:
        """The layouts of the result, in its structure."""
        return jax.tree.unflatten(self.out_tree, self._public(self._partitioned.out_layouts))

    def _public(self, layouts: Sequence[ir_layout.Layout]) -> list[Layout]:
        return [Layout.from_ir(x, self._partitioned.mesh) for x in layouts]

    @property
    def stages(self) -> dict[str, Module]:
        """`ir.Module` by stage, in order: "import", "propagate", "expand", "optimize"."""
        return self._partitioned.stages

    def as_text(self, stage: str = "optimize") -> str:
        """A stage as IR text. Raises ArgumentError for a stage that doesn't exist."""
        if stage not in self.stages:
            raise ArgumentError(f"no stage {stage!r}; there are {', '.join(self.stages)}")
        return str(self.stages[stage])

    def stablehlo(self) -> str:
        """The per-device module as StableHLO text."""
        return export_text(self._partitioned.module)

    def collectives(self) -> list[Collective]:
        """The collectives of the last stage, in program order."""
        return collectives(self._partitioned.module)

    def comm_bytes(self) -> float:
        """Bytes that each device sends per call (ring model, loops counted by their trips)."""
        return sum(c.bytes_per_device * c.trips for c in self.collectives())

    def cost(self, hardware: Hardware | str = "cpu") -> Cost:
        """What one call does on each device, and how long that might take on `hardware`: a preset by name, a TOML file, or
        a `Hardware` of your own. Raises ArgumentError for one that is not there."""
        return estimate_cost(self._partitioned.module, self.collectives(), find_hardware(hardware))

    def memory(self) -> Memory:
        """Bytes on each device: arguments, results, and the most that is live at once, by an estimate before XLA."""
        donated = [self._captured + i for i in self._arguments.donated]
        return estimate_memory(self._partitioned.module, donated)

    def explain(self) -> str:
        """The collectives with their causes, and the ops that run replicated for want of a rule."""
        return explain(self.stages)

    def compile(self, compiler_options: Mapping[str, Any] | None = None) -> Compiled:
        """Compiles with XLA. `compiler_options`: as `jax.stages.Lowered.compile` takes them, by their names in XLA_FLAGS; they go
        before those of `xla_options`. Raises MeshError for an abstract mesh, UnsupportedError for a program that reads traced values of
        the code around it."""
        part = self._partitioned
        if self._captured:
            raise UnsupportedError(
                "the program reads traced values of the code around it, which an executable of its own has not: pass them "
                "as arguments, or call it as it is"
            )
        if part.mesh.is_abstract:
            raise MeshError(
                f"{part.mesh!r} is abstract: there are no devices to compile for. Look at the program with .stages and "
                ".stablehlo(), or use a mesh of devices; those of a topology from jax.experimental.topologies will do"
            )
        with part.precision():
            executable = part.compile(self.out_tree, self._arguments.donated, compiler_options)
        return Compiled(executable, part, self._arguments, self._quiet)


def _counted(by_position: int, named: Sequence[str]) -> str:
    arguments = f"{by_position} argument{'s' * (by_position != 1)}"
    return f"{arguments} and, by name, {', '.join(named)}" if named else arguments


class Compiled(_Stage):
    """An executable. Call it with arguments like those it was lowered for; static ones are fixed, and left out."""

    def __init__(self, executable: Any, partitioned: Partitioned, arguments: Call, quiet: bool):
        super().__init__(partitioned, arguments, executable.out_tree, quiet)
        self._executable = executable
        self._placer = Placer(partitioned.name, quiet)
        # JAX's dispatcher remembers arguments that lie where they should, and runs the program without any Python of ours.
        self._dispatch = compat_executables.cpp_dispatch(partitioned.name, self._miss)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Raises ArgumentError for arguments of another structure or type than it was lowered for."""
        try:
            if not self._partitioned.is_wide:
                return self._dispatch(*args, **kwargs)
            with self._partitioned.precision():
                return self._dispatch(*args, **kwargs)
        except compat_executables.InvalidValue as error:
            what = compat_executables.invalid_value(error)
        except RuntimeError:
            leaves = jax.tree.leaves((args, kwargs))
            if len(leaves) == len(self._arguments.paths):
                check_deleted(leaves, self._arguments.paths)
            raise
        raise FloatingPointError(f"{what} in the result of {self._partitioned.name}")

    def _miss(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, bool]:
        """A call with arguments that the dispatcher doesn't know."""
        names = sorted(kwargs)
        leaves, tree = jax.tree.flatten((*args, *(kwargs[k] for k in names)))
        self._check(len(args), names, leaves, tree)
        part = self._partitioned
        moved = self._placer.place(leaves, self._arguments.paths, part.in_shardings, part.mesh)
        if moved is not None:
            return self._executable(*moved), None, False
        return compat_executables.compiled_miss(self._executable, leaves)

    def _check(self, count: int, names: list[str], leaves: Sequence[Any], tree: Any) -> None:
        """That these are the arguments it was lowered for: so many by position, those by name."""
        name, slots = self._partitioned.name, self._arguments.slots
        named = [k for k in slots if isinstance(k, str)]
        by_position = len(slots) - len(named)
        if (count, names) != (by_position, named):
            raise ArgumentError(
                f"{name} takes {_counted(by_position, named)}, not {_counted(count, names)}; static ones are left out"
            )
        if tree != self._arguments.tree:
            raise ArgumentError(f"{name} was compiled for arguments {self._arguments.tree}, not {tree}")
        for leaf, want, path in zip(leaves, self._partitioned.ins, self._arguments.paths, strict=True):
            try:
                given = compat.struct_of(leaf)
            except TypeError as error:
                raise ArgumentError(f"{path} is a {type(leaf).__name__}; {name} takes arrays") from error
            if given.shape != want.shape:
                raise ArgumentError(f"{path} has shape {given.shape}; it was compiled for {want.shape}")
            if given.dtype != want.dtype:
                raise ArgumentError(f"{path} is of type {given.dtype}; it was compiled for {want.dtype}")

    def as_text(self) -> str:
        """The optimized HLO."""
        return self._executable.as_text()

    def runtime_executable(self) -> Any:
        """XLA's executable, as JAX's runtime has it."""
        return self._executable.runtime_executable()

    def memory_analysis(self) -> Any:
        """XLA's account of the memory on one device."""
        return self._executable.memory_analysis()

    def cost_analysis(self) -> Any:
        """What XLA estimates of the program of one device, as JAX's own: floating-point operations, bytes accessed, …"""
        return self._executable.cost_analysis()

    @property
    def input_shardings(self) -> Any:
        """The shardings of the arguments: a tuple, or (tuple, dict) if some are given by keyword."""
        return self._arguments.arrange(self._partitioned.in_shardings)

    @property
    def output_shardings(self) -> Any:
        """The shardings of the result, in its structure."""
        return self._executable.output_shardings
