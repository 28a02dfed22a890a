"""Compiles the zoo for accelerators that need not be there, with this compiler, Shardy and GSPMD, and compares what the
optimized HLO sends; a complete run writes `benchmarks/results/aot-*`.

    python -m benchmarks.aot [--targets tpu-v5e,h100] ['lm_*' ...] [--hlo DIR] [--state DIR]

Rows are kept under tmp/: a run that was cut off goes on, and one after a change of the compiler compiles only ours.
The TPU's compiler comes with `pip install spmd_compiler[tpu-aot]`, the GPU's with `[gpu-aot]`.
"""

from __future__ import annotations

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from benchmarks import compare, zoo
from benchmarks.targets import TARGETS, compiled_for, results_of, sweep_of
from benchmarks.workers import PARTS, ROOT, Rows, run_beside_rivals

# Where XLA's partitioners send less because what they compile is wrong.
_NO_INDICES = "XLA gathers the values of the shards' top 8 but not their indices: the second result of its program is a constant 0"
WRONG = {(target, "topk_sharded_dim"): _NO_INDICES for target in TARGETS}


def main() -> int:
    """Runs what the command line asks for; 1 if one of our own programs did not compile."""
    options = _options()
    names = zoo.names(options.patterns)
    console = Console() if sys.stdout.isatty() else Console(width=200)
    failed = False
    for name in options.targets:
        arguments = ["--hlo", str(Path(options.hlo).absolute() / name)] if options.hlo else []
        sweep = sweep_of(name, "benchmarks.aot_worker", options.state, arguments)
        rows = run_beside_rivals(sweep, names, options.jobs, console, ("zoo", "hlo"))
        text = table(rows, name)
        console.print(text, markup=False, soft_wrap=True)
        if not options.patterns:
            stem = results_of("aot", name)
            stem.with_name(stem.name + ".md").write_text(text)
            stem.with_name(stem.name + ".json").write_text(json.dumps(rows, indent=1) + "\n")
        failed |= any(compare.sent(by_part, "spmd") is None for by_part in rows.values())
    return int(failed)


def table(rows: Rows, target: str) -> str:
    """The comparison as markdown."""
    lines = [
        f"# The zoo compiled for {compiled_for(target)}",
        "",
        "Compiled ahead of time, without the chips. A partitioner's cell: bytes that the busiest device sends per call (ring "
        "model, loops multiplied), for Shardy and GSPMD with an all-reduce of which only a slice is used counted as a "
        "reduce-scatter; in brackets the collectives in the optimized HLO. `good`: a hand-made program. Ratio: ours over the "
        "better of the others, none counted as 64 bytes. XLA: what it made of our collectives, where it changed them "
        "(bytes by kind; combining is no change).",
        "",
        "| program | mesh | good | ours | Shardy | GSPMD | ratio | XLA |",
        "|---|---|---:|---:|---:|---:|---:|---|",
    ]
    for name, by_part in rows.items():
        case = zoo.CASES[name]
        ratio = compare.ratio(by_part)
        cells = [name, " ".join(f"{a}={s}" for a, s in case.mesh), f"{case.build().good:,.0f}"]
        cells += [compare.cell(by_part, part) for part in PARTS]
        cells += ["" if ratio is None else f"{ratio:.2f}", compare.rewritten(by_part)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", *(f"* {line}" for line in summary(rows, target))]) + "\n"


def summary(rows: Rows, target: str) -> list[str]:
    """Totals, and the programs on which XLA's partitioners send less."""
    ratios = [r for by_part in rows.values() if (r := compare.ratio(by_part)) is not None]
    near = 0
    for name, by_part in rows.items():
        ours, good = compare.sent(by_part, "spmd"), zoo.CASES[name].build().good
        near += ours is not None and ours <= 1.05 * good + compare.SLACK[1]
    losses = [n for n, by_part in rows.items() if compare.is_loss(by_part)]
    more = [n for n, by_part in rows.items() if compare.more_collectives(by_part)]
    return [
        f"ours over the better of Shardy and GSPMD: x {compare.geometric_mean(ratios):.2f} (geometric mean of "
        f"{len(ratios)} programs that communicate)",
        f"at most 1.05 x good: {near} of {len(rows)}",
        f"more bytes than Shardy or GSPMD: {', '.join(losses) or 'none'}",
        f"more collectives than Shardy without sending less: {', '.join(more) or 'none'}",
        *(f"{n}: {WRONG[target, n]}" for n in losses if (target, n) in WRONG),
        *(f"{n}: XLA rewrites {text}" for n, p in rows.items() if (text := compare.rewritten(p))),
    ]


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("patterns", nargs="*", help="programs, as shell patterns; all without")
    parser.add_argument("--targets", default=",".join(TARGETS), help="default %(default)s")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--hlo", default="", help="folder for the optimized HLO")
    parser.add_argument(
        "--state", default=str(ROOT / "tmp" / f"aot-jax{version('jax')}"), help="where rows are kept"
    )
    options = parser.parse_args()
    options.targets = options.targets.split(",")
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"--targets: {', '.join(sorted(unknown))} is not among {', '.join(TARGETS)}")
    if not zoo.names(options.patterns):
        parser.error(f"no program matches {' '.join(options.patterns)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
