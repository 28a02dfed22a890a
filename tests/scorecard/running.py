"""How a program of the table is compiled, by this compiler and by XLA's partitioners, and judged."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

import spmd_compiler as spmd
from benchmarks.zoo import hints_on
from benchmarks.zoo_compile import difference, shardings

from .registry import Bug, Program


class Case:
    """A bug's program on its mesh of the first devices, with its arguments placed. Use within `switched_on`."""

    def __init__(self, bug: Bug, program: Program):
        sizes = [size for _, size in bug.mesh]
        kind = AxisType.Explicit if program.explicit else AxisType.Auto
        self.program = program
        self.mesh = Mesh(
            np.array(jax.devices()[: np.prod(sizes)]).reshape(sizes),
            [axis for axis, _ in bug.mesh],
            axis_types=(kind,) * len(sizes),
        )
        self.args = tuple(
            jax.device_put(x, NamedSharding(self.mesh, spec))
            for x, spec in zip(program.args, program.in_specs, strict=True)
        )

    def ours(self) -> Any:
        """The program compiled by this compiler."""
        program = spmd.spmd_jit(
            self._function(),
            mesh=spmd.Mesh.from_jax(self.mesh),
            in_layouts=self.program.in_specs,
            out_layouts=self.program.out_specs,
        )
        with hints_on(self.mesh):
            return program.lower(*self.args).compile()

    def xla(self, shardy: bool) -> Any:
        """The program compiled by `jax.jit`, with Shardy or with GSPMD."""
        with _shardy(shardy):
            return self._lowered().compile()

    def error(self, results: Any) -> float:
        """How far results are from those of one device, see `difference`."""
        want = jax.jit(self.program.reference or self._function())(
            *jax.device_put(self.program.args, jax.devices()[0])
        )
        return difference(results, [np.asarray(x) for x in jax.tree.leaves(want)])

    def _lowered(self) -> Any:
        out = self.program.out_specs
        free = {} if out is None else {"out_shardings": shardings(out, self.mesh)}
        types = jax.set_mesh(self.mesh) if self.program.explicit else contextlib.nullcontext()
        with types, hints_on(self.mesh):
            return jax.jit(self._function(), keep_unused=True, **free).lower(*self.args)

    def _function(self) -> Any:
        return lambda *args: self.program.fn(*args)  # anew, for no cache to know it


@contextlib.contextmanager
def switched_on(program: Program) -> Iterator[None]:
    """While inside, types of 64 bits are on if the program wants them."""
    with jax.enable_x64(program.x64):
        yield


@contextlib.contextmanager
def _shardy(on: bool) -> Iterator[None]:
    before = jax.config.jax_use_shardy_partitioner
    jax.config.update("jax_use_shardy_partitioner", on)
    try:
        yield
    finally:
        jax.config.update("jax_use_shardy_partitioner", before)
