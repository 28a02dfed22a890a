"""One process of `run_variants`: draws variants, compiles them, writes a JSON line per result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from benchmarks.targets import CPU, add_target, devices_of
from benchmarks.variants import draw, kind_of
from benchmarks.variants.meshes import MOST
from benchmarks.workers import Row, start_row, work, worker_options
from benchmarks.zoo_compile import compile_parts, mesh_of

CHECKED = 5  # every so manieth variant of a kind is run and compared with one device


def main() -> None:
    parser = worker_options(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    add_target(parser)
    options = parser.parse_args()
    devices, run = devices_of(options.target, MOST), options.target == CPU
    work(options, lambda name, parts: run_variant(name, parts, options.seed, devices, run, options.hlo))


def run_variant(
    name: str, parts: list[str], seed: int, devices: list[Any], run: bool = True, hlo_dir: str = ""
) -> Iterator[Row]:
    """Rows of one variant; a "start" row before each part."""
    yield start_row(name, parts[0])
    variant = draw(name, seed)
    mesh = mesh_of(variant.axes, devices)
    about: Row = {"name": name, "axes": variant.axes, "what": variant.what}
    run = run and int(name.split("~")[1].removeprefix(kind_of(name))) % CHECKED == 0
    yield from compile_parts(about, parts, variant.axes, variant.built, mesh, hlo_dir, run)


if __name__ == "__main__":
    main()
