"""Drives worker processes that try programs with partitioners, and survives those that kill or hang a process.

A worker is a module that takes `--out FILE` and items `program=part+part`, and writes a JSON line per result, after one with
`"status": "start"` that says what it tries next.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
Rows = dict[str, dict[str, dict[str, Any]]]  # program -> part -> row


class Runner:
    """Drives one worker process after the other until every program has its rows.

    worker: the module and its arguments. timeout: seconds without progress that mean a hang. advance: called when a
    program has all its rows.
    """

    def __init__(
        self,
        worker: Sequence[str],
        names: Sequence[str],
        parts: Sequence[str],
        timeout: float,
        advance: Callable[[], object],
    ):
        self._worker = worker
        self._names = names
        self._parts = parts
        self._timeout = timeout
        self._advance = advance
        self._rows: Rows = {}

    def run(self) -> Rows:
        """The rows; of what killed a process, one with status "crash". Raises SystemExit if no process can start."""
        with tempfile.TemporaryDirectory() as folder:
            attempt = 0
            while todo := self._todo():
                attempt += 1
                self._attempt(todo, Path(folder) / f"{attempt}.jsonl")
        return self._rows

    def _todo(self) -> list[str]:
        todo: list[str] = []
        for name in self._names:
            missing = [p for p in self._parts if p not in self._rows.get(name, {})]
            if missing:
                todo.append(f"{name}={'+'.join(missing)}")
        return todo

    def _attempt(self, todo: list[str], out: Path) -> None:
        """One process; when it dies or hangs, what it was at gets a row that says so."""
        out.touch()
        errors = out.with_suffix(".err")
        command = [sys.executable, "-m", *self._worker, "--out", str(out), *todo]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        env = {**os.environ, "PYTHONPATH": path, "JAX_PLATFORMS": "cpu"}
        with errors.open("wb") as log:
            process = subprocess.Popen(command, env=env, stderr=log, cwd=ROOT)
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
            if time.monotonic() - last > self._timeout:
                process.kill()
                process.wait()
                why = f"no progress for {self._timeout:.0f} s"
                break
            time.sleep(0.1)
        if not why:
            return
        tail = errors.read_text(errors="replace")[-1500:]
        if not at[0]:
            raise SystemExit(f"a worker process can't start: {why}\n{tail}")
        for part in at[1].split("+"):
            self._add({"name": at[0], "part": part, "status": "crash", "error": f"{why}: {tail}"})

    def _add(self, row: dict[str, Any]) -> None:
        by_part = self._rows.setdefault(row["name"], {})
        by_part.setdefault(row["part"], row)
        if len(by_part) == len(self._parts):
            self._advance()
