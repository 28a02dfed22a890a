"""One process of `run_variants`: draws variants, compiles them, writes a JSON line per result."""

from __future__ import annotations

from collections.abc import Iterator

import jax

import spmd_compiler as spmd
from benchmarks.variants import draw, kind_of
from benchmarks.variants.meshes import MOST
from benchmarks.workers import Row, keep_hlo, outcome, start_row, work, worker_options
from benchmarks.zoo_compile import compile_part, difference, mesh_of, on_one_device, placed

CHECKED = 5  # every so manieth variant of a kind is run and compared with one device
RUN = 8  # devices at most


def main() -> None:
    parser = worker_options(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    spmd.configure_virtual_cpus(MOST)
    work(options, lambda name, parts: run_variant(name, parts, options.seed, options.hlo))


def run_variant(name: str, parts: list[str], seed: int, hlo_dir: str = "") -> Iterator[Row]:
    """Rows of one variant; a "start" row before each part."""
    yield start_row(name, parts[0])
    variant = draw(name, seed)
    built, mesh = variant.built, mesh_of(variant.axes, jax.devices())
    args = placed(built, mesh, abstract=True)
    for part in parts:
        yield start_row(name, part)
        row: Row = {"name": name, "part": part, "axes": variant.axes, "what": variant.what}
        with outcome(row):
            compiled = compile_part(row, variant.axes, built, mesh, args, part)
            keep_hlo(compiled, hlo_dir, name, part)
            if part == "spmd" and _is_run(name, mesh.size):
                error = difference(compiled(*placed(built, mesh)), on_one_device(built))
                row["error_vs_one_device"], row["right"] = error, error <= built.tol
        yield row


def _is_run(name: str, devices: int) -> bool:
    number = name.split("~")[1].removeprefix(kind_of(name))
    return devices <= RUN and int(number) % CHECKED == 0


if __name__ == "__main__":
    main()
