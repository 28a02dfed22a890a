"""Time of the compiler's own work per IR op: import, passes and export, without tracing and XLA.

    python -m benchmarks.passes

On a transformer train step, unrolled, of 6 and of 48 layers, for meshes of 8 and of 65,536 abstract devices. Writes
`benchmarks/results/passes-jax<version>.md`.
"""

from __future__ import annotations

import gc
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

import spmd_compiler as spmd  # noqa: E402
from benchmarks.zoo.common import adam_specs, adam_step, rng  # noqa: E402
from benchmarks.zoo.transformer import lm_loss, lm_params, lm_specs, stack_unrolled  # noqa: E402
from spmd_compiler.ir.exporter import export_module  # noqa: E402
from spmd_compiler.ir.graph import Module  # noqa: E402
from spmd_compiler.ir.importer import import_module  # noqa: E402
from spmd_compiler.ir.layout import Layout  # noqa: E402
from spmd_compiler.passes.annotate import Annotate  # noqa: E402
from spmd_compiler.passes.pipeline import compile_module  # noqa: E402

DEPTHS = (6, 48)
MESHES = (("8 devices", {"data": 4, "model": 2}), ("65,536 devices", {"data": 32768, "model": 2}))
ROUNDS = 3


def train_step(layers: int, data: str | None = None) -> tuple[Any, list[P]]:
    """(lowered module, specs of its flat arguments). data: the axis that parameters lie on, beside "model"."""
    params = lm_params(rng(), 1, False)
    params["layers"] *= layers
    specs = lm_specs(1, False, data, "model")
    specs["layers"] *= layers
    shapes = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, jnp.float32), params)
    state = {"p": shapes, "m": shapes, "v": shapes, "t": jax.ShapeDtypeStruct((), jnp.int32)}
    tokens = jax.ShapeDtypeStruct((16, 128), jnp.int32)
    lowered = jax.jit(adam_step(lm_loss(stack_unrolled))).lower(state, tokens, tokens)
    flat = jax.tree.leaves((adam_specs(specs), P("data"), P("data")), is_leaf=lambda x: isinstance(x, P))
    return lowered.compiler_ir(), flat


def layout(spec: P, rank: int) -> Layout:
    dims = [() if x is None else (x,) if isinstance(x, str) else tuple(x) for x in spec]
    return Layout((*dims, *[()] * (rank - len(dims))))


def imported(original: Any, specs: list[P], mesh: spmd.Mesh) -> Module:
    """The module of `train_step` in IR, its arguments in their layouts."""
    module = Annotate(mesh)(import_module(original, mesh))
    for value, spec in zip(module.main.body.args, specs, strict=True):
        value.layout = layout(spec, value.type.rank)
    return module


def measure(original: Any, specs: list[P], sizes: dict[str, int]) -> tuple[int, dict[str, float]]:
    """(ops after inlining, seconds by stage)."""
    mesh = spmd.create_mesh(sizes, abstract=True)
    times: dict[str, float] = {}
    ops = 0
    at = time.perf_counter()

    def lap(name: str) -> None:
        nonlocal at
        now = time.perf_counter()
        times[name] = now - at
        at = time.perf_counter()

    def after(done: Any, module: Module) -> None:
        nonlocal ops
        lap(done.name)
        if done.name == "simplify":
            ops = sum(1 for _ in module.walk())

    gc.collect()
    at = time.perf_counter()
    module = imported(original, specs, mesh)
    lap("import")
    stages = compile_module(module, callback=after)
    lap("verify")
    export_module(stages["optimize"])
    lap("export")
    return ops, times


def main() -> None:
    rows: dict[tuple[int, str], tuple[int, dict[str, float]]] = {}
    for layers in DEPTHS:
        original, specs = train_step(layers)
        for name, sizes in MESHES:
            runs = [measure(original, specs, sizes) for _ in range(ROUNDS)]
            rows[layers, name] = min(runs, key=lambda r: sum(r[1].values()))
    stages = list(next(iter(rows.values()))[1])
    table = Table("layers", "mesh", "ops", *stages, "total", title="microseconds per op, best of 3")
    text = ["| layers | mesh | ops | " + " | ".join(stages) + " | total |", "|---" * (len(stages) + 4) + "|"]
    totals: dict[tuple[int, str], float] = {}
    for (layers, name), (ops, times) in rows.items():
        totals[layers, name] = sum(times.values()) / ops * 1e6
        cells = [str(layers), name, f"{ops:,}"]
        cells += [f"{t / ops * 1e6:.1f}" for t in times.values()] + [f"{totals[layers, name]:.1f}"]
        table.add_row(*cells)
        text.append("| " + " | ".join(cells) + " |")
    small, big = MESHES[0][0], MESHES[1][0]
    depth = totals[DEPTHS[1], small] / totals[DEPTHS[0], small]
    mesh = totals[DEPTHS[1], big] / totals[DEPTHS[1], small]
    notes = [
        f"{DEPTHS[1]} layers to {DEPTHS[0]}, per op: {depth:.2f}",
        f"{big} to {small}: {mesh:.2f}",
    ]
    console = Console(width=150)
    console.print(table)
    console.print("\n".join(notes))
    path = ROOT / "benchmarks" / "results" / f"passes-jax{version('jax')}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        "Microseconds per IR op, best of 3 runs.\n\n" + "\n".join(text) + "\n\n" + "\n".join(notes) + "\n"
    )


if __name__ == "__main__":
    main()
