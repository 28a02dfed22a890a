"""One process of the zoo: builds programs, runs them through the partitioners, writes a JSON line per result.

A line with `"status": "start"` announces what is tried next, so that `run_zoo` knows what killed a process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from benchmarks import hlo, zoo

PARTS = ("spmd", "shardy", "gspmd")
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
    shape = [size for _, size in case.mesh]
    mesh = Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), [axis for axis, _ in case.mesh])
    args = _place(built, mesh)
    reference = _on_one_device(built)
    runnable: dict[str, Callable[[], Any]] = {}
    rows: dict[str, dict[str, Any]] = {}
    for part in parts:
        yield {"name": case.name, "part": part, "status": "start"}
        row = rows[part] = {"name": case.name, "part": part, "jax": jax.__version__}
        try:
            compiled = _compile(row, case, built, mesh, args, part)
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


def _compile(
    row: dict[str, Any], case: zoo.Case, built: zoo.Built, mesh: Mesh, args: tuple, part: str
) -> Any:
    jax.config.update("jax_use_shardy_partitioner", part != "gspmd")
    if part == "spmd":
        program = spmd.spmd_jit(
            lambda *a: built.fn(*a),
            mesh=spmd.Mesh.from_jax(mesh),
            in_layouts=built.in_specs,
            out_layouts=built.out_specs,
        )
    else:
        free = {} if built.out_specs is None else {"out_shardings": shardings(built.out_specs, mesh)}
        program = jax.jit(lambda *a: built.fn(*a), **free)
    with _stderr() as messages, zoo.hints_on(mesh):
        start = time.perf_counter()
        lowered = program.lower(*args)
        row["lower_s"] = time.perf_counter() - start
        compiled = lowered.compile()
        row["compile_s"] = time.perf_counter() - start - row["lower_s"]
    row["rematerializations"] = sum("nvoluntary" in line for line in messages)
    counted = hlo.report(compiled, mesh=case.mesh)
    for key in ("count", "executed", "bytes", "rs_bytes", "by_kind", "dot_flops", "memory", "unknown_trips"):
        row[key] = counted[key]
    return compiled


def _place(built: zoo.Built, mesh: Mesh) -> tuple:
    def put(spec: P, tree: Any) -> Any:
        return jax.tree.map(lambda a: jax.device_put(a, NamedSharding(mesh, spec)), tree)

    return jax.tree.map(put, built.in_specs, built.args, is_leaf=lambda s: isinstance(s, P))


def shardings(specs: Any, mesh: Mesh) -> Any:
    return jax.tree.map(
        lambda s: None if s is None else NamedSharding(mesh, s),
        specs,
        is_leaf=lambda s: s is None or isinstance(s, P),
    )


def _on_one_device(built: zoo.Built) -> list[np.ndarray]:
    args = jax.device_put(built.args, jax.devices()[0])
    return [np.asarray(a) for a in jax.tree.leaves(jax.jit(lambda *a: built.fn(*a))(*args))]


def difference(outputs: Any, reference: list[np.ndarray]) -> float:
    """The largest difference relative to an output's largest number; of integers the differing share."""
    worst = 0.0
    for got, want in zip(map(np.asarray, jax.tree.leaves(outputs)), reference, strict=True):
        if want.dtype.kind in "iub":
            error = float(np.mean(got != want)) if want.size else 0.0
        elif not want.size:
            error = 0.0
        else:
            error = float(np.max(np.abs(got - want)) / (np.max(np.abs(want)) + 1e-30))
        worst = max(worst, float("inf") if np.isnan(error) else error)
    return worst


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


@contextlib.contextmanager
def _stderr() -> Iterator[list[str]]:
    """The lines that anything, XLA included, writes to standard error."""
    lines: list[str] = []
    sys.stderr.flush()
    saved = os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            sys.stderr.flush()
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--hlo", default="")
    parser.add_argument("work", nargs="+", help="program=part+part")
    return parser.parse_args()


if __name__ == "__main__":
    main()
