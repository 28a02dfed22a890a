"""One process of `aot`: compiles zoo programs for an accelerator that need not be there, writes a JSON line per result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from benchmarks import zoo
from benchmarks.targets import TARGETS, devices_of
from benchmarks.workers import Row, work, worker_options
from benchmarks.zoo_compile import compile_parts, mesh_of


def main() -> None:
    parser = worker_options(__doc__)
    parser.add_argument("--target", required=True, choices=TARGETS)
    options = parser.parse_args()
    devices = devices_of(options.target)
    work(options, lambda name, parts: run_case(zoo.CASES[name], parts, devices, options.hlo))


def run_case(case: zoo.Case, parts: list[str], devices: list[Any], hlo_dir: str) -> Iterator[Row]:
    about: Row = {"name": case.name, "jax": jax.__version__}
    mesh = mesh_of(case.mesh, devices)
    yield from compile_parts(about, parts, case.mesh, case.build(), mesh, hlo_dir)


if __name__ == "__main__":
    main()
