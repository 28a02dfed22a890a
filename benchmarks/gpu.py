"""Runs the zoo on this machine's GPU, and layers of the size that are trained; or every one of `more`.

    python -m benchmarks.gpu [--of more] [--jobs N] [--state DIR] ['lm_*' ...]

First each program on a mesh whose axes all have size 1, compared with `jax.jit` there. Then what the first of 8 such
GPUs does, of which the others need not be there: compiled by XLA for all of them and timed, ours and Shardy's in turn, with the
sending left out (`gpu_worker` says how). A complete run writes `benchmarks/results/gpu-*`.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from benchmarks import compare, zoo
from benchmarks.gpu_worker import ALONE, GPUS, LARGE, MODEL
from benchmarks.more import OF
from benchmarks.targets import TARGETS
from benchmarks.workers import ROOT, Row, Rows, Sweep

WORKER = "benchmarks.gpu_worker"
# No kernels are tried to choose among them: that takes a minute for each product of matrices, and asks the other processes.
ENVIRONMENT = {
    "JAX_PLATFORMS": "cuda",
    "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    "XLA_FLAGS": TARGETS["h100"].environment["XLA_FLAGS"],
}
TIMEOUT = 60.0


def main() -> int:
    """Runs what the command line asks for; 1 if one of our own programs fails or is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--jobs", type=int, default=4, help="processes at a time; while one times, others compile"
    )
    parser.add_argument("--state", default=str(ROOT / "tmp" / "gpu"), help="folder of the rows")
    parser.add_argument("--of", choices=OF, default="zoo", help="which programs, default %(default)s")
    parser.add_argument("patterns", nargs="*")
    options = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=200)
    names = zoo.names(options.patterns, OF[options.of])
    large = LARGE if options.of == "zoo" and not options.patterns else ()
    rows: Rows = {}
    for parts, what in (((ALONE,), names), (("spmd", "shardy"), [*names, *large])):
        folder = Path(options.state) / "-".join(parts)
        sweep = Sweep(WORKER, parts, folder, (), TIMEOUT, ENVIRONMENT)
        for name, by_part in sweep.run(what, options.jobs, console, parts[0]).items():
            rows.setdefault(name, {}).update(by_part)
    text = table(rows, options.of)
    console.print(text, markup=False, soft_wrap=True)
    if not options.patterns:
        stem = "gpu" if options.of == "zoo" else f"{options.of}-gpu"
        (ROOT / "benchmarks" / "results" / f"{stem}-jax{version('jax')}.md").write_text(text)
    ours = [row for by_part in rows.values() for part, row in by_part.items() if part != "shardy"]
    return int(any(row["status"] != "ok" or not row.get("right", True) for row in ours))


def table(rows: Rows, of: str = "zoo") -> str:
    """The comparison as markdown."""
    title = {by_part["spmd"].get("device") for by_part in rows.values()} - {None}
    lines = [
        f"# {'The zoo' if of == 'zoo' else 'More programs'} on one {' '.join(sorted(title)) or 'GPU'}, JAX {version('jax')}",
        "",
        f"Alone: on a mesh whose axes all have size 1, beside `jax.jit` there. The rest: what the first of {GPUS} such GPUs does, compiled by "
        "XLA for all of them and run with the sending left out. Bytes sent by the optimized HLO (ring model; Shardy's with the "
        "credit of reduce-scatters). ms: a step, in turn with Shardy's. Compile: ours over Shardy's. Memory: arguments, results "
        f"and temporaries, ours over Shardy's. Estimate: of ours, computing alone, by the model {MODEL}.",
        "",
        "| program | alone | bytes | Shardy's | ms | Shardy's | ratio | estimate | compile | memory |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, by_part in rows.items():
        ours, other = (by_part.get(part, {}) for part in ("spmd", "shardy"))
        cells = [name, _right(by_part.get(ALONE))]
        cells += [_bytes(by_part, part) for part in ("spmd", "shardy")]
        cells += [_number(row.get("step_ms"), 3) for row in (ours, other)]
        cells += [_number(_over(ours, other, "step_ms"), 2), _number(ours.get("estimate_ms"), 3)]
        cells += [
            _number(_over(ours, other, "compile_s", "lower_s"), 2),
            _number(compare.memory_ratio(by_part), 2),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"* {line}" for line in summary(rows))]) + "\n"


def summary(rows: Rows) -> list[str]:
    """Geometric means, and what failed."""
    pairs = {n: (by_part.get("spmd", {}), by_part.get("shardy", {})) for n, by_part in rows.items()}
    alone = [by_part[ALONE] for by_part in rows.values() if ALONE in by_part]
    means: dict[str, list[float | None]] = {
        "step": [_over(*pair, "step_ms") for pair in pairs.values()],
        "compilation": [_over(*pair, "compile_s", "lower_s") for pair in pairs.values()],
        "memory": [compare.memory_ratio(by_part) for by_part in rows.values()],
        "estimate over measured step": [
            ours["estimate_ms"] / ours["step_ms"]
            for n, (ours, _) in pairs.items()
            if n in LARGE and "step_ms" in ours
        ],
    }
    lines = [f"alone: {sum(row.get('right', False) for row in alone)} of {len(alone)} right"]
    for what, values in means.items():
        if known := [v for v in values if v]:
            lines.append(f"{what}: {compare.geometric_mean(known):.2f} (geometric mean of {len(known)})")
    lines += [
        f"{name}, {part}: {row['status']}: {row.get('error', '')[:200]!r}"
        for name, by_part in rows.items()
        for part, row in by_part.items()
        if row["status"] != "ok"
    ]
    return lines


def _right(row: Row | None) -> str:
    if row is None:
        return ""
    return row["status"] if row["status"] != "ok" else ("right" if row["right"] else "wrong")


def _bytes(by_part: dict[str, Row], part: str) -> str:
    count = compare.sent(by_part, part)
    return "" if count is None else f"{count:,.0f}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _over(ours: Row, other: Row, *fields: str) -> float | None:
    """The sum of the fields, ours over the other's; None if one is not known."""
    if not all(field in row for row in (ours, other) for field in fields):
        return None
    return sum(ours[f] for f in fields) / sum(other[f] for f in fields)


if __name__ == "__main__":
    sys.exit(main())
