"""Many steps with collectives on virtual CPU devices, without waiting for any: must not deadlock.

JAX 0.10.2 does, and aborts, when more programs are in flight than its thread pool has threads; see
`spmd_compiler.configure_virtual_cpus`. Run: `python -m benchmarks.soak [--steps 10000] [--devices 8]`. Writes
`benchmarks/results/soak-jax<version>.md`.
"""

from __future__ import annotations

import argparse
import os
import time
from importlib.metadata import version
from pathlib import Path

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--devices", type=int, default=8)
    options = parser.parse_args()
    spmd.configure_virtual_cpus(options.devices)
    mesh = spmd.create_mesh([("batch", options.devices)])

    @spmd.spmd_jit(mesh=mesh, in_layouts=(P(), P("batch")), out_layouts=P())
    def step(w, x):
        gradient = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)
        return w - 0.1 * gradient

    w = jax.device_put(jnp.ones((32, 32)) / 32, spmd.Layout.replicated(mesh, 2).to_jax())
    x = jax.device_put(
        jnp.ones((8 * options.devices, 32)), spmd.Layout.batch_sharded(mesh, "batch", 2).to_jax()
    )
    (sent,) = step.lower(w, x).collectives()
    lines = [
        f"{options.devices} devices on {os.cpu_count()} cores, {options.steps:,} steps without waiting for any; each step "
        f"has one {sent.kind}.",
        "",
        "| steps | seconds | microseconds a step |",
        "|---|---|---|",
    ]
    for name, chained in (("each from the last", True), ("all from the first", False)):
        start, state = time.perf_counter(), w
        for _ in range(options.steps):
            out = step(state, x)
            state = out if chained else state
        jax.block_until_ready(out)
        seconds = time.perf_counter() - start
        lines.append(f"| {name} | {seconds:.1f} | {seconds / options.steps * 1e6:.0f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    path = Path(__file__).resolve().parent / "results" / f"soak-jax{version('jax')}.md"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    main()
