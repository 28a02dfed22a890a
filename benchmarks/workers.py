"""Drives worker processes over a list of programs: one that crashes or hangs is started again behind the program that
did it, which gets a row that says so. Also the loop that such a process runs."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("spmd", "shardy", "gspmd")
Row = dict[str, Any]
Rows = dict[str, dict[str, Row]]  # program -> part -> row


@dataclass(frozen=True)
class Sweep:
    """`module` is run as `python -m module --out FILE *arguments name=part+part …` and writes JSON lines to FILE: one with
    `"status": "start"` per name and part before it is tried, one with another status after.

    folder: where the files stay; names and parts that they hold already are not run again.
    """

    module: str
    parts: Sequence[str]
    folder: Path
    arguments: Sequence[str] = ()
    timeout: float = 400.0
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, names: Sequence[str], jobs: int, console: Console, title: str) -> Rows:
        """All rows of `names`, in their order; `jobs` processes at a time."""
        self.folder.mkdir(parents=True, exist_ok=True)
        done = read_rows(self.folder)
        todo = [n for n in names if any(p not in done.get(n, {}) for p in self.parts)]
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console) as progress:
            bar = progress.add_task(title, total=len(names), completed=len(names) - len(todo))

            def run(share: list[str]) -> None:
                own = {n: dict(done.get(n, {})) for n in share}
                _Runner(self, own, lambda: progress.advance(bar)).run()

            shares = [todo[i::jobs] for i in range(jobs)]
            with ThreadPoolExecutor(jobs) as pool:
                list(pool.map(run, [s for s in shares if s]))
        done = read_rows(self.folder)
        return {n: done[n] for n in names if n in done}


def run_beside_rivals(
    sweep: Sweep, names: Sequence[str], jobs: int, console: Console, made_of: Sequence[str]
) -> Rows:
    """As `sweep.run`, with the rows of XLA's partitioners kept until the programs change and ours until the compiler does:
    after a change of the compiler only ours are compiled. `made_of`: folders of `benchmarks` that the programs are made of.
    """
    made = [p for folder in made_of for p in (ROOT / "benchmarks" / folder).glob("*.py")]
    rows: Rows = {}
    for parts, sources in ((PARTS[1:], made), (PARTS[:1], [*made, *(ROOT / "spmd_compiler").rglob("*.py")])):
        title = "-".join(parts)
        own = replace(sweep, parts=parts, folder=sweep.folder / f"{title}-{_digest(sources)}")
        for name, by_part in own.run(names, jobs, console, title).items():
            rows.setdefault(name, {}).update(by_part)
    return rows


def _digest(paths: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def read_rows(folder: Path) -> Rows:
    """The finished rows of every file of `folder`."""
    rows: Rows = {}
    for path in sorted(folder.glob("*.jsonl")):
        for row in _complete(path)[0]:
            if row["status"] != "start":
                rows.setdefault(row["name"], {}).setdefault(row["part"], row)
    return rows


def _complete(path: Path, start: int = 0) -> tuple[list[Row], int]:
    """The rows of a file from a place on, and where they end; its last line may be half written."""
    with path.open("rb") as file:
        file.seek(start)
        text = file.read()
    whole = text[: text.rfind(b"\n") + 1]
    return [json.loads(line) for line in whole.splitlines()], start + len(whole)


_attempts = itertools.count()


class _Runner:
    """Drives one worker process after the other until every program of its share has its rows."""

    def __init__(self, sweep: Sweep, rows: Rows, advance: Callable[[], Any]):
        self._sweep, self._rows, self._advance = sweep, rows, advance

    def run(self) -> None:
        while todo := self._todo():
            self._attempt(todo, self._sweep.folder / f"{os.getpid()}-{next(_attempts)}.jsonl")

    def _todo(self) -> list[str]:
        missing = {n: [p for p in self._sweep.parts if p not in rows] for n, rows in self._rows.items()}
        return [f"{name}={'+'.join(parts)}" for name, parts in missing.items() if parts]

    def _attempt(self, todo: list[str], out: Path) -> None:
        """One process; when it dies or hangs, what it was at gets a row that says so."""
        out.touch()
        errors = out.with_suffix(".err")
        command = [sys.executable, "-m", self._sweep.module, "--out", str(out), *self._sweep.arguments, *todo]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu", **self._sweep.environment}
        # Threads of OpenBLAS's own wait for each other forever where more than 64 others call it.
        env.setdefault("OPENBLAS_NUM_THREADS", "1")
        with errors.open("wb") as log:
            process = subprocess.Popen(command, env=env, stderr=log, cwd=ROOT)
        try:
            at, why = self._watch(process, out)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if why:
            tail = errors.read_text(errors="replace")[-1500:]
            if not at[0]:
                raise SystemExit(f"a worker can't start: {why}\n{tail}")
            for part in at[1].split("+"):
                if part not in self._rows[at[0]]:
                    row = {"name": at[0], "part": part, "status": "crash", "error": f"{why}: {tail}"}
                    with out.open("a") as file:
                        file.write(json.dumps(row) + "\n")
                    self._add(row)
        errors.unlink()

    def _watch(self, process: subprocess.Popen[bytes], out: Path) -> tuple[tuple[str, str], str]:
        """Collects rows until the process ends or hangs: what it was at, and what went wrong with it, if anything."""
        seen, at = 0, ("", "")  # bytes of the file, and what is tried
        last = time.monotonic()
        while True:
            ended = process.poll() is not None
            rows, seen = _complete(out, seen)
            for row in rows:
                if row["status"] == "start":
                    at = (row["name"], row["part"])
                else:
                    self._add(row)
                last = time.monotonic()
            if ended:
                return at, f"the process ended with {process.returncode}" if process.returncode else ""
            if time.monotonic() - last > self._sweep.timeout:
                return at, f"no progress for {self._sweep.timeout:.0f} s"
            time.sleep(0.1)

    def _add(self, row: dict[str, Any]) -> None:
        by_part = self._rows[row["name"]]
        by_part.setdefault(row["part"], row)
        if len(by_part) == len(self._sweep.parts):
            self._advance()


# ------------------------------------------------------------------------------------------------ in the process
def worker_options(description: str | None) -> argparse.ArgumentParser:
    """The arguments that a `Sweep` gives its processes; a worker adds those of its own."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--out", required=True)
    parser.add_argument("--hlo", default="", help="folder for the optimized HLO")
    parser.add_argument("work", nargs="+", help="program=part+part")
    return parser


def work(options: argparse.Namespace, rows_of: Callable[[str, list[str]], Iterable[Row]]) -> None:
    """Writes the rows of every program of `options.work` as JSON lines to `options.out`, each as soon as it is there."""
    with open(options.out, "a", buffering=1) as out:
        for item in options.work:
            name, parts = item.split("=")
            for row in rows_of(name, parts.split("+")):
                out.write(json.dumps(row) + "\n")
            jax.clear_caches()


def start_row(name: str, part: str) -> Row:
    """Announces what is tried next, so that the driver knows what killed a process."""
    return {"name": name, "part": part, "status": "start"}


@contextmanager
def outcome(row: Row) -> Iterator[None]:
    """The row's status is "ok" if the block ends well; else "error", with the error: the table lists it and goes on."""
    try:
        yield
        row["status"] = "ok"
    except Exception as error:
        row["status"] = "error"
        row["error"] = f"{type(error).__name__}: {error}"[:1500]


def keep_hlo(compiled: Any, folder: str, name: str, part: str) -> None:
    """Writes the optimized HLO to the folder, if there is one."""
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        (Path(folder) / f"{name}.{part}.hlo").write_text(compiled.as_text())
