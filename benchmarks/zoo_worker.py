"""One process of the zoo: builds programs, runs them through the partitioners, writes a JSON line per result.

Times of compilation compare like with like: each partitioner has compiled something small when the process starts,
and before each of a program's compilations JAX forgets its traces and Python collects its garbage, so that none
profits from the one before, or pays for it.
"""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import jax

import spmd_compiler as spmd
from benchmarks import zoo
from benchmarks.workers import Row, keep_hlo, outcome, start_row, work, worker_options
from benchmarks.zoo_compile import compile_part, judge, mesh_of, on_one_device, placed, warm_up

WARM_UP = 2
STEP_SECONDS = 8.0  # a program's steps end after this, if three rounds are done


def main() -> None:
    parser = worker_options(__doc__)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    spmd.configure_virtual_cpus(8)
    if options.steps:
        warm_up({part for item in options.work for part in item.split("=")[1].split("+")})
    work(options, lambda name, parts: run_case(zoo.CASES[name], parts, options.steps, options.hlo))


def run_case(case: zoo.Case, parts: list[str], steps: int, hlo_dir: str) -> Iterator[Row]:
    """Rows of one program; `steps` 0 leaves the timing out."""
    built = case.build()
    mesh = mesh_of(case.mesh, jax.devices())
    args = placed(built, mesh)
    reference = on_one_device(built)
    runnable: dict[str, Callable[[], Any]] = {}
    rows: dict[str, Row] = {}
    for part in parts:
        yield start_row(case.name, part)
        row = rows[part] = {"name": case.name, "part": part, "jax": jax.__version__}
        jax.clear_caches()
        gc.collect()
        with outcome(row):
            compiled = compile_part(row, case.mesh, built, mesh, args, part, by_defaults=steps > 0)
            keep_hlo(compiled, hlo_dir, case.name, part)
            judge(row, compiled(*args), built, reference)
            runnable[part] = partial(compiled, *args)
    if steps and runnable:
        yield start_row(case.name, "+".join(runnable))
        _time(runnable, rows, steps)
    yield from rows.values()


def in_turn(
    runnable: dict[str, Callable[[], Any]], rounds: int, steps: int = 1, limit: float = math.inf
) -> dict[str, list[float]]:
    """Seconds of a step in each round. Partitioners step in turn: a slow moment of the machine hits all of them. Every other round
    goes the other way round: whose step comes first after the others' finds colder caches and threads. steps: those of one in a
    round, without waiting between them. limit: seconds, after which no round begins if three are done."""
    times: dict[str, list[float]] = {part: [] for part in runnable}
    start = time.perf_counter()
    for done in range(rounds):
        if done >= 3 and time.perf_counter() - start > limit:
            break
        for part, step in list(runnable.items())[:: -1 if done % 2 else 1]:
            begin = time.perf_counter()
            for _ in range(steps - 1):
                step()
            jax.block_until_ready(step())
            times[part].append((time.perf_counter() - begin) / steps)
    return times


def _time(runnable: dict[str, Callable[[], Any]], rows: dict[str, Row], steps: int) -> None:
    """Notes how long steps take, in turn."""
    for step in runnable.values():
        for _ in range(WARM_UP):
            jax.block_until_ready(step())
    times = in_turn(runnable, steps, limit=STEP_SECONDS)
    for part, taken in times.items():
        rows[part]["step_ms"] = median(taken) * 1e3
        rows[part]["rounds"] = len(taken)
        if "spmd" in times:
            rows[part]["spmd_step_ratio"] = median(a / b for a, b in zip(times["spmd"], taken, strict=True))


if __name__ == "__main__":
    main()
