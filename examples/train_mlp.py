"""Trains one MLP under three schemes on 8 virtual CPU devices: data, model and spatial parallel.

    python examples/train_mlp.py [--mnist FOLDER] [--epochs N]

The model and its train step are written once, with no sharding in them. A scheme is a mesh and the layouts of
the inputs and parameters. Each scheme goes on where the one before stopped, from a checkpoint that it reads into
its own layouts. Every loss is compared with a run on one device, and the script fails if they differ.

    spmd-dump examples/train_mlp.py:train_step --comms
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import spmd_compiler as spmd

spmd.configure_virtual_cpus(8)

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from image_data import Images, load_digits, load_mnist  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402
from rich.table import Table  # noqa: E402

from spmd_compiler import checkpoint  # noqa: E402

HIDDEN = (700, 500)
CLASSES = 10
BATCH = 64
TOLERANCE = 1e-5
ACCURACY = 0.97

optimizer = optax.adam(1e-3)
State = dict[str, Any]  # "params" and "adam"


# ---------------------------------------------------------------------------------------------- the program
def init_state(features: int) -> State:
    widths = (features, *HIDDEN, CLASSES)
    keys = jax.random.split(jax.random.key(0), len(widths) - 1)
    params = {}
    for i, (n, m, key) in enumerate(zip(widths, widths[1:], keys, strict=False), 1):
        params[f"w{i}"] = jax.random.normal(key, (n, m)) * (2 / n) ** 0.5
        params[f"b{i}"] = jnp.zeros(m)
    return {"params": params, "adam": optimizer.init(params)}


def logits(params: dict[str, jax.Array], x: jax.Array) -> jax.Array:
    x = jax.nn.relu(x @ params["w1"] + params["b1"])
    x = jax.nn.relu(x @ params["w2"] + params["b2"])
    return x @ params["w3"] + params["b3"]


def step(state: State, x: jax.Array, y: jax.Array) -> tuple[State, jax.Array]:
    """One step of Adam on a batch: the new state, and the loss."""

    def loss(params: dict[str, jax.Array]) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(logits(params, x), y).mean()

    value, grads = jax.value_and_grad(loss)(state["params"])
    updates, adam = optimizer.update(grads, state["adam"], state["params"])
    return {"params": optax.apply_updates(state["params"], updates), "adam": adam}, value


# ---------------------------------------------------------------------------------------------- the schemes
@dataclass(frozen=True)
class Scheme:
    """A mesh and layouts. `features`, `hidden`: the mesh axes of the input and of the first hidden layer."""

    name: str
    mesh: spmd.Mesh
    features: str | None = None
    hidden: str | None = None

    def layout(self, *specs: str | None) -> spmd.Layout:
        return spmd.Layout(specs, self.mesh)

    @property
    def params(self) -> dict[str, spmd.Layout]:
        layout = self.layout
        return {
            "w1": layout(self.features, self.hidden),
            "b1": layout(self.hidden),
            "w2": layout(self.hidden, None),
            "b2": layout(None),
            "w3": layout(None, None),
            "b3": layout(None),
        }

    @property
    def state(self) -> State:
        """Adam's moments lie as their parameters."""
        abstract = jax.eval_shape(lambda: init_state(64))["adam"]
        adam = optax.tree_utils.tree_map_params(
            optimizer, lambda _, p: p, abstract, self.params, transform_non_params=lambda _: self.layout()
        )
        return {"params": self.params, "adam": adam}

    @property
    def batch(self) -> tuple[spmd.Layout, spmd.Layout]:
        return self.layout("batch", self.features), self.layout("batch")

    def train_step(self) -> Any:
        return spmd.spmd_jit(
            step,
            mesh=self.mesh,
            in_layouts=(self.state, *self.batch),
            out_layouts=(self.state, None),
            donate_argnums=0,
        )

    def jax_step(self) -> Any:
        """The same under `jax.jit`, with the same shardings."""

        def shardings(layouts: Any) -> Any:
            return jax.tree.map(lambda layout: layout.to_jax(), layouts)

        state = shardings(self.state)
        batch = shardings(self.batch)
        return jax.jit(step, in_shardings=(state, *batch), out_shardings=(state, None), donate_argnums=0)

    def predict(self) -> Any:
        layouts = (self.params, self.batch[0])
        return spmd.spmd_jit(logits, mesh=self.mesh, in_layouts=layouts, out_layouts=self.layout(None, None))


SCHEMES = (
    Scheme("data parallel", spmd.create_mesh([("batch", 8)])),
    Scheme("model parallel", spmd.create_mesh([("batch", 4), ("model", 2)]), hidden="model"),
    Scheme(
        "spatial parallel",
        spmd.create_mesh([("batch", 2), ("feature", 2), ("model", 2)]),
        features="feature",
        hidden="model",
    ),
)

train_step = SCHEMES[1].train_step()


def train_step_args() -> tuple[Any, ...]:
    """What spmd-dump compiles `train_step` for."""
    x = jax.ShapeDtypeStruct((BATCH, 64), jnp.float32)
    return jax.eval_shape(lambda: init_state(64)), x, jax.ShapeDtypeStruct((BATCH,), jnp.int32)


# ---------------------------------------------------------------------------------------------- training
def batches(data: Images, epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    order = np.random.default_rng(epoch).permutation(len(data.y))
    for i in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[i : i + BATCH]
        yield data.x[chosen], data.y[chosen]


def train(run: Any, state: State, data: Images, epochs: range, tick: Any) -> tuple[State, list[float]]:
    losses = []
    for epoch in epochs:
        for x, y in batches(data, epoch):
            state, loss = run(state, x, y)
            losses.append(loss)
            tick()
    return state, [float(x) for x in losses]


def accuracy(scheme: Scheme, state: State, data: Images) -> float:
    count = len(data.test_y) // 8 * 8
    found = scheme.predict()(state["params"], data.test_x[:count])
    return float((np.asarray(found).argmax(1) == data.test_y[:count]).mean())


def step_times(scheme: Scheme, state: State, data: Images, rounds: int = 25) -> tuple[float, float]:
    """Milliseconds of a step, ours and `jax.jit`'s, taken in turn."""
    x, y = (
        jax.device_put(a, layout.to_jax())
        for a, layout in zip(next(batches(data, 0)), scheme.batch, strict=True)
    )
    runs = (scheme.train_step(), scheme.jax_step())
    states = [jax.tree.map(jnp.copy, state) for _ in runs]
    times: list[list[float]] = [[], []]
    for i in range(rounds):
        for k, run in enumerate(runs):
            start = time.perf_counter()
            states[k], loss = run(states[k], x, y)
            jax.block_until_ready((states[k], loss))
            if i >= 3:
                times[k].append((time.perf_counter() - start) * 1e3)
    return median(times[0]), median(times[1])


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Trains an MLP under three schemes on 8 virtual CPU devices."
    )
    parser.add_argument("--mnist", metavar="FOLDER", help="train on MNIST, from its files in this folder")
    parser.add_argument("--epochs", type=int, default=8, help="per scheme")
    options = parser.parse_args()
    data = load_mnist(options.mnist) if options.mnist else load_digits()
    console = Console()
    widths = "-".join(map(str, (data.features, *HIDDEN, CLASSES)))
    console.print(
        f"{len(data.y)} images, an MLP {widths} with Adam, {options.epochs} epochs under each scheme"
    )
    table = Table(box=None, pad_edge=False)
    for i, title in enumerate(("scheme", "collectives", "bytes", "ms", "jit ms", "accuracy", "loss diff")):
        table.add_column(title, justify="left" if i < 2 else "right", no_wrap=True)
    failures = []
    state = init_state(data.features)
    alone = init_state(data.features)
    one_device = jax.jit(step)
    per_scheme = options.epochs * (len(data.y) // BATCH)
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        for number, scheme in enumerate(SCHEMES):
            bar = progress.add_task(scheme.name, total=2 * per_scheme)

            def tick(bar: Any = bar) -> None:
                progress.advance(bar)

            epochs = range(number * options.epochs, (number + 1) * options.epochs)
            run = scheme.train_step()
            if number == 0:
                state = jax.tree.map(
                    lambda a, layout: jax.device_put(a, layout.to_jax()), state, scheme.state
                )
            else:
                state = checkpoint.restore(Path(folder) / str(number), state, scheme.state)
            state, losses = train(run, state, data, epochs, tick)
            alone, wanted = train(one_device, alone, data, epochs, tick)
            checkpoint.save(Path(folder) / str(number + 1), state)
            difference = max(abs(a - b) for a, b in zip(losses, wanted, strict=True))
            right = accuracy(scheme, state, data)
            if not difference <= TOLERANCE:
                failures.append(f"{scheme.name}: losses differ from one device by {difference:.1e}")
            if right < ACCURACY:
                failures.append(f"{scheme.name}: test accuracy {right:.1%} is below {ACCURACY:.0%}")
            ours, theirs = step_times(scheme, state, data)
            lowered = run.lower(state, *next(batches(data, 0)))
            kinds = Counter(c.kind.replace("_", "-") for c in lowered.collectives())
            table.add_row(
                "\n".join((scheme.name, *(f"  {a}={n}" for a, n in scheme.mesh.axes))),
                "\n".join(f"{n} {kind}" for kind, n in sorted(kinds.items())),
                f"{lowered.comm_bytes():,.0f}",
                f"{ours:.2f}",
                f"{theirs:.2f}",
                f"{right:.2%}",
                f"{difference:.1e}",
            )
    console.print(table)
    console.print(
        "bytes: sent by each device per step; jit ms: jax.jit; loss diff: largest, from one device's run"
    )
    for failure in failures:
        console.print(f"[bold red]FAILED[/] {failure}")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
