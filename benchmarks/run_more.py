"""More programs of the zoo's kinds through this compiler, Shardy and GSPMD: what each sends, read from optimized HLO; a
complete run writes `benchmarks/results/more-*`.

    python -m benchmarks.run_more [--only 'gnn_*'] [--target h100] [--of gpus] [--jobs N] [--hlo DIR] [--state DIR]

`--of gpus`: programs with what JAX has for GPUs alone, for the target h100; the table is `benchmarks/results/gpus-*`.
With a target other than CPUs they are compiled for chips that need not be there, as `aot` does, and nothing is run.
Rows are kept, those of XLA's partitioners until the programs change and ours until the compiler does.
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from benchmarks import compare, zoo
from benchmarks.gpus import GPUS
from benchmarks.more import MORE
from benchmarks.targets import CPU, add_target, compiled_for, results_of, sweep_of
from benchmarks.workers import PARTS, ROOT, Rows, run_beside_rivals

TABLES = {"more": MORE, "gpus": GPUS}
CASES = MORE | GPUS


def main() -> int:
    """Runs what the command line asks for; 1 if a program of ours fails, is wrong or sends more."""
    options = _options()
    names = zoo.names([options.only], TABLES[options.of])
    console = Console() if sys.stdout.isatty() else Console(width=200)
    arguments = ["--hlo", str(Path(options.hlo).absolute())] if options.hlo else []
    sweep = sweep_of(options.target, "benchmarks.more.worker", options.state, arguments)
    rows = run_beside_rivals(sweep, names, options.jobs, console, ("zoo", options.of, "hlo"))
    text = report(rows, options.target)
    console.print(text, markup=False, soft_wrap=True)
    if options.only == "*":
        stem = results_of(options.of, options.target)
        stem.with_name(stem.name + ".md").write_text(text)
    return int(any(map(_is_wrong, rows.values())) or any(map(compare.is_loss, rows.values())))


def _is_wrong(by_part: compare.ByPart) -> bool:
    """Whether ours did not compile, or computes something else than one device."""
    return by_part["spmd"]["status"] != "ok" or by_part["spmd"].get("right") is False


def report(rows: Rows, target: str = CPU) -> str:
    """The comparison as markdown."""
    ratios = [r for by_part in rows.values() if (r := compare.ratio(by_part)) is not None]
    losses = [n for n, by_part in rows.items() if compare.is_loss(by_part)]
    more = [n for n, by_part in rows.items() if compare.more_collectives(by_part)]
    wrong = [n for n, by_part in rows.items() if _is_wrong(by_part)]
    rewritten = [f"{n} ({text})" for n, by_part in rows.items() if (text := compare.rewritten(by_part))]
    lines = [
        f"# More programs on {compiled_for(target)}",
        "",
        "`python -m benchmarks.run_more`: bytes that the busiest device sends per call, read from optimized HLO as in the zoo's "
        "table; in brackets the collectives. Ratio: ours over the better of the others, none counted as 64 bytes.",
        "",
        f"* {len(rows)} programs; ours over the better of Shardy and GSPMD: x {compare.geometric_mean(ratios):.2f} (geometric "
        f"mean of {len(ratios)} that communicate)",
        f"* more bytes than Shardy or GSPMD: {', '.join(losses) or 'none'}",
        f"* more collectives than Shardy without sending less: {', '.join(more) or 'none'}",
        f"* not compiled, or another result than on one device: {', '.join(wrong) or 'none'}",
        f"* collectives that XLA changed: {', '.join(rewritten) or 'none'}",
        "",
        "| program | mesh | ours | Shardy | GSPMD | ratio |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for name, by_part in rows.items():
        mesh = " ".join(f"{a}={n}" for a, n in CASES[name].mesh)
        ratio = compare.ratio(by_part)
        cells = [name, mesh, *(compare.cell(by_part, p) for p in PARTS), f"{ratio:.2f}" if ratio else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="*", help="a shell pattern of names")
    parser.add_argument("--of", default="more", choices=TABLES, help="which programs, default more")
    add_target(parser)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--hlo", default="", help="a folder for the optimized HLO")
    parser.add_argument(
        "--state", default=str(ROOT / "tmp" / f"more-jax{version('jax')}"), help="where rows are kept"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
