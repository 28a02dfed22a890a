"""Step time, compile time and memory of the programs beside the zoo (`benchmarks.more`), ours over Shardy's, on 8 virtual CPUs.

    NPROC=16 python -m benchmarks.steps [--only 'gnn_*'] [--steps 10]

Both step in turn in one process, as in `run_zoo`. A complete run writes `benchmarks/results/steps-jax<version>.md`.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

from rich.console import Console  # noqa: E402

import spmd_compiler as spmd  # noqa: E402
from benchmarks import compare, zoo  # noqa: E402
from benchmarks.more import MORE  # noqa: E402
from benchmarks.workers import Row  # noqa: E402
from benchmarks.zoo_compile import warm_up  # noqa: E402
from benchmarks.zoo_worker import run_case  # noqa: E402

PARTS = ["spmd", "shardy"]
SLOWER = 1.05  # times Shardy's step, from which on a program is told first


class Ratios(NamedTuple):
    """Ours over Shardy's: a step, compilation from the trace on, the memory that XLA allocates; bytes sent by both."""

    step: float
    compile: float
    memory: float
    sent: float
    theirs: float


def measure(name: str, steps: int) -> Ratios | None:
    """None if either part failed."""
    rows: dict[str, Row] = {r["part"]: r for r in run_case(MORE[name], PARTS, steps, "") if "status" in r}
    if any("step_ms" not in rows.get(part, {}) for part in PARTS):
        return None
    ours, theirs = (rows[part] for part in PARTS)
    compiled = [row["lower_s"] + row["compile_s"] for row in (ours, theirs)]
    memory = compare.memory_ratio(rows) or 1.0
    return Ratios(
        theirs["spmd_step_ratio"], compiled[0] / compiled[1], memory, ours["bytes"], theirs["bytes"]
    )


def report(found: dict[str, Ratios], failed: list[str]) -> str:
    """The table as markdown, the slowest first."""
    means = [
        compare.geometric_mean([getattr(r, what) for r in found.values()]) for what in Ratios._fields[:3]
    ]
    slower = sum(r.step > SLOWER for r in found.values())
    lines = [
        f"# Steps of more programs on JAX {version('jax')}",
        "",
        "`python -m benchmarks.steps`: ours over Shardy's on 8 virtual CPU devices, which share the cores: work that all of them "
        "repeat to send less takes several times as long here.",
        "",
        f"* {len(found)} programs: step x {means[0]:.2f}, above {SLOWER} in {slower}; compilation x {means[1]:.2f}; memory x "
        f"{means[2]:.2f} (geometric means)",
        f"* not timed: {', '.join(failed) or 'none'}",
        "",
        "| program | step | compile | memory | bytes | Shardy's |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for name, r in sorted(found.items(), key=lambda x: -x[1].step):
        lines.append(
            f"| {name} | {r.step:.2f} | {r.compile:.2f} | {r.memory:.2f} | {r.sent:,.0f} | {r.theirs:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="a shell pattern of names")
    parser.add_argument("--steps", type=int, default=10, help="rounds at most")
    options = parser.parse_args()
    spmd.configure_virtual_cpus(8)
    warm_up(PARTS)
    found: dict[str, Ratios] = {}
    failed: list[str] = []
    for name in zoo.names([options.only], MORE):
        ratios = measure(name, options.steps)
        if ratios is None:
            failed.append(name)
        else:
            found[name] = ratios
    text = report(found, failed)
    Console(width=160).print(text, markup=False, soft_wrap=True)
    if options.only == "*":
        (ROOT / "benchmarks" / "results" / f"steps-jax{version('jax')}.md").write_text(text)


if __name__ == "__main__":
    main()
