"""The pipeline: which passes run, and which of their results are stages that a user sees."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from ..errors import ArgumentError, UnsupportedError
from ..ir.graph import Module
from ..ir.verify import verify
from .cost import priced
from .estimate import on_device, peak_bytes
from .expand import Expand
from .hardware import Hardware, find_hardware
from .manager import Callback, Check, Pass, no_cycle_collection, run_passes
from .optimize import Optimize
from .prepare.barriers import SplitBarriers
from .prepare.late_reversals import LateReversals
from .prepare.merge_moves import MergeMoves
from .prepare.open_regions import OpenRegions
from .prepare.own_converts import OwnConverts
from .prepare.sorted_takes import SortedTakes
from .prepare.transposed_products import TransposedProducts
from .prepare.unflatten import Unflatten
from .propagate import Propagate
from .simplify import Simplify
from .spread_loops import SpreadLoops
from .timeline import timeline
from .units import Units
from .verify import verify_layouts

Stages = dict[str, Module]
Assign = Callable[[float, bool], Stages]  # with blocks of this size, by the exact search or not

# What a user sees: the program as it came, and the results of passes, by their names.
STAGES = ("import", "propagate", "expand", "optimize")
PREPARE: tuple[Pass, ...] = (
    Simplify(),
    Unflatten(),
    OpenRegions(),
    SplitBarriers(),
    SortedTakes(),
    LateReversals(),
    MergeMoves(),
    TransposedProducts(),
)

ROOMS = 6  # sizes of blocks that are tried where memory is short, each half of the one before


class Target(NamedTuple):
    """What XLA compiles for. platform: as `Mesh.platform`, None if that is open; memory: bytes that a device has, if that is known;
    variadic: XLA keeps all-gathers of several operands."""

    platform: str | None = None
    memory: float | None = None
    variadic: bool = True


ANY = Target()


@dataclass(frozen=True)
class Options:
    """sweeps: rounds of improvement after propagation; 0 is plain propagation. verify: check the IR after every pass.
    hardware: minimise the time of this model (a `Hardware`, a preset's name, or a TOML file) instead of bytes sent.
    search: "default", or "ilp": an exact search by HiGHS after that, which takes `time_limit` seconds at most; `explain()`
    tells how far from the optimum it may have stayed. memory_limit: bytes that live values may take on a device by estimate,
    at the cost of more communication: what is gathered is gathered again rather than kept, and slice by slice in loops, and
    where that is not enough layouts are chosen in which devices hold smaller blocks; None is what the devices have, or
    `hardware`, if that is known. collective_matmul: matrix products that wait for an all-gather or feed a reduce-scatter as
    rings of permutes: True wherever it is possible, False nowhere, None where it saves time on `hardware`. Raises ArgumentError
    for another search, a negative number, or a hardware model that does not exist."""

    sweeps: int = 2
    verify: bool = True
    hardware: Hardware | str | os.PathLike[str] | None = None
    search: str = "default"
    time_limit: float = 60.0
    memory_limit: float | None = None
    collective_matmul: bool | None = None

    @classmethod
    def checked(cls, options: Any) -> Options:
        """What a user gives as `options=`, None being the default. Raises ArgumentError for anything else."""
        if options is not None and not isinstance(options, Options):
            raise ArgumentError(f"options must be a spmd.Options, not {type(options).__name__}")
        return options or cls()

    def __post_init__(self) -> None:
        if self.search not in ("default", "ilp"):
            raise ArgumentError(f"no search {self.search!r}; there are 'default' and 'ilp'")
        if not isinstance(self.sweeps, int) or self.sweeps < 0:
            raise ArgumentError(f"sweeps={self.sweeps!r}: rounds of improvement are 0 or more")
        for name in ("time_limit", "memory_limit"):
            limit = getattr(self, name)
            if (limit is not None or name == "time_limit") and not (
                isinstance(limit, numbers.Real) and float(limit) > 0
            ):
                raise ArgumentError(f"{name}={limit!r}: give a positive number")
        if self.collective_matmul not in (True, False, None):
            raise ArgumentError(f"collective_matmul={self.collective_matmul!r}: give True, False or None")
        _ = self.model  # which raises for one that does not exist

    @cached_property
    def model(self) -> Hardware | None:
        """The hardware model; a file is read once."""
        return None if self.hardware is None else find_hardware(self.hardware)


@no_cycle_collection()
def compile_module(
    module: Module,
    options: Options | None = None,
    callback: Callback | None = None,
    units: Units | None = None,
    target: Target = ANY,
    given: str = "import",
) -> Stages:
    """Runs all passes on an imported module whose `main` has its user's layouts: arguments in `Value.layout`, results in
    `result_attrs[i]["layout"]`. Returns the stages "import", "propagate", "expand", "optimize". `callback` is called
    after each pass. `units`: what custom calls with these backend_configs run on a device. `target`: what XLA compiles
    for. `given`: the stage that the module is in already; those before it are not there then. Raises UnsupportedError for a
    program that takes more than `options.memory_limit`."""
    options = options or Options()
    hardware, limit, memory = options.model, options.memory_limit, target.memory
    if limit is not None:
        memory = limit
    elif hardware is not None and memory is None:
        memory = hardware.memory

    def checks(done: Pass) -> Sequence[Check]:
        if not options.verify:
            return ()
        return (verify, verify_layouts) if isinstance(done, Propagate) else (verify,)

    def run(module: Module, passes: Sequence[Pass]) -> Stages:
        return {done.name: result for done, result in run_passes(module, passes, checks, callback)}

    def assign(room: float, exact: bool) -> Stages:
        seconds = options.time_limit if exact else None
        first = Propagate(options.sweeps, seconds, limit, on_cpus=target.platform == "cpu")
        found = run(priced(prepared, hardware, room), (first, *emit))
        if hardware is None or exact or not options.sweeps:
            return found
        # the search prices each collective alone: what goes together, or hides, shows only in a program
        usual = run(priced(prepared, None, room), (first, *emit))
        return _fastest((found, usual), hardware, memory)

    target = target._replace(memory=memory)
    emit = (Expand(units or {}), Optimize(hardware, options.collective_matmul, *target))
    stages = {given: module}
    if given != STAGES[0]:
        names = [p.name for p in emit]
        stages |= run(priced(module, hardware), emit[names.index(given) + 1 if given in names else 0 :])
        least = _takes(stages)
    else:
        prepare = (*PREPARE, SpreadLoops(options.sweeps), OwnConverts())
        prepared = list(run(priced(module, hardware), prepare).values())[-1]
        exact = options.search == "ilp"
        found, least = (assign(math.inf, exact), 0) if memory is None else _fitting(assign, memory, exact)
        stages |= found
    if limit is not None and least > limit:
        raise UnsupportedError(
            f"{module.name} takes {least:,} bytes on each device by estimate, more than the memory_limit of {limit:,.0f}; "
            "shard more of its arguments, or compute again what is kept for gradients (jax.checkpoint)"
        )
    return {name: stages[name] for name in STAGES if name in stages}


def _fastest(programs: Sequence[Stages], hardware: Hardware, memory: float | None) -> Stages:
    """Of those that fit into the memory, or else of all, the one that takes least time by the model."""
    fitting = [x for x in programs if memory is None or _takes(x) <= memory]
    return min(fitting or programs, key=lambda x: timeline(x["optimize"], hardware).total)


def _fitting(assign: Assign, memory: float, exact: bool) -> tuple[Stages, int]:
    """The first program that fits into the memory, from values in blocks of any size on to smaller and smaller ones; if none
    does, the first of all. And what that takes which takes least. exact: if what the exact search finds with blocks of the
    size that served fits too, it is that."""
    found, room = assign(math.inf, False), math.inf
    least = _takes(found)
    if least > memory:
        largest = max((v.type.nbytes for op in found["optimize"].walk() for v in op.results), default=0)
        for smaller in (largest / 2**k for k in range(1, ROOMS + 1) if largest):
            other = assign(smaller, False)
            least = min(least, _takes(other))
            if least <= memory:
                found, room = other, smaller
                break
    if exact:
        other = assign(room, True)
        if _takes(other) <= max(memory, least):
            return other, _takes(other)
        attrs = found["propagate"].attrs
        told = (attrs.get("search"), "exact search: what it found does not fit into memory")
        attrs["search"] = "\n".join(filter(None, told))
    return found, least


def _takes(stages: Stages) -> int:
    module = stages["optimize"]
    return peak_bytes(module.main.body, set(), on_device(module))
