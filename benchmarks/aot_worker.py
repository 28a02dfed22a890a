"""One process of `aot`: compiles zoo programs for an accelerator that need not be there, writes a JSON line per result."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from benchmarks import zoo
from benchmarks.targets import TARGETS, whole_operands
from benchmarks.zoo_compile import compile_part, mesh_of, placed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("--target", required=True, choices=TARGETS)
    parser.add_argument("--hlo", default="")
    parser.add_argument("work", nargs="+", help="program=part+part")
    options = parser.parse_args()
    whole_operands()
    devices = TARGETS[options.target].devices()
    with open(options.out, "a", buffering=1) as out:
        for item in options.work:
            name, parts = item.split("=")
            for row in run_case(zoo.CASES[name], parts.split("+"), devices, options.hlo):
                out.write(json.dumps(row) + "\n")
            jax.clear_caches()


def run_case(case: zoo.Case, parts: list[str], devices: list[Any], hlo_dir: str) -> Iterator[dict[str, Any]]:
    built = case.build()
    mesh = mesh_of(case.mesh, devices)
    args = placed(built, mesh, abstract=True)
    for part in parts:
        yield {"name": case.name, "part": part, "status": "start"}
        row = {"name": case.name, "part": part, "jax": jax.__version__}
        try:
            compiled = compile_part(row, case.mesh, built, mesh, args, part)
            row["status"] = "ok"
            if hlo_dir:
                path = Path(hlo_dir) / f"{case.name}.{part}.hlo"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(compiled.as_text())
        except Exception as error:  # the table lists what failed and goes on
            row["status"] = "error"
            row["error"] = f"{type(error).__name__}: {error}"[:1500]
        yield row


if __name__ == "__main__":
    main()
