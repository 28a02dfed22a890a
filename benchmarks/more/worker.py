"""One process of `run_more`: compiles programs, runs ours, writes a JSON line per result."""

from __future__ import annotations

from collections.abc import Iterator

import jax

import spmd_compiler as spmd
from benchmarks.more import MORE
from benchmarks.workers import Row, start_row, work, worker_options
from benchmarks.zoo_compile import compile_parts, mesh_of


def main() -> None:
    options = worker_options(__doc__).parse_args()
    spmd.configure_virtual_cpus(8)
    work(options, lambda name, parts: run_program(name, parts, options.hlo))


def run_program(name: str, parts: list[str], hlo_dir: str = "") -> Iterator[Row]:
    """Rows of one program; a "start" row before each part."""
    case = MORE[name]
    yield start_row(name, parts[0])
    about: Row = {"name": name, "axes": case.mesh}
    mesh = mesh_of(case.mesh, jax.devices())
    yield from compile_parts(about, parts, case.mesh, case.build(), mesh, hlo_dir, run=True)


if __name__ == "__main__":
    main()
