"""One process of the zoo: builds programs, runs them through the partitioners, writes a JSON line per result.

A line with `"status": "start"` announces what is tried next, so that `workers` knows what killed a process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import jax

import spmd_compiler as spmd
from benchmarks import zoo
from benchmarks.zoo_compile import compile_part, difference, mesh_of, on_one_device, placed

WARM_UP = 2
STEP_SECONDS = 8.0  # a program's steps end after this, if three rounds are done


def main() -> None:
    options = _options()
    spmd.configure_virtual_cpus(8)
    with open(options.out, "a", buffering=1) as out:
        for item in options.work:
            name, parts = item.split("=")
            for row in run_case(zoo.CASES[name], parts.split("+"), options.steps, options.hlo):
                out.write(json.dumps(row) + "\n")
            jax.clear_caches()


def run_case(case: zoo.Case, parts: list[str], steps: int, hlo_dir: str) -> Iterator[dict[str, Any]]:
    """Rows of one program; `steps` 0 leaves the timing out."""
    built = case.build()
    mesh = mesh_of(case.mesh, jax.devices())
    args = placed(built, mesh)
    reference = on_one_device(built)
    runnable: dict[str, Callable[[], Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for part in parts:
        yield {"name": case.name, "part": part, "status": "start"}
        row = rows[part] = {"name": case.name, "part": part, "jax": jax.__version__}
        try:
            compiled = compile_part(row, case.mesh, built, mesh, args, part)
            if hlo_dir:
                path = Path(hlo_dir) / f"{case.name}.{part}.hlo"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(compiled.as_text())
            row["error_vs_one_device"] = difference(compiled(*args), reference)
            row["right"] = row["error_vs_one_device"] <= built.tol
            row["status"] = "ok"
            runnable[part] = _stepper(compiled, args)
        except Exception as error:  # the table lists what failed and goes on
            row["status"] = "error"
            row["error"] = f"{type(error).__name__}: {error}"[:1500]
    if steps and runnable:
        yield {"name": case.name, "part": "+".join(runnable), "status": "start"}
        _time(runnable, rows, steps)
    yield from rows.values()


def _stepper(compiled: Any, args: tuple) -> Callable[[], Any]:
    return lambda: jax.block_until_ready(compiled(*args))


def _time(runnable: dict[str, Callable[[], Any]], rows: dict[str, dict[str, Any]], steps: int) -> None:
    """Steps in turn, one of each partitioner a round: a slow moment of the machine hits all of them."""
    times: dict[str, list[float]] = {part: [] for part in runnable}
    for step in runnable.values():
        for _ in range(WARM_UP):
            step()
    start = time.perf_counter()
    for done in range(steps):
        if done >= 3 and time.perf_counter() - start > STEP_SECONDS:
            break
        for part, step in runnable.items():
            begin = time.perf_counter()
            step()
            times[part].append(time.perf_counter() - begin)
    for part, taken in times.items():
        rows[part]["step_ms"] = median(taken) * 1e3
        rows[part]["rounds"] = len(taken)
        if "spmd" in times:
            rows[part]["spmd_step_ratio"] = median(a / b for a, b in zip(times["spmd"], taken, strict=True))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hlo", default="")
    parser.add_argument("work", nargs="+", help="program=part+part")
    return parser.parse_args()


if __name__ == "__main__":
    main()
