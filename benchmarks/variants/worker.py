"""One process of `run_variants`: draws variants, compiles them, writes a JSON line per result."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

import spmd_compiler as spmd
from benchmarks.variants import draw, kind_of
from benchmarks.variants.meshes import MOST
from benchmarks.zoo_compile import compile_part, difference, mesh_of, on_one_device, placed

CHECKED = 5  # every so manieth variant of a kind is run and compared with one device
RUN = 8  # devices at most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hlo", default="")
    parser.add_argument("work", nargs="+", help="variant=part+part")
    options = parser.parse_args()
    spmd.configure_virtual_cpus(MOST)
    with open(options.out, "a", buffering=1) as out:
        for item in options.work:
            name, parts = item.split("=")
            for row in run_variant(name, parts.split("+"), options.seed, options.hlo):
                out.write(json.dumps(row) + "\n")
            jax.clear_caches()


def run_variant(name: str, parts: list[str], seed: int, hlo_dir: str = "") -> Iterator[dict[str, Any]]:
    """Rows of one variant; a "start" row before each part."""
    yield {"name": name, "part": parts[0], "status": "start"}
    variant = draw(name, seed)
    built, mesh = variant.built, mesh_of(variant.axes, jax.devices())
    args = placed(built, mesh, abstract=True)
    for part in parts:
        yield {"name": name, "part": part, "status": "start"}
        row = {"name": name, "part": part, "axes": variant.axes, "what": variant.what}
        try:
            compiled = compile_part(row, variant.axes, built, mesh, args, part)
            row["status"] = "ok"
            if hlo_dir:
                path = Path(hlo_dir) / f"{name}.{part}.hlo"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(compiled.as_text())
            if part == "spmd" and _is_run(name, mesh.size):
                error = difference(compiled(*placed(built, mesh)), on_one_device(built))
                row["error_vs_one_device"], row["right"] = error, error <= built.tol
        except Exception as error:  # the table lists what failed and goes on
            row["status"] = "error"
            row["error"] = f"{type(error).__name__}: {error}"[:1500]
        yield row


def _is_run(name: str, devices: int) -> bool:
    number = name.split("~")[1].removeprefix(kind_of(name))
    return devices <= RUN and int(number) % CHECKED == 0


if __name__ == "__main__":
    main()
