"""One process of the scorecard: tries the programs of public bugs with the partitioners, writes a JSON line per result."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import Any

import jax

import spmd_compiler as spmd
from benchmarks import hlo
from tests.scorecard import BUGS, Bug
from tests.scorecard.running import Case, switched_on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", required=True)
    parser.add_argument("work", nargs="+", help="program=part+part")
    options = parser.parse_args()
    spmd.configure_virtual_cpus(8)
    with open(options.out, "a", buffering=1) as out:
        for item in options.work:
            name, parts = item.split("=")
            for row in rows(BUGS[name], parts.split("+")):
                out.write(json.dumps(row) + "\n")
            jax.clear_caches()


def rows(bug: Bug, parts: list[str]) -> Iterator[dict[str, Any]]:
    """The result of each partitioner on one program, each announced."""
    program = bug.build()
    with switched_on(program):
        case = Case(bug, program)
        for part in parts:
            yield {"name": bug.name, "part": part, "status": "start"}
            row: dict[str, Any] = {"name": bug.name, "part": part}
            try:
                compiled = case.ours() if part == "spmd" else case.xla(shardy=part == "shardy")
                counted = hlo.report(compiled, mesh=list(bug.mesh))
                error = case.error(compiled(*case.args))
                row |= {"status": "ok", "error": error, "right": error <= program.tol}
                row |= {"bytes": counted["rs_bytes"], "count": counted["count"]}
                row["in_loops"] = sum(op["depth"] > 0 for op in counted["ops"])
            except Exception as error:  # the table lists what failed and goes on
                first = str(error).partition("\n")[0]
                row |= {"status": "error", "error": f"{type(error).__name__}: {first}"[:1000]}
            yield row


if __name__ == "__main__":
    main()
