"""Memory and bytes sent of fully sharded training steps under limits of memory, compiled for a target of `benchmarks.targets`.

    python -m benchmarks.memory [--target h100]

Writes `benchmarks/results/memory-*`. A limit is a share of what the program takes by estimate without one.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from benchmarks import hlo
from benchmarks.targets import TARGETS
from benchmarks.workers import ROOT
from benchmarks.zoo_compile import mesh_of, shardings

LAYERS, WIDTH, HIDDEN, BATCH = 8, 512, 2048, 4096
AXES = [("fsdp", 8)]
SHARES = (None, 0.8, 0.6, 0.4)
SPECS = {"down": P(None, None, "fsdp"), "up": P(None, "fsdp")}


def layer(x: jax.Array, p: dict[str, jax.Array]) -> tuple[jax.Array, None]:
    return x + jnp.tanh(x @ p["up"]) @ p["down"], None


def scanned(ps: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    return (jax.lax.scan(jax.checkpoint(layer), x, ps)[0] ** 2).mean()


def unrolled(ps: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    for i in range(LAYERS):
        x, _ = jax.checkpoint(layer)(x, {name: p[i] for name, p in ps.items()})
    return (x**2).mean()


def train(loss: Any) -> Any:
    def step(ps: dict[str, jax.Array], x: jax.Array) -> Any:
        value, grads = jax.value_and_grad(loss)(ps, x)
        return jax.tree.map(lambda p, g: p - 1e-2 * g, ps, grads), value

    return step


def rows(loss: Any, mesh: Mesh) -> Iterator[str]:
    def struct(shape: tuple[int, ...], spec: P) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(mesh, spec))

    down, up = (LAYERS, HIDDEN, WIDTH), (LAYERS, WIDTH, HIDDEN)
    params = {"down": struct(down, SPECS["down"]), "up": struct(up, SPECS["up"])}
    args, ins, outs = (params, struct((BATCH, WIDTH), P("fsdp"))), (SPECS, P("fsdp")), (SPECS, P())
    compiled = jax.jit(train(loss), out_shardings=shardings(outs, mesh)).lower(*args).compile()
    sent = hlo.report(compiled, mesh=AXES)["rs_bytes"] / 1e6
    yield f"| {loss.__name__} | Shardy | | {_temporary(compiled):.1f} | {sent:.1f} |"
    whole = 0.0
    for share in SHARES:
        options = spmd.Options(memory_limit=None if share is None else share * whole)
        step = spmd.spmd_jit(
            train(loss), mesh=spmd.Mesh.from_jax(mesh), in_layouts=ins, out_layouts=outs, options=options
        )
        try:
            lowered = step.lower(*args)
            peak = lowered.memory().peak
        except spmd.UnsupportedError:
            yield f"| {loss.__name__} | {share} | not possible | | |"
            break
        whole = whole or peak
        sent, xla = lowered.comm_bytes() / 1e6, _temporary(lowered.compile())
        yield f"| {loss.__name__} | {share or 'no limit'} | {peak / 1e6:.1f} | {xla:.1f} | {sent:.1f} |"


def _temporary(compiled: Any) -> float:
    return compiled.memory_analysis().temp_size_in_bytes / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--target", default="h100", choices=TARGETS)
    name = parser.parse_args().target
    target = TARGETS[name]
    jax.config.update("jax_platforms", "cpu")
    os.environ.update(target.environment)
    mesh = mesh_of(AXES, target.devices())
    lines = [
        f"# Memory, {target.title}, JAX {version('jax')}",
        "",
        f"Training steps of {LAYERS} rematerialized layers {WIDTH} x {HIDDEN}, batch {BATCH}, all sharded over 8 devices. MB on each device: "
        "live at once by estimate, arguments included; temporary by XLA, workspaces of its kernels included; sent.",
        "",
        "| layers | limit | estimate | XLA | sent |",
        "|---|---|---:|---:|---:|",
        *(line for loss in (scanned, unrolled) for line in rows(loss, mesh)),
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    (ROOT / "benchmarks" / "results" / f"memory-{name}-jax{version('jax')}.md").write_text(text)


if __name__ == "__main__":
    main()
