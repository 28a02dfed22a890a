"""One process of `run_more`: compiles programs, runs ours, writes a JSON line per result."""

from __future__ import annotations

from collections.abc import Iterator

import jax

import spmd_compiler as spmd
from benchmarks.more import MORE
from benchmarks.workers import Row, keep_hlo, outcome, start_row, work, worker_options
from benchmarks.zoo_compile import compile_part, difference, mesh_of, on_one_device, placed


def main() -> None:
    options = worker_options(__doc__).parse_args()
    spmd.configure_virtual_cpus(8)
    work(options, lambda name, parts: run_program(name, parts, options.hlo))


def run_program(name: str, parts: list[str], hlo_dir: str = "") -> Iterator[Row]:
    """Rows of one program; a "start" row before each part."""
    case = MORE[name]
    yield start_row(name, parts[0])
    built, mesh = case.build(), mesh_of(case.mesh, jax.devices())
    args = placed(built, mesh, abstract=True)
    for part in parts:
        yield start_row(name, part)
        row: Row = {"name": name, "part": part, "axes": case.mesh}
        with outcome(row):
            compiled = compile_part(row, case.mesh, built, mesh, args, part)
            keep_hlo(compiled, hlo_dir, name, part)
            if part == "spmd":
                error = difference(compiled(*placed(built, mesh)), on_one_device(built))
                row["error_vs_one_device"], row["right"] = error, error <= built.tol
        yield row


if __name__ == "__main__":
    main()
