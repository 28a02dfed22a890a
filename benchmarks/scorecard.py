"""Runs the programs of public partitioner bugs through this compiler, Shardy and GSPMD.

    python -m benchmarks.scorecard [name ...] [--timeout SECONDS]

All of them write `benchmarks/results/scorecard-jax<version>.{md,json}`, and `docs/scorecard.md` from the results of all
versions of JAX that were measured. The programs are in `tests/scorecard`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":  # also when run as a script
    sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402

from benchmarks.workers import Rows, Sweep  # noqa: E402
from tests.scorecard import BUGS, Bug  # noqa: E402

PARTS = {"spmd": "ours", "shardy": "Shardy", "gspmd": "GSPMD"}
RESULTS = ROOT / "benchmarks" / "results"
HOW = (
    "Cells: the verdict against one device, the bytes that the busiest device sends per call (ring model, read from the "
    "optimized HLO; of a loop whose length the data decides, those of one step), in brackets the collectives. `lean`: what a "
    "device of a lean program sends at most. Small programs after the issues' own, on virtual CPU devices: what was reported "
    "for GPUs or TPUs, or is mended, comes out right here."
)


def main() -> int:
    """Runs what the command line asks for; 1 if one of our own programs failed, is wrong or sends more than it should."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=[[], *BUGS], metavar="name", help="programs; all without")
    parser.add_argument(
        "--timeout", type=float, default=120, help="seconds without progress that mean a hang"
    )
    options = parser.parse_args()
    names = options.names or list(BUGS)
    console = Console(soft_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        sweep = Sweep("benchmarks.scorecard_worker", list(PARTS), Path(folder), timeout=options.timeout)
        rows = sweep.run(names, 1, console, "scorecard")
    for line in table({version("jax"): rows}, names):
        console.print(line, markup=False, highlight=False)
    for name in names:
        for part, row in rows[name].items():
            if row["status"] != "ok":
                console.print(f"{name} {part}: {row['error'][:300]}", markup=False, highlight=False)
    if not options.names:
        write(rows, version("jax"))
    return int(any(_poor(BUGS[n], rows[n]["spmd"]) for n in names))


def write(rows: Rows, jax_version: str) -> None:
    """The results of this version of JAX, and the page made from those of all."""
    stem = RESULTS / f"scorecard-jax{jax_version}"
    stem.with_name(stem.name + ".json").write_text(json.dumps(rows, indent=1) + "\n")
    lines = [f"# The scorecard on JAX {jax_version}", "", HOW, "", *table({jax_version: rows}, list(rows))]
    stem.with_name(stem.name + ".md").write_text("\n".join([*lines, "", *summary(rows)]) + "\n")
    found = sorted(RESULTS.glob("scorecard-jax*.json"))
    measured = {p.stem.removeprefix("scorecard-jax"): json.loads(p.read_text()) for p in found}
    page = [
        "# Known partitioner bugs",
        "",
        "Public issues about what partitioners get wrong, refuse, or send without need, each as a small program in "
        "`tests/scorecard`, where ours must be right and lean. Made by `python -m benchmarks.scorecard`. "
        + HOW,
        "",
        *table(measured, list(rows)),
    ]
    for jax_version, of_version in measured.items():
        page += ["", f"JAX {jax_version}:", "", *summary(of_version)]
    (ROOT / "docs" / "scorecard.md").write_text("\n".join(page) + "\n")


def table(measured: dict[str, Rows], names: list[str]) -> list[str]:
    """Markdown: a line per bug, a column per version and partitioner."""
    head = ["issue", "what", "lean", *(f"{PARTS[p]}, {v}" for v in measured for p in PARTS)]
    lines = ["| " + " | ".join(head) + " |", "|---|---|---:|" + "---|" * (len(head) - 3)]
    for name in names:
        bug = BUGS[name]
        cells = [", ".join(map(_link, bug.issues)), bug.what, f"{bug.sent:,.0f}"]
        cells += [_cell(rows.get(name, {}).get(part)) for rows in measured.values() for part in PARTS]
        lines.append("| " + " | ".join(cells) + " |")
    return lines


def summary(rows: Rows) -> list[str]:
    lines: list[str] = []
    for part, title in PARTS.items():
        done = [by_part[part] for by_part in rows.values()]
        right = [r for r in done if r.get("right")]
        failed = sum(r["status"] != "ok" for r in done)
        lean = sum(not _poor(BUGS[n], by_part[part]) for n, by_part in rows.items() if n in BUGS)
        lines.append(
            f"* {title}: of {len(done)}, {len(right)} right, {len(done) - len(right) - failed} wrong, {failed} failed; "
            f"{lean} right and lean"
        )
    return lines


def _poor(bug: Bug, row: dict[str, Any]) -> bool:
    return not row.get("right") or row["bytes"] > bug.sent + 0.5


def _link(issue: str) -> str:
    repository, _, number = issue.partition("#")
    return f"[{issue}](https://github.com/{repository}/issues/{number})" if number else issue


def _cell(row: dict[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["status"] != "ok":
        return f"**{row['status']}**"
    verdict = "right" if row["right"] else "**wrong**"
    return f"{verdict} {row['bytes']:,.0f} ({row['count']})"


if __name__ == "__main__":
    sys.exit(main())
