"""Rings of permutes (collective matmul) compiled for accelerators that need not be there: do the permutes stay, do they run
beside other work, and is a matrix product computed while they are on their way?

    python -m benchmarks.rings [--targets tpu-v5e,h100]

What is compiled are the large layers of `overlap`, on 2 x 4 devices. Ends with 1 if a permute is lost, or if more than one
has no product beside it: XLA's GPU scheduler has one under way at a time, and waits for the first. A run on all targets
writes `benchmarks/results/rings-*`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import spmd_compiler as spmd
from benchmarks import overlap
from benchmarks.hlo.text import Computation, Instruction, Module
from benchmarks.targets import TARGETS
from benchmarks.zoo_compile import mesh_of

ROOT = Path(__file__).resolve().parent.parent
MODELS = {"tpu-v5e": "tpu-v5p", "h100": "h100-nvlink"}
AXES = [("data", 2), ("model", 4)]
_START, _DONE = "collective-permute-start", "collective-permute-done"
_GEMM = ("__cublas$lt$matmul", "__cublas$gemm")


class Found(NamedTuple):
    """Permutes in optimized HLO. covered: of the asynchronous, those that a matrix product runs beside."""

    blocking: int
    asynchronous: int
    covered: int


def permutes(text: str) -> Found:
    """Counts them, in the order in which the program is scheduled."""
    module = Module(text)
    blocking = asynchronous = covered = 0
    for computation in module.computations.values():
        under_way: dict[str, bool] = {}  # started permutes, and whether a product came since
        for ins in computation.instructions:
            blocking += ins.op == "collective-permute"
            if ins.op == _START:
                under_way[ins.name] = False
            elif ins.op == _DONE:
                asynchronous += 1
                covered += under_way.pop(ins.operands[0])
            elif under_way and _is_product(ins, module):
                under_way = dict.fromkeys(under_way, True)
    return Found(blocking, asynchronous, covered)


def _is_product(ins: Instruction, module: Module) -> bool:
    if ins.op in ("dot", "convolution"):
        return True
    if ins.op == "custom-call":
        return ins.name_attr("custom_call_target") in _GEMM
    called = module.computations.get(ins.name_attr("calls")) if ins.op == "fusion" else None
    return called is not None and _has_product(called, module)


def _has_product(computation: Computation, module: Module) -> bool:
    return any(_is_product(ins, module) for ins in computation.instructions)


def compiled(target: str) -> list[tuple[str, int, Found]]:
    """Per program the permutes that were emitted, and what XLA made of them."""
    mesh = spmd.Mesh.from_jax(mesh_of(AXES, TARGETS[target].devices()))
    options = spmd.Options(hardware=MODELS[target])
    rows: list[tuple[str, int, Found]] = []
    for name, program in overlap.large().items():
        step = spmd.spmd_jit(
            program.function,
            mesh=mesh,
            in_layouts=program.ins,
            out_layouts=program.outs,
            options=options,
        )
        lowered = step.lower(*program.args)
        emitted = sum(c.kind == "collective_permute" for c in lowered.collectives())
        rows.append((name, emitted, permutes(lowered.compile().as_text())))
    return rows


def _in_own_process(target: str) -> list[tuple[str, int, Found]]:
    """XLA reads its flags once."""
    command = [sys.executable, "-m", "benchmarks.rings", "--worker", target]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", **TARGETS[target].environment}
    done = subprocess.run(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, check=True, text=True)
    rows = json.loads(done.stdout.splitlines()[-1])
    return [(name, emitted, Found(*found)) for name, emitted, found in rows]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", default=",".join(TARGETS), help="default %(default)s")
    parser.add_argument("--worker", choices=TARGETS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(compiled(options.worker)))
        return 0
    lines = [
        f"Rings compiled ahead of time with JAX {version('jax')}, on data=2 model=4: permutes emitted; in the optimized HLO "
        "those that block, those that run beside other work, and of these the ones that a matrix product runs beside.",
        "",
        "| program | chip | model | emitted | blocking | asynchronous | beside a product |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    kept = True
    for target in options.targets.split(","):
        for name, emitted, found in _in_own_process(target):
            cells = [name, TARGETS[target].title, MODELS[target], emitted, *found]
            lines.append(f"| {' | '.join(map(str, cells))} |")
            stayed = found.blocking + found.asynchronous == emitted
            kept &= emitted > 0 and stayed and found.covered >= emitted - 1
    print("\n".join(lines))
    if options.targets == parser.get_default("targets"):
        result = ROOT / "benchmarks" / "results" / f"rings-jax{version('jax')}.md"
        result.write_text("\n".join(lines) + "\n")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
