"""The pipeline: which passes run, and which of their results are stages that a user sees."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from ..ir.graph import Module
from .expand import Expand
from .optimize import Optimize
from .propagate import Propagate
from .simplify import Simplify

Pass = Callable[[Module], Module]
Callback = Callable[[Pass, Module], None]


@dataclass(frozen=True)
class Options:
    """sweeps: rounds of improvement after propagation."""

    sweeps: int = 4


def compile_module(
    module: Module, options: Options | None = None, callback: Callback | None = None
) -> dict[str, Module]:
    """Runs all passes on an imported module whose `main` has its user's layouts: arguments in `Value.layout`, results in
    `result_attrs[i]["layout"]`. Returns the stages "import", "propagate", "expand", "optimize". `callback` is called
    after each pass."""
    options = options or Options()
    stages: dict[str, Module] = {"import": module}
    passes: list[tuple[str | None, Pass]] = [
        (None, Simplify()),
        ("propagate", Propagate(sweeps=options.sweeps)),
        ("expand", Expand()),
        ("optimize", Optimize()),
    ]
    with _no_cycle_collection():
        for stage, run in passes:
            module = run(module)
            if callback is not None:
                callback(run, module)
            if stage is not None:
                stages[stage] = module
    return stages


@contextmanager
def _no_cycle_collection() -> Iterator[None]:
    """Passes make many objects that live on; looking for cycles among them again and again would take half of the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
