"""Communication that nothing hides, in the order in which a program's ops are written: without and with the order for
overlap, and with collective matmul, by the hardware models. Nothing is run.

    python -m benchmarks.overlap ['lm_*' ...]

On the zoo, whose programs are small, and on layers of the size that are trained. A complete run writes
`benchmarks/results/overlap.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from benchmarks import zoo
from benchmarks.compare import geometric_mean
from spmd_compiler.ir.graph import Module
from spmd_compiler.passes.estimate import peak_bytes
from spmd_compiler.passes.hardware import PRESETS
from spmd_compiler.passes.optimize import Optimize
from spmd_compiler.passes.timeline import Timeline

MODELS = ("h100-nvlink", "tpu-v5p")
RESULT = Path(__file__).resolve().parent / "results" / "overlap.md"
BATCH, LENGTH, WIDTH, HIDDEN = 8, 2048, 8192, 32768


class Program(NamedTuple):
    function: Any
    mesh: spmd.Mesh
    args: Any
    ins: Any
    outs: Any


Ask = Callable[[jax.Array], jax.Array]  # for rows and columns over "data" and "model"


def _relayout(x: jax.Array) -> jax.Array:
    return spmd.relayout(x, P("data", "model"))


def layer(x: jax.Array, up: jax.Array, down: jax.Array, ask: Ask = _relayout) -> jax.Array:
    """Sequence parallel around, tensor parallel inside (Korthikanti et al. 2022)."""
    return ask(jax.nn.gelu(ask(x) @ up) @ down)


def gradients(x: jax.Array, up: jax.Array, down: jax.Array, ask: Ask = _relayout) -> Any:
    def loss(up: jax.Array, down: jax.Array) -> jax.Array:
        return (layer(x, up, down, ask).astype(jnp.float32) ** 2).sum()

    return jax.grad(loss, (0, 1))(up, down)


def large() -> dict[str, Program]:
    mesh = spmd.create_mesh([("data", 4), ("model", 8)], abstract=True)
    shapes = (BATCH, LENGTH, WIDTH), (WIDTH, HIDDEN), (HIDDEN, WIDTH)
    args = tuple(jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    ins = P("data", "model"), P(None, "model"), P("model", None)
    return {
        "large layer, forward": Program(layer, mesh, args, ins, None),
        "large layer, gradients": Program(gradients, mesh, args, ins, None),
    }


def small(name: str) -> Program:
    case = zoo.CASES[name]
    built = case.build()
    args = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), built.args)
    mesh = spmd.create_mesh(case.mesh, abstract=True)
    return Program(lambda *a: built.fn(*a), mesh, args, built.in_specs, built.out_specs)


def exposed(module: Module, hardware: spmd.Hardware) -> tuple[float, float, int]:
    """(microseconds that sending adds, all microseconds, peak bytes)."""
    body = module.main.body
    seconds = Timeline(module.mesh, hardware, as_written=True).block(body)
    return (seconds.total - seconds.compute) * 1e6, seconds.total * 1e6, peak_bytes(body, set())


def row(name: str, program: Program, model: str) -> tuple[str, float | None]:
    """A line of the table, and the ratio of what sending adds in order to what it adds without; None if nothing is sent."""
    hardware = PRESETS[model]
    options = spmd.Options(hardware=hardware)
    step = spmd.spmd_jit(
        program.function,
        mesh=program.mesh,
        in_layouts=program.ins,
        out_layouts=program.outs,
        options=options,
    )
    before = step.lower(*program.args).stages["expand"]
    made = [
        optimize(before)
        for optimize in (Optimize(rings=False), Optimize(hardware, rings=False), Optimize(hardware))
    ]
    rings = sum("ring of" in str(op.attrs.get("cause", "")) for op in made[2].walk())
    figures = [exposed(module, hardware) for module in made]
    cells = [f"{hidden:,.1f} of {total:,.1f}" for hidden, total, _ in figures]
    memory = max(peak for _, _, peak in figures) / max(1, figures[0][2])
    ratio = figures[1][0] / figures[0][0] if figures[0][0] > 0 else None
    return "| " + " | ".join([name, model, *cells, str(rings), f"{memory:.2f}"]) + " |", ratio


def main() -> None:
    names = zoo.names(sys.argv[1:])
    lines = [
        "Microseconds that sending adds, of all, as written; permutes of rings; peak memory, the most of the three over the first.",
        "",
        "| program | model | plain | ordered | with rings | permutes | memory |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    ratios: list[float] = []
    programs = {**large(), **{name: small(name) for name in names}}
    for name, program in programs.items():
        for model in MODELS:
            line, ratio = row(name, program, model)
            if ratio is not None:
                ratios.append(ratio)
                lines.append(line)
                print(line, flush=True)
    mean = geometric_mean(ratios)
    lines += ["", f"ordered to plain, geometric mean of {len(ratios)}: {mean:.2f}"]
    print("\n".join(lines[-2:]))
    if not sys.argv[1:]:
        RESULT.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
