"""One zoo program through one partitioner: its arguments, the compiled program, what that sends, and its answer."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from benchmarks import compare, hlo, zoo
from benchmarks.workers import Row, keep_hlo, outcome, start_row
from spmd_compiler.xla_options import OPTIONS

Axes = list[tuple[str, int]]
FITS = 8e9  # bytes on all virtual devices
_COUNTED = ("count", "executed", "bytes", "rs_bytes", "by_kind", "dot_flops", "memory", "unknown_trips")


def mesh_of(axes: Axes, devices: list[Any]) -> Mesh:
    """A mesh over the first of `devices`."""
    shape = [size for _, size in axes]
    return Mesh(np.array(devices[: np.prod(shape)]).reshape(shape), [axis for axis, _ in axes])


def placed(built: zoo.Built, mesh: Mesh, abstract: bool = False) -> tuple:
    """The arguments under the program's layouts: arrays, or `jax.ShapeDtypeStruct`s if `abstract`."""

    def put(spec: P, tree: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        if abstract:
            return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding), tree)
        return jax.tree.map(lambda a: jax.device_put(a, sharding), tree)

    return jax.tree.map(put, built.in_specs, built.args, is_leaf=lambda s: isinstance(s, P))


def partitioned(built: zoo.Built, mesh: Mesh) -> Any:
    """The program through this compiler, traced anew."""
    return spmd.spmd_jit(
        lambda *a: built.fn(*a),
        mesh=spmd.Mesh.from_jax(mesh),
        in_layouts=built.in_specs,
        out_layouts=built.out_specs,
    )


def compile_part(
    row: dict[str, Any],
    axes: Axes,
    built: zoo.Built,
    mesh: Mesh,
    args: tuple,
    part: str,
    by_defaults: bool = False,
) -> Any:
    """Compiles with "spmd" (this compiler), "shardy" or "gspmd"; `row` gets what was counted in the optimized HLO. by_defaults:
    and how long XLA takes with the options that the rivals are compiled with."""
    jax.config.update("jax_use_shardy_partitioner", part != "gspmd")
    if part == "spmd":
        program = partitioned(built, mesh)
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
    if part == "spmd":
        row["emitted"] = _emitted(lowered)
        if by_defaults:
            # this compiler chooses no options that XLA_FLAGS names; XLA itself has read that before
            flags = " ".join((os.environ.get("XLA_FLAGS", ""), *OPTIONS))
            with mock.patch.dict(os.environ, XLA_FLAGS=flags):
                start = time.perf_counter()
                lowered.compile()
                row["default_compile_s"] = time.perf_counter() - start
    counted = hlo.report(compiled, mesh=axes)
    row.update({key: counted[key] for key in _COUNTED})
    return compiled


def compile_parts(
    about: Row, parts: list[str], axes: Axes, built: zoo.Built, mesh: Mesh, hlo_dir: str, run: bool = False
) -> Iterator[Row]:
    """A row per part, which begins with `about`; a "start" row before each. run: ours runs, and is compared with one device, where
    all devices together fit into this machine."""
    args = placed(built, mesh, abstract=True)
    for part in parts:
        yield start_row(about["name"], part)
        row: Row = {**about, "part": part}
        with outcome(row):
            compiled = compile_part(row, axes, built, mesh, args, part)
            keep_hlo(compiled, hlo_dir, about["name"], part)
            if run and part == "spmd" and mesh.size * compare.allocated(row["memory"]) <= FITS:
                judge(row, compiled(*placed(built, mesh)), built, on_one_device(built))
        yield row


def warm_up(parts: Iterable[str], arguments: Callable[[zoo.Built, Mesh], tuple] = placed) -> None:
    """Compiles a small program with each partitioner: the first compilation of a process pays for loading them."""
    axes = [("x", len(jax.devices()))]
    x = np.ones((8 * len(jax.devices()), 8), np.float32)
    built, mesh = zoo.Built(lambda x: (x @ x.T).sum(0), (x,), (P("x"),), P("x")), mesh_of(axes, jax.devices())
    for part in sorted(parts):
        compile_part({}, axes, built, mesh, arguments(built, mesh), part)


def _emitted(lowered: spmd.Lowered) -> dict[str, dict[str, float]]:
    """The collectives that this compiler put in the program, by kind, as HLO spells it."""
    kinds: dict[str, dict[str, float]] = {}
    for c in lowered.collectives():
        kind = kinds.setdefault(c.kind.replace("_", "-"), {"executed": 0, "bytes": 0.0})
        kind["executed"] += c.trips
        kind["bytes"] += c.bytes_per_device * c.trips
    return kinds


def shardings(specs: Any, mesh: Mesh) -> Any:
    return jax.tree.map(
        lambda s: None if s is None else NamedSharding(mesh, s),
        specs,
        is_leaf=lambda s: s is None or isinstance(s, P),
    )


def judge(row: Row, outputs: Any, built: zoo.Built, reference: list[np.ndarray]) -> None:
    """Notes in a row how far results are from those of one device, and whether they are right. Where they are far from these, as
    they may be where rounding turns a comparison or grows from step to step, one device in float64 decides: ours may be twice
    as far from that as one device is."""
    row["error_vs_one_device"] = error = difference(outputs, reference)
    allowed = built.tol
    if error > allowed:
        with jax.enable_x64(True):
            wide = on_one_device(_in_float64(built))
        row["error_vs_float64"] = error = difference(outputs, wide)
        row["one_device_vs_float64"] = own = difference(reference, wide)
        allowed = max(allowed, 2 * own)
    row["right"] = error <= allowed


def _in_float64(built: zoo.Built) -> zoo.Built:
    def wide(x: Any) -> Any:
        x = np.asarray(x)
        return x.astype(np.float64) if x.dtype == np.float32 else x

    return replace(built, args=jax.tree.map(wide, built.args))


def on_one_device(built: zoo.Built) -> list[np.ndarray]:
    args = jax.device_put(built.args, jax.devices()[0])
    return [np.asarray(a) for a in jax.tree.leaves(jax.jit(lambda *a: built.fn(*a))(*args))]


def difference(outputs: Any, reference: list[np.ndarray]) -> float:
    """The largest difference relative to an output's largest number; of integers the differing share. NaN where the
    reference has it is no difference."""
    worst = 0.0
    for got, want in zip(map(np.asarray, jax.tree.leaves(outputs)), reference, strict=True):
        if want.dtype.kind in "fc" and got.shape == want.shape:
            alike = np.isnan(got) & np.isnan(want)
            got, want = np.where(alike, 0, got), np.where(alike, 0, want)
        if want.dtype.kind in "iub":
            error = float(np.mean(got != want)) if want.size else 0.0
        elif not want.size:
            error = 0.0
        else:
            error = float(np.max(np.abs(got - want)) / (np.max(np.abs(want)) + 1e-30))
        worst = max(worst, float("inf") if np.isnan(error) else error)
    return worst


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
