"""Runs programs of public JAX libraries through the compiler, against `jax.jit` on one device.

    python -m benchmarks.run_outside [library ...] [--match REGEX]

The libraries are the extra `outside`. A complete run writes `benchmarks/results/outside-jax*.md`. Exits with 1 if a program
is refused, or differs.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import spmd_compiler as spmd  # noqa: E402

spmd.configure_virtual_cpus(8)

import jax  # noqa: E402
import numpy as np  # noqa: E402

from benchmarks import outside  # noqa: E402

TOLERANCE = 1e-4


def arrays(tree):
    """The leaves as numpy arrays; keys as their bits."""
    for x in jax.tree.leaves(tree):
        key = hasattr(x, "dtype") and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
        yield np.asarray(jax.random.key_data(x) if key else x)


def difference(expected, actual) -> float:
    """The largest difference of a result, relative to its largest magnitude (1e-4 at least: a gradient that should
    be zero is rounding)."""
    worst = 0.0
    for a, b in zip(arrays(expected), arrays(actual), strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            return float("inf")
        if not a.size:
            continue
        a, b = a.astype(np.float64), b.astype(np.float64)
        if not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return float("inf")
        a, b = np.nan_to_num(a), np.nan_to_num(b)
        worst = max(worst, float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-4)))
    return worst


def rounded(args):
    """The arguments, each number off by some 1e-6 of itself: what that changes is no more than rounding."""
    rng = np.random.RandomState(0)

    def off(x):
        x = np.asarray(x) if not hasattr(x, "dtype") else x
        if jax.dtypes.issubdtype(x.dtype, np.floating):
            return (x * (1 + 1e-6 * rng.uniform(-1, 1, x.shape))).astype(x.dtype)
        return x

    return jax.tree.map(off, args)


def run(program: outside.Program, kind: str, expected, noise: float, fun, args) -> tuple[str, str]:
    """(verdict, row)"""
    mesh = spmd.create_mesh(outside.MESH)
    start = time.perf_counter()
    try:
        step = spmd.spmd_jit(fun, mesh=mesh, in_layouts=outside.in_layouts(kind, program, args))
        lowered = step.lower(*args)
        found = difference(expected, step(*args))
    except Exception as error:
        text = str(error).replace("\n", " ").replace("|", "/")[:160]
        return "refused", f"{type(error).__name__}: {text} | | | | |"
    seconds = time.perf_counter() - start
    told = lowered.explain()
    fallbacks = sorted(set(re.findall(r"fallback: (\S+)", told)))
    verdict = "equal" if found <= max(TOLERANCE, 3 * noise) else "different"
    sent = f"{lowered.comm_bytes():,.0f}"
    return (
        verdict,
        f"{verdict} | {found:.1e} | {noise:.1e} | {sent} | {', '.join(fallbacks) or '-'} | {seconds:.0f}",
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("libraries", nargs="*", default=outside.LIBRARIES)
    parser.add_argument("--match", default="")
    options = parser.parse_args()
    rows, verdicts = [], []
    for library in options.libraries:
        for program in outside.programs(library):
            if not re.search(options.match, program.name):
                continue
            fun, args = program.build()
            jitted = jax.jit(fun)
            expected = jitted(*args)
            noise = difference(expected, jitted(*rounded(args)))
            for kind in program.layouts:
                verdict, row = run(program, kind, expected, noise, fun, args)
                verdicts.append(verdict)
                rows.append(f"| {program.name} | {kind} | {row} |")
                print(rows[-1], flush=True)
    equal = verdicts.count("equal")
    print(f"{equal} of {len(verdicts)} equal")
    if tuple(options.libraries) == outside.LIBRARIES and not options.match:
        _write(rows, f"{equal} of {len(verdicts)} equal to `jax.jit` on one device.")
    return 0 if equal == len(verdicts) else 1


def _write(rows: list[str], summary: str) -> None:
    jax_version = version("jax")
    distributions = {"haiku": "dm-haiku", "ott": "ott-jax"}
    names = ", ".join(f"{n} {version(n)}" for n in (distributions.get(lib, lib) for lib in outside.LIBRARIES))
    mesh = " ".join(f"{name}={size}" for name, size in outside.MESH)
    text = [
        f"# Programs of other libraries on JAX {jax_version}",
        "",
        f"`python -m benchmarks.run_outside`: 8 virtual CPU devices, mesh {mesh}; {names}. Difference: the largest of any "
        "result, relative to its largest magnitude (1e-4 at least); it may be 1e-4, or 3 x the noise: what a change of every "
        "argument by 1e-6 does to `jax.jit`'s own results (deep networks amplify). Bytes: sent per device and call.",
        "",
        summary,
        "",
        "| program | layouts | verdict | difference | noise | bytes | fallbacks | seconds |",
        "|---|---|---|---:|---:|---:|---|---:|",
        *rows,
    ]
    path = ROOT / "benchmarks" / "results" / f"outside-jax{jax_version}.md"
    path.write_text("\n".join(text) + "\n")
    print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    sys.exit(main())
