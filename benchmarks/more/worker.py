"""One process of `run_more`: compiles programs, runs ours on CPUs, writes a JSON line per result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.gpus import GPUS
from benchmarks.more import MORE
from benchmarks.targets import CPU, add_target, devices_of
from benchmarks.workers import Row, start_row, work, worker_options
from benchmarks.zoo_compile import compile_parts, mesh_of


def main() -> None:
    parser = worker_options(__doc__)
    add_target(parser)
    options = parser.parse_args()
    devices, run = devices_of(options.target), options.target == CPU
    work(options, lambda name, parts: run_program(name, parts, devices, run, options.hlo))


def run_program(
    name: str, parts: list[str], devices: list[Any], run: bool = True, hlo_dir: str = ""
) -> Iterator[Row]:
    """Rows of one program; a "start" row before each part."""
    case = MORE.get(name) or GPUS[name]
    yield start_row(name, parts[0])
    about: Row = {"name": name, "axes": case.mesh}
    mesh = mesh_of(case.mesh, devices)
    yield from compile_parts(about, parts, case.mesh, case.build(), mesh, hlo_dir, run)


if __name__ == "__main__":
    main()
