"""Estimates of memory beside what XLA's CPU compiler allocates for the programs of the zoo, ours and Shardy's.

    python -m benchmarks.memory_estimates

Bytes on each device: arguments, results and temporaries. Writes `benchmarks/results/memory-estimates-jax<version>.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import spmd_compiler as spmd

spmd.configure_virtual_cpus(8)

import jax  # noqa: E402

from benchmarks import hlo, zoo  # noqa: E402
from benchmarks.compare import allocated, geometric_mean  # noqa: E402
from benchmarks.workers import ROOT  # noqa: E402
from benchmarks.zoo_compile import mesh_of, partitioned, placed, shardings  # noqa: E402


def measured() -> Iterator[tuple[str, int, int, int]]:
    """(name, estimate, ours, Shardy's) of each program."""
    for name, case in zoo.CASES.items():
        built, mesh = case.build(), mesh_of(case.mesh, jax.devices())
        args = placed(built, mesh, abstract=True)
        free = {} if built.out_specs is None else {"out_shardings": shardings(built.out_specs, mesh)}
        with zoo.hints_on(mesh):
            lowered = partitioned(built, mesh).lower(*args)
            other = jax.jit(lambda *a, built=built: built.fn(*a), **free).lower(*args).compile()
        ours, shardy = (allocated(hlo.memory(x)) for x in (lowered.compile(), other))
        yield name, lowered.memory().peak, ours, shardy


def main() -> None:
    rows = list(measured())
    lines = [
        f"# Estimates of memory, JAX {version('jax')}",
        "",
        "Bytes on each of 8 virtual CPU devices: `Lowered.memory().peak`; arguments, results and temporaries that XLA allocates; for "
        "Shardy's program.",
        "",
        "| program | estimate | XLA | estimate / XLA | Shardy | XLA / Shardy |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, guess, ours, shardy in rows:
        lines.append(
            f"| {name} | {guess:,} | {ours:,} | {guess / ours:.2f} | {shardy:,} | {ours / shardy:.2f} |"
        )
    guessed = geometric_mean(guess / ours for _, guess, ours, _ in rows)
    beside = geometric_mean(ours / shardy for _, _, ours, shardy in rows)
    lines += ["", f"geometric means: estimate / XLA {guessed:.2f}, XLA / Shardy {beside:.2f}", ""]
    text = "\n".join(lines)
    print(text)
    path = ROOT / "benchmarks" / "results" / f"memory-estimates-jax{version('jax')}.md"
    path.write_text(text)


if __name__ == "__main__":
    main()
