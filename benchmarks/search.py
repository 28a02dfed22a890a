"""The default search beside the exact one: what programs cost, how far from the optimum, how long it takes.

    python -m benchmarks.search [PATTERN …] [--seconds 60] [--memory]

On the zoo's programs whose names match a pattern (all), and on deep unrolled ones (`deep`: "layers_48" …). Costs are those that
the search minimises, in bytes. Where the exact search finds a program that is cheaper by more than 1 %, also the bytes that
both programs send and their peak of memory. `--memory`: the exact search may not take more memory than the default's program
does. Writes `benchmarks/results/search-jax<version>.md` when no pattern is given.
"""

from __future__ import annotations

import argparse
import fnmatch
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

import jax  # noqa: E402
from rich.console import Console  # noqa: E402

import spmd_compiler as spmd  # noqa: E402
from benchmarks import zoo  # noqa: E402
from benchmarks.deep import DEEP  # noqa: E402
from benchmarks.zoo_compile import mesh_of, partitioned, placed  # noqa: E402
from spmd_compiler import ir  # noqa: E402
from spmd_compiler.ir.graph import Module  # noqa: E402
from spmd_compiler.passes.estimate import peak_bytes  # noqa: E402
from spmd_compiler.passes.manager import Pass, no_cycle_collection  # noqa: E402
from spmd_compiler.passes.pipeline import Options, compile_module  # noqa: E402
from spmd_compiler.passes.propagate import Propagate  # noqa: E402
from spmd_compiler.passes.report import collectives  # noqa: E402
from spmd_compiler.passes.search.engine import Engine  # noqa: E402
from spmd_compiler.passes.search.exact import solve  # noqa: E402

TIMES = 3  # that the default search is timed, of which the least counts: the machines are shared
CHEAPER = 0.01  # from which part of the cost on the programs themselves are compared
HEAD = (
    "program",
    "ops",
    "default",
    "exact",
    "default above exact",
    "gap",
    "default s",
    "exact s",
    "MB sent",
    "MB peak",
)


class Row(NamedTuple):
    name: str
    ops: int
    default: float
    exact: float
    gap: float
    folded: bool
    default_s: float
    exact_s: float
    sent: str = ""
    peak: str = ""

    @property
    def above(self) -> float:
        return self.default / self.exact - 1 if self.exact else 0.0

    def cells(self) -> list[str]:
        gap = f"{100 * self.gap:.2f} %" + (" (layers alike)" if self.folded else "")
        times = f"{self.default_s:.2f}", f"{self.exact_s:.1f}"
        costs = f"{self.default:,.0f}", f"{self.exact:,.0f}", f"{100 * self.above:.2f} %"
        return [self.name, f"{self.ops:,}", *costs, gap, *times, self.sent, self.peak]


def imported(name: str) -> Module:
    """A program of the zoo as it is imported."""
    case = zoo.CASES[name]
    built = case.build()
    mesh = mesh_of(case.mesh, jax.devices())
    step = partitioned(built, mesh)
    with zoo.hints_on(mesh):
        return ir.parse(step.lower(*placed(built, mesh, abstract=True)).as_text("import"))


def weight(module: Module) -> tuple[float, int]:
    """(bytes that a device sends, peak of bytes live) of a per-device program."""
    sent = sum(c.bytes_per_device * c.trips for c in collectives(module))
    return sent, peak_bytes(module.main.body, set())


def _searched(module: Module) -> tuple[float, Engine]:
    """The seconds of the default search, and what it finds."""
    start = time.perf_counter()
    engine, _ = Propagate().assigned(module)
    return time.perf_counter() - start, engine


def measure(name: str, seconds: float, within_memory: bool) -> Row:
    module = DEEP[name]() if name in DEEP else imported(name)
    seen: dict[str, Module] = {}

    def keep(done: Pass, result: Module) -> None:
        seen[done.name] = result

    stages = compile_module(module, callback=keep)
    before = seen["merge_moves"]
    limit = float(weight(stages["optimize"])[1]) if within_memory else None
    with no_cycle_collection():
        searches = [_searched(before) for _ in range(TIMES)]
        default_s, engine = min(searches, key=lambda x: x[0])
        start, default = time.perf_counter(), engine.total()
        outcome = solve(engine, before.main.body, seconds, limit)
        exact_s, exact = time.perf_counter() - start, engine.total()
    ops = sum(1 for _ in before.walk())
    row = Row(name, ops, default, exact, outcome.gap, outcome.folded, default_s, exact_s)
    if row.above <= CHEAPER:
        return row
    options = Options(search="ilp", time_limit=seconds, memory_limit=limit)
    (sent, peak), (sent2, peak2) = (
        weight(stages["optimize"]),
        weight(compile_module(module, options)["optimize"]),
    )
    return row._replace(
        sent=f"{sent / 1e6:.3f} → {sent2 / 1e6:.3f}", peak=f"{peak / 1e6:.2f} → {peak2 / 1e6:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--memory", action="store_true")
    options = parser.parse_args()
    names = [*zoo.names(options.patterns or None)]
    names += [n for n in DEEP if any(fnmatch.fnmatch(n, p) for p in options.patterns or "*")]
    console, rows = Console(width=200), list[Row]()
    for name in names:
        rows.append(measure(name, options.seconds, options.memory))
        console.print("  ".join(rows[-1].cells()), highlight=False, markup=False)
    if options.patterns:
        return
    table = ["| " + " | ".join(HEAD) + " |", "|---" * len(HEAD) + "|"]
    table += ["| " + " | ".join(row.cells()) + " |" for row in rows]
    dear = [row.name for row in rows if row.above > 0.05]
    closed = sum(row.gap < 1e-3 for row in rows)
    notes = [
        f"{closed} of {len(rows)} programs within 0.1 % of the optimum; {options.seconds:.0f} s each at most.",
        f"More than 5 % above the exact search's program: {', '.join(dear) or 'none'}.",
    ]
    path = ROOT / "benchmarks" / "results" / f"search-jax{version('jax')}.md"
    path.write_text((__doc__ or "").split("\n\n")[0] + "\n\n" + "\n".join([*table, "", *notes]) + "\n")


if __name__ == "__main__":
    spmd.configure_virtual_cpus(8)
    main()
