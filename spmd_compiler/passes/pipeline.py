"""The pipeline: which passes run, and which of their results are stages that a user sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..ir.graph import Module
from ..ir.verify import verify
from .barriers import SplitBarriers
from .boundary import Boundary
from .cost import priced
from .expand import Expand
from .hardware import Hardware, find_hardware
from .manager import Callback, Check, Pass, run_passes
from .merge_moves import MergeMoves
from .open_regions import OpenRegions
from .optimize import Optimize
from .propagate import Propagate
from .simplify import Simplify
from .units import Units
from .verify import verify_layouts

STAGES = ("propagate", "expand", "optimize")  # passes whose results a user sees, by their names


@dataclass(frozen=True)
class Options:
    """sweeps: rounds of improvement after propagation; 0 is plain propagation. verify: check the IR after every pass.
    hardware: minimise the time of this model (a `Hardware`, a preset's name, or a TOML file) instead of bytes sent."""

    sweeps: int = 2
    verify: bool = True
    hardware: Hardware | str | None = None


def compile_module(
    module: Module,
    options: Options | None = None,
    callback: Callback | None = None,
    units: Units | None = None,
) -> dict[str, Module]:
    """Runs all passes on an imported module whose `main` has its user's layouts: arguments in `Value.layout`, results in
    `result_attrs[i]["layout"]`. Returns the stages "import", "propagate", "expand", "optimize". `callback` is called
    after each pass. `units`: what custom calls with these backend_configs run on a device."""
    options = options or Options()
    hardware = None if options.hardware is None else find_hardware(options.hardware)
    passes: list[Pass] = [
        Boundary(),
        Simplify(),
        OpenRegions(),
        SplitBarriers(),
        MergeMoves(),
        Propagate(sweeps=options.sweeps),
        Expand(units or {}),
        Optimize(),
    ]

    def checks(done: Pass) -> Sequence[Check]:
        if not options.verify:
            return ()
        return (verify, verify_layouts) if isinstance(done, Propagate) else (verify,)

    stages = {"import": module}
    for done, result in run_passes(priced(module, hardware), passes, checks, callback):
        if done.name in STAGES:
            stages[done.name] = result
    return stages
