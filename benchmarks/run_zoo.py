"""Runs the zoo through this compiler, Shardy and GSPMD; a complete run writes `benchmarks/results/zoo-*`.

    python -m benchmarks.run_zoo ['lm_*' ...] [--parts spmd,shardy,gspmd] [--notime] [--jobs N] [--hlo DIR]

All partitioners work in one process, program by program. A process that crashes or hangs is started again
behind the program that did it, which the table then lists.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

if __name__ == "__main__":  # also when run as a script
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from rich.console import Console

from benchmarks import zoo, zoo_table
from benchmarks.workers import PARTS, ROOT, Sweep


def main() -> int:
    """Runs what the command line asks for; 1 if one of our own programs failed or is wrong."""
    options = _options()
    names = zoo.names(options.patterns)
    if not names:
        print(f"no program matches {' '.join(options.patterns)}; there are: {' '.join(zoo.names())}")
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=200)  # piped, the table is not cut
    steps = 0 if options.notime or options.jobs > 1 else options.steps
    arguments = ("--steps", str(steps), "--hlo", options.hlo)
    with tempfile.TemporaryDirectory() as folder:
        sweep = Sweep("benchmarks.zoo_worker", options.parts, Path(folder), arguments, options.timeout)
        rows = sweep.run(names, options.jobs, console, "zoo")
    zoo_table.show(rows, options.parts, console)
    complete = not options.patterns and set(options.parts) == set(PARTS)
    if complete and not options.notime and options.jobs == 1:
        for path in zoo_table.write(rows, options.parts, ROOT / "benchmarks" / "results", version("jax")):
            console.print(f"wrote {path.relative_to(ROOT)}")
    return int(any(not r.get("spmd", {"right": True}).get("right") for r in rows.values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("patterns", nargs="*", help="programs, as shell patterns; all without")
    parser.add_argument("--parts", default=",".join(PARTS), help="partitioners, default %(default)s")
    parser.add_argument("--notime", action="store_true", help="compile and check only")
    parser.add_argument("--jobs", type=int, default=1, help="processes; more than one implies --notime")
    parser.add_argument("--hlo", default="", help="folder for the optimized HLO")
    parser.add_argument("--steps", type=int, default=20, help="rounds of steps, default %(default)s")
    parser.add_argument(
        "--timeout", type=float, default=400, help="seconds without progress that mean a hang"
    )
    options = parser.parse_args()
    options.parts = options.parts.split(",")
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"--parts: {', '.join(sorted(unknown))} is not among {', '.join(PARTS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
