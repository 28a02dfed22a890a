"""One process of the scorecard: tries the programs of public bugs with the partitioners, writes a JSON line per result."""

from __future__ import annotations

from collections.abc import Iterator

import spmd_compiler as spmd
from benchmarks import hlo
from benchmarks.workers import Row, keep_hlo, outcome, start_row, work, worker_options
from tests.scorecard import BUGS, Bug
from tests.scorecard.running import Case, switched_on


def main() -> None:
    options = worker_options(__doc__).parse_args()
    spmd.configure_virtual_cpus(8)
    work(options, lambda name, parts: rows(BUGS[name], parts, options.hlo))


def rows(bug: Bug, parts: list[str], hlo_dir: str) -> Iterator[Row]:
    """The result of each partitioner on one program, each announced."""
    program = bug.build()
    with switched_on(program):
        case = Case(bug, program)
        for part in parts:
            yield start_row(bug.name, part)
            row: Row = {"name": bug.name, "part": part}
            with outcome(row):
                compiled = case.ours() if part == "spmd" else case.xla(shardy=part == "shardy")
                keep_hlo(compiled, hlo_dir, bug.name, part)
                counted = hlo.report(compiled, mesh=list(bug.mesh))
                error = case.error(compiled(*case.args))
                row |= {"error": error, "right": error <= program.tol}
                row |= {"bytes": counted["rs_bytes"], "count": counted["count"]}
                row["in_loops"] = sum(op["depth"] > 0 for op in counted["ops"])
            yield row


if __name__ == "__main__":
    main()
