"""Dispatch of a small step: `spmd_jit` beside `jax.jit` with the same shardings, called in turn in one process.

    python -m benchmarks.dispatch

Writes `benchmarks/results/dispatch-jax<version>.md`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))

import spmd_compiler as spmd  # noqa: E402

spmd.configure_virtual_cpus(8)

import jax  # noqa: E402
import numpy as np  # noqa: E402

CALLS, ROUNDS = 200, 40


def step(params: dict[str, Any], x: Any) -> dict[str, Any]:
    """Touches many small arrays and sends nothing: what is left is dispatch."""
    return {k: v * 0.5 + x[0, 0] for k, v in params.items()}


def per_call(run: Callable[..., Any], *args: Any) -> float:
    jax.block_until_ready(run(*args))
    start = time.perf_counter()
    out = None
    for _ in range(CALLS):
        out = run(*args)
    seconds = time.perf_counter() - start
    jax.block_until_ready(out)
    return seconds / CALLS


def main() -> None:
    mesh = spmd.create_mesh([("batch", 4), ("model", 2)])
    lines = ["| arrays | spmd_jit, us | jax.jit, us | ratio |", "|---|---|---|---|"]
    for count in (1, 10, 100):
        row, whole = spmd.Layout(["model", None], mesh), spmd.Layout([None, None], mesh)
        layouts = ({f"p{i}": row for i in range(count)}, whole)
        shardings = jax.tree.map(lambda x: x.to_jax(), layouts)
        ours = spmd.spmd_jit(step, mesh=mesh, in_layouts=layouts, out_layouts=layouts[0])
        theirs = jax.jit(step, in_shardings=shardings, out_shardings=shardings[0])
        params = {k: jax.device_put(np.ones((8, 8), np.float32), s) for k, s in shardings[0].items()}
        x = jax.device_put(np.ones((8, 8), np.float32), shardings[1])
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(ROUNDS):
            for run, seen in zip((ours, theirs), times, strict=True):
                seen.append(per_call(run, params, x))
        a, b = median(times[0]), median(times[1])
        ratio = median(x / y for x, y in zip(*times, strict=True))
        lines.append(f"| {count} | {a * 1e6:.1f} | {b * 1e6:.1f} | {ratio:.2f} |")
    text = "Steady dispatch, medians of rounds taken in turn.\n\n" + "\n".join(lines) + "\n"
    print(text)
    path = ROOT / "benchmarks" / "results" / f"dispatch-jax{version('jax')}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    main()
