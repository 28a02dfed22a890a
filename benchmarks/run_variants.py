"""Generated variants of every zoo program (other shapes, meshes and layouts), or of every one of `more`, through this compiler,
Shardy and GSPMD: what each sends, read from optimized HLO, and every variant where XLA's partitioners send less.

    python -m benchmarks.run_variants [--of more] [--limit 819] [--seed 0] [--jobs N] [--only 'lm_*' | '*~six*']
        [--hlo DIR] [--target h100]

Rows are kept under tmp/, those of XLA's partitioners until the variants change and ours until the compiler does: a run
that was cut off goes on, and one after a change of the compiler compiles only ours. With a target other than CPUs the
variants on 8 devices are compiled for chips that need not be there, as `aot` does.
"""

from __future__ import annotations

import argparse
import fnmatch
import math
import sys
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from benchmarks import compare, variants
from benchmarks.more import OF
from benchmarks.more.registry import MANUAL
from benchmarks.targets import CPU, add_target, compiled_for, results_of, sweep_of
from benchmarks.workers import PARTS, ROOT, Rows, run_beside_rivals

CHIPS = 8  # of a target
MORE = 1.1  # times Shardy's work or memory, from which on it is told
FULL = 500  # variants from which on the results are written
# Machine code is hardly run: it need not be fast. The collectives are settled before it is made.
QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
OLDER = " --xla_cpu_use_fusion_emitters=false"  # XLA of newer JAX ends at a flag that it no longer has


def main() -> int:
    """Runs what the command line asks for; 1 if a program of ours fails, is wrong or sends more."""
    options = _options()
    target, seed = options.target, options.seed
    every = _every(options)
    names = _on_chips(every, options)
    console = Console() if sys.stdout.isatty() else Console(width=200)
    arguments = ["--seed", str(seed)]
    if options.hlo:
        arguments += ["--hlo", str(Path(options.hlo).absolute())]
    state = str(Path(options.state) / f"{'seed' if options.of == 'zoo' else options.of}{seed}")
    sweep = sweep_of(target, "benchmarks.variants.worker", state, arguments)
    if target == CPU:
        flags = QUICK + (OLDER if version("jax").startswith("0.10.") else "")
        sweep = replace(sweep, environment={"XLA_FLAGS": flags})
    made_of = dict.fromkeys(("zoo", options.of, "variants", "hlo"))
    rows = run_beside_rivals(sweep, names, options.jobs, console, list(made_of))
    text = report(rows, seed, target, options.of, options.only)
    console.print(text, markup=False, soft_wrap=True)
    if len(every) >= FULL:
        stem = results_of(f"{options.of}-variants", target)
        stem.with_name(stem.name + ".md").write_text(text)
    bad = [
        n
        for n, by_part in rows.items()
        if compare.is_loss(by_part) or by_part["spmd"].get("right", True) is False
    ]
    return int(bool(bad))


def _every(options: argparse.Namespace) -> list[str]:
    """The variants that are asked for."""
    pattern = options.only if "~" in options.only else options.only + "~*"
    cases = [name for name, case in OF[options.of].items() if case.group != MANUAL]
    return fnmatch.filter(variants.names(options.limit, cases), pattern)


def _on_chips(names: list[str], options: argparse.Namespace) -> list[str]:
    """Those on as many devices as there are, unless these are CPUs."""
    if options.target == CPU:
        return names
    meshes = {n: variants.draw(n, options.seed).axes for n in names}
    return [n for n in names if math.prod(size for _, size in meshes[n]) == CHIPS]


def report(rows: Rows, seed: int, target: str = CPU, of: str = "zoo", only: str = "*") -> str:
    """Counts, means per program, and every variant that is lost, wrong or failed, as markdown."""
    ratios = {n: r for n, by_part in rows.items() if (r := compare.ratio(by_part)) is not None}
    ours = [by_part["spmd"] for by_part in rows.values()]
    checked = [row["right"] for row in ours if "right" in row]
    wide = sum("error_vs_float64" in row and row["right"] for row in ours)
    by_float64 = f", {wide} of them by float64: rounding in float32 turns a comparison" if wide else ""
    losses = [n for n, by_part in rows.items() if compare.is_loss(by_part)]
    more = [n for n, by_part in rows.items() if compare.more_collectives(by_part)]
    quick = sum((compare.time_ratio(rows[n]) or 9) < 1 for n in losses)
    work = {n: r for n, by_part in rows.items() if (r := compare.work_ratio(by_part)) is not None}
    memory = [r for by_part in rows.values() if (r := compare.memory_ratio(by_part)) is not None]
    repeated = sorted((n for n, r in work.items() if r > MORE), key=lambda n: -work[n])
    wins = sum(r * compare.SLACK[0] < 1 for r in ratios.values())
    lines = [
        f"# Variants of {'the zoo' if of == 'zoo' else 'more programs'} on {compiled_for(target)}",
        "",
        f"{len(rows)} generated variants (seed {seed}{'' if only == '*' else f', `{only}`'}) of {len(OF[of])} programs: other sizes, meshes of up to three axes "
        "with 2 to 64 devices (`~six`: 6, `~cube`: 2 x 2 x 2, `~many`: 64), other layouts. Bytes that the busiest device sends per call, as in the zoo's table. "
        "Compiled only; some of ours are run and compared with one device.",
        "",
        f"* {sum(row['status'] == 'ok' for row in ours)} compile; {sum(checked)} of {len(checked)} compared are right{by_float64}",
        f"* ours over the better of Shardy and GSPMD: x {compare.geometric_mean(ratios.values()):.2f} (geometric mean of "
        f"{len(ratios)} that communicate)",
        f"* less traffic in {wins}, more in {len(losses)}, of which {quick} take less time by estimate",
        f"* more collectives than Shardy without sending less: {len(more)}",
        f"* memory x {compare.geometric_mean(memory):.2f} Shardy's, above {MORE} in {sum(r > MORE for r in memory)} of {len(memory)}",
        f"* operations of matrix products x {compare.geometric_mean(work.values()):.2f} Shardy's, above {MORE} in {len(repeated)} of "
        f"{len(work)} where they can be counted",
        "",
        "## More traffic",
        "",
        "Time: estimated from matrix products, bytes and messages, over that of the rival that sends least, on the worst of the "
        f"models {', '.join(compare.ACCELERATORS)}. Below 1 the rival repeats work on several devices to send less.",
        "",
        *_head("time"),
        *(
            _line(rows, name)
            for name in sorted(losses, key=lambda n: (n.split("~")[0], -(ratios.get(n) or 99)))
        ),
        "",
        "## More collectives than Shardy, without less traffic",
        "",
        *(_head("time") if more else ["None."]),
        *(_line(rows, name) for name in more),
        "",
        "## More work than Shardy",
        "",
        f"More than {MORE} times the operations of matrix products, to send less.",
        "",
        *(_head("work") if repeated else ["None."]),
        *(_line(rows, name, work[name]) for name in repeated),
        "",
        "## Not right, or not compiled",
        "",
        *(_problems(rows) or ["None."]),
        "",
        "## Ratio by program",
        "",
        "| program | variants | geometric mean | worst |",
        "|---|---:|---:|---:|",
    ]
    for case in OF[of]:
        own = [r for n, r in ratios.items() if n.split("~")[0] == case]
        if own:
            lines.append(f"| {case} | {len(own)} | {compare.geometric_mean(own):.2f} | {max(own):.2f} |")
    return "\n".join(lines) + "\n"


def _head(last: str) -> tuple[str, str]:
    """The head of a table, whose last column is the estimated time or another ratio."""
    return (
        f"| variant | mesh | change | ours | Shardy | GSPMD | ratio | {last} |",
        "|---|---|---|---:|---:|---:|---:|---:|",
    )


def _line(rows: Rows, name: str, last: float | None = None) -> str:
    by_part = rows[name]
    ours, ratios = by_part["spmd"], (compare.ratio(by_part), last or compare.time_ratio(by_part))
    mesh = " ".join(f"{a}={s}" for a, s in ours.get("axes", []))
    cells = [name, mesh, ours.get("what", ""), *(compare.cell(by_part, p) for p in PARTS)]
    return "| " + " | ".join([*cells, *("" if r is None else f"{r:.2f}" for r in ratios)]) + " |"


def _problems(rows: Rows) -> list[str]:
    out = []
    for name, by_part in rows.items():
        for part, row in by_part.items():
            if row["status"] != "ok":
                why = " ".join(row.get("error", "").split())[:200]
                out.append(f"* {name} {part}: {row['status']}: {why}")
            elif row.get("right") is False:
                out.append(f"* {name}: off by {row['error_vs_one_device']:.2g}")
    return out


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--of", default="zoo", choices=OF, help="which programs, default %(default)s")
    parser.add_argument("--limit", type=int, help="variants, default all")
    parser.add_argument("--seed", type=int, default=0)
    add_target(parser)
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", default="*", help="programs or, with ~, variants, as a shell pattern")
    parser.add_argument("--hlo", default="", help="folder for the optimized HLO of what is compiled anew")
    parser.add_argument("--state", default=str(ROOT / "tmp" / f"variants-jax{version('jax')}"))
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
