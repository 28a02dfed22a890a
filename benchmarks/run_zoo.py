"""Runs the zoo through this compiler, Shardy and GSPMD; a complete run writes `benchmarks/results/zoo-*`.

    python -m benchmarks.run_zoo ['lm_*' ...] [--parts spmd,shardy,gspmd] [--notime] [--jobs N] [--hlo DIR]

All partitioners work in one process, program by program. A process that crashes or hangs is started again
behind the program that did it, which the table then lists.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # also when run as a script
    sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn  # noqa: E402

from benchmarks import zoo, zoo_table  # noqa: E402

PARTS = ("spmd", "shardy", "gspmd")


def main() -> int:
    """Runs what the command line asks for; 1 if one of our own programs failed or is wrong."""
    options = _options()
    names = zoo.names(options.patterns)
    if not names:
        print(f"no program matches {' '.join(options.patterns)}; there are: {' '.join(zoo.names())}")
        return 2
    console = Console() if sys.stdout.isatty() else Console(width=200)  # piped, the table is not cut
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("zoo", total=len(names))

        def run(share: list[str]) -> zoo_table.Rows:
            return _Runner(options, share, lambda: progress.advance(bar)).run()

        shares = [names[i :: options.jobs] for i in range(options.jobs)]
        with ThreadPoolExecutor(options.jobs) as pool:
            merged = {k: v for rows in pool.map(run, [s for s in shares if s]) for k, v in rows.items()}
    rows = {name: merged[name] for name in names if name in merged}
    zoo_table.show(rows, options.parts, console)
    complete = not options.patterns and set(options.parts) == set(PARTS)
    if complete and not options.notime and options.jobs == 1:
        for path in zoo_table.write(rows, options.parts, ROOT / "benchmarks" / "results", version("jax")):
            console.print(f"wrote {path.relative_to(ROOT)}")
    return int(any(not r.get("spmd", {"right": True}).get("right") for r in rows.values()))


class _Runner:
    """Drives one worker process after the other until every program has its rows."""

    def __init__(self, options: argparse.Namespace, names: list[str], advance: Any):
        self._options = options
        self._names = names
        self._advance = advance
        self._rows: zoo_table.Rows = {}

    def run(self) -> zoo_table.Rows:
        with tempfile.TemporaryDirectory() as folder:
            attempt = 0
            while todo := self._todo():
                attempt += 1
                self._attempt(todo, Path(folder) / f"{attempt}.jsonl")
        return self._rows

    def _todo(self) -> list[str]:
        todo = []
        for name in self._names:
            missing = [p for p in self._options.parts if p not in self._rows.get(name, {})]
            if missing:
                todo.append(f"{name}={'+'.join(missing)}")
        return todo

    def _attempt(self, todo: list[str], out: Path) -> None:
        """One process; when it dies or hangs, what it was at gets a row that says so."""
        out.touch()
        errors = out.with_suffix(".err")
        steps = 0 if self._options.notime or self._options.jobs > 1 else self._options.steps
        command = [sys.executable, "-m", "benchmarks.zoo_worker", "--out", str(out), "--steps", str(steps)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
        with errors.open("wb") as log:
            process = subprocess.Popen(
                [*command, "--hlo", self._options.hlo, *todo], env=env, stderr=log, cwd=ROOT
            )
        seen, at, why = 0, ("", ""), ""
        last = time.monotonic()
        while True:
            ended = process.poll() is not None
            lines = [line for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
            for line in lines[seen:]:
                row = json.loads(line)
                if row["status"] == "start":
                    at = (row["name"], row["part"])
                else:
                    self._add(row)
                last = time.monotonic()
            seen = len(lines)
            if ended:
                why = f"the process ended with {process.returncode}" if process.returncode else ""
                break
            if time.monotonic() - last > self._options.timeout:
                process.kill()
                process.wait()
                why = f"no progress for {self._options.timeout:.0f} s"
                break
            time.sleep(0.1)
        if not why:
            return
        tail = errors.read_text(errors="replace")[-1500:]
        if not at[0]:
            raise SystemExit(f"a zoo process can't start: {why}\n{tail}")
        for part in at[1].split("+"):
            self._add({"name": at[0], "part": part, "status": "crash", "error": f"{why}: {tail}"})

    def _add(self, row: dict[str, Any]) -> None:
        by_part = self._rows.setdefault(row["name"], {})
        by_part.setdefault(row["part"], row)
        if len(by_part) == len(self._options.parts):
            self._advance()


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
