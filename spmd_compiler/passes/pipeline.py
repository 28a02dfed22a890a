"""The pipeline: which passes run, and which of their results are stages that a user sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import ArgumentError, UnsupportedError
from ..ir.graph import Module
from ..ir.verify import verify
from .barriers import SplitBarriers
from .cost import priced
from .estimate import peak_bytes
from .expand import Expand
from .hardware import Hardware, find_hardware
from .manager import Callback, Check, Pass, run_passes
from .merge_moves import MergeMoves
from .open_regions import OpenRegions
from .optimize import Optimize
from .propagate import Propagate
from .simplify import Simplify
from .sorted_takes import SortedTakes
from .transposed_products import TransposedProducts
from .units import Units
from .verify import verify_layouts

# What a user sees: the program as it came, and the results of passes, by their names.
STAGES = ("import", "propagate", "expand", "optimize")


@dataclass(frozen=True)
class Options:
    """sweeps: rounds of improvement after propagation; 0 is plain propagation. verify: check the IR after every pass.
    hardware: minimise the time of this model (a `Hardware`, a preset's name, or a TOML file) instead of bytes sent.
    search: "default", or "ilp": an exact search by HiGHS after that, which takes `time_limit` seconds at most; `explain()`
    tells how far from the optimum it may have stayed. memory_limit: bytes that live values may take on a device by estimate,
    at the cost of more communication: what is gathered is gathered again rather than kept, and slice by slice in loops, and
    the exact search keeps to it too; None is what the devices have, or `hardware`, if that is known. collective_matmul:
    matrix products that wait for an all-gather or feed a reduce-scatter as rings of permutes: True wherever it is possible,
    False nowhere, None where it saves time on `hardware`. Raises ArgumentError for other searches."""

    sweeps: int = 2
    verify: bool = True
    hardware: Hardware | str | None = None
    search: str = "default"
    time_limit: float = 60.0
    memory_limit: float | None = None
    collective_matmul: bool | None = None

    def __post_init__(self) -> None:
        if self.search not in ("default", "ilp"):
            raise ArgumentError(f"no search {self.search!r}; there are 'default' and 'ilp'")


def compile_module(
    module: Module,
    options: Options | None = None,
    callback: Callback | None = None,
    units: Units | None = None,
    tpu: bool = False,
    given: str = "import",
    memory: float | None = None,
) -> dict[str, Module]:
    """Runs all passes on an imported module whose `main` has its user's layouts: arguments in `Value.layout`, results in
    `result_attrs[i]["layout"]`. Returns the stages "import", "propagate", "expand", "optimize". `callback` is called
    after each pass. `units`: what custom calls with these backend_configs run on a device. `tpu`: write collectives as XLA's TPU
    compiler keeps them. `given`: the stage that the module is in already; those before it are not there then. `memory`: bytes
    that a device has. Raises UnsupportedError for a program that takes more than `options.memory_limit`."""
    options = options or Options()
    hardware = None if options.hardware is None else find_hardware(options.hardware)
    limit = options.memory_limit
    if limit is not None:
        memory = limit
    elif hardware is not None and memory is None:
        memory = hardware.memory
    passes: list[Pass] = [
        Simplify(),
        OpenRegions(),
        SplitBarriers(),
        SortedTakes(),
        MergeMoves(),
        TransposedProducts(),
        Propagate(
            options.sweeps, options.time_limit if options.search == "ilp" else None, options.memory_limit
        ),
        Expand(units or {}),
        Optimize(hardware, options.collective_matmul, tpu, memory),
    ]

    def checks(done: Pass) -> Sequence[Check]:
        if not options.verify:
            return ()
        return (verify, verify_layouts) if isinstance(done, Propagate) else (verify,)

    if given != STAGES[0]:
        passes = passes[[p.name for p in passes].index(given) + 1 :]
    stages = {given: module}
    for done, result in run_passes(priced(module, hardware), passes, checks, callback):
        if done.name in STAGES:
            stages[done.name] = result
    if limit is not None and options.search != "ilp":
        _check_memory(stages[STAGES[-1]], limit)
    return stages


def _check_memory(module: Module, limit: float) -> None:
    needed = peak_bytes(module.main.body, set())
    if needed > limit:
        raise UnsupportedError(
            f"{module.name} takes {needed:,} bytes on each device by estimate, more than the memory_limit of {limit:,.0f}; "
            "shard more of its arguments, or compute again what is kept for gradients (jax.checkpoint)"
        )
