"""One process of `gpu`: runs programs on the one GPU of this machine, writes a JSON line per result.

Part "alone" is the program on a mesh whose axes all have size 1, compared with `jax.jit` on that GPU. The others are the program of
the first of 8 GPUs: JAX takes 7 for granted that are not there, XLA compiles for all 8, and leaves the sending out when the
program runs (JAX's flag `jax_mock_gpu_topology`). What is timed so is the work of a device, and the memory is what XLA takes
there; results mean nothing, since nothing arrives.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks import memory, overlap, zoo
from benchmarks.more import MORE
from benchmarks.workers import Row, outcome, start_row, work, worker_options
from benchmarks.zoo.registry import hint
from benchmarks.zoo_compile import (
    Axes,
    compile_part,
    judge,
    mesh_of,
    on_one_device,
    partitioned,
    placed,
    warm_up,
)
from benchmarks.zoo_worker import in_turn

ALONE = "alone"
GPUS = 8
MODEL = "h100-nvlink"
ROUNDS, STEPS = 12, 10  # a round is so many steps without waiting between them


def main() -> None:
    options = worker_options(__doc__).parse_args()
    if all(item.endswith(f"={ALONE}") for item in options.work):
        work(options, lambda name, _: run_alone(name))
    else:
        jax.config.update("jax_mock_gpu_topology", f"1x{GPUS}x1")
        warm_up(["spmd", "shardy"], blocks)
        work(options, run_case)


def _struct(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.bfloat16)


def _layer(function: Callable[..., Any]) -> tuple[Axes, zoo.Built]:
    large = overlap.large()["large layer, forward"]
    asks = partial(function, ask=lambda x: hint(x, "data", "model"))
    return [("data", 2), ("model", 4)], zoo.Built(asks, large.args, large.ins)


def _fully_sharded(loss: Callable[..., Any]) -> tuple[Axes, zoo.Built]:
    layers, width, hidden, batch = 8, 2048, 8192, 16384
    params = {"down": _struct(layers, hidden, width), "up": _struct(layers, width, hidden)}
    ins, outs = (memory.SPECS, P("fsdp")), (memory.SPECS, P())
    return memory.AXES, zoo.Built(memory.train(loss), (params, _struct(batch, width)), ins, outs)


LARGE = {  # of the size that is trained; of their arguments only shapes and types are known
    "layer_fwd": partial(_layer, overlap.layer),
    "layer_grad": partial(_layer, overlap.gradients),
    "fsdp_scanned_train": partial(_fully_sharded, memory.scanned),
    "fsdp_unrolled_train": partial(_fully_sharded, memory.unrolled),
}


def program(name: str) -> tuple[Axes, zoo.Built]:
    """Axes of the mesh, and the program."""
    if name in LARGE:
        return LARGE[name]()
    case = (zoo.CASES | MORE)[name]
    return case.mesh, case.build()


def run_alone(name: str) -> Iterator[Row]:
    """A row that says whether the program is right on one device through this compiler."""
    yield start_row(name, ALONE)
    row: Row = {"name": name, "part": ALONE}
    with jax.default_matmul_precision("highest"), outcome(row):  # as on the CPU that it is compared with
        axes, built = program(name)
        axes = [(axis, 1) for axis, _ in axes]
        mesh = mesh_of(axes, jax.devices())
        args = placed(built, mesh)
        judge(row, compile_part(row, axes, built, mesh, args, "spmd")(*args), built, on_one_device(built))
    yield row


def run_case(name: str, parts: list[str]) -> Iterator[Row]:
    """Rows of the program of the first of 8 GPUs, timed in turn."""
    axes, built = program(name)
    mesh = mesh_of(axes, jax.devices())
    args = blocks(built, mesh)
    runnable: dict[str, Callable[[], Any]] = {}
    rows: dict[str, Row] = {}
    for part in parts:
        yield start_row(name, part)
        row = rows[part] = {"name": name, "part": part, "device": jax.local_devices()[0].device_kind}
        jax.clear_caches()
        gc.collect()
        with outcome(row):
            compiled = compile_part(row, axes, built, mesh, args, part)
            if part == "spmd":
                with zoo.hints_on(mesh):
                    lowered = partitioned(built, mesh).lower(*args)
                row["estimate_ms"] = lowered.cost(MODEL).compute_seconds * 1e3
            runnable[part] = partial(compiled, *args)
            jax.block_until_ready(runnable[part]())
    yield start_row(name, "+".join(runnable))
    for part, taken in in_turn(runnable, ROUNDS, STEPS).items():
        rows[part]["step_ms"] = median(taken) * 1e3
    yield from rows.values()


def blocks(built: zoo.Built, mesh: jax.sharding.Mesh) -> tuple:
    """The arguments, of which this process has its devices' blocks; made up where only their types are known."""

    def put(spec: P, tree: Any) -> Any:
        sharding = NamedSharding(mesh, spec)
        return jax.tree.map(
            lambda x: jax.make_array_from_callback(x.shape, sharding, block(x, sharding)), tree
        )

    def block(x: Any, sharding: NamedSharding) -> Callable[[Any], Any]:
        if not isinstance(x, jax.ShapeDtypeStruct):
            return lambda index: np.asarray(x)[index]
        shape, draw = sharding.shard_shape(x.shape), np.random.default_rng(0)
        return lambda _: (0.02 * draw.standard_normal(shape, np.float32)).astype(x.dtype)

    return jax.tree.map(put, built.in_specs, built.args, is_leaf=lambda s: isinstance(s, P))


if __name__ == "__main__":
    main()
