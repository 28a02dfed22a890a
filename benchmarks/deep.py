"""Deep unrolled programs, in IR: transformers, LSTMs and convolutions whose parts repeat each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from benchmarks import passes
from benchmarks.zoo.common import sgd_step
from benchmarks.zoo.rnn import lstm
from spmd_compiler.ir.graph import Module

Program = tuple[Callable[..., Any], Sequence[Any], Any]  # a function, its arguments, their layouts


def layers(depth: int, sizes: dict[str, int], data: str | None = None) -> Module:
    """A train step of a transformer with Adam, its parameters over "model", and over `data` if that is given."""
    return passes.imported(*passes.train_step(depth, data), spmd.create_mesh(sizes, abstract=True))


def recurrent(steps: int, model: str | None, unroll: bool = True) -> Program:
    """A train step of an LSTM, its batch over "data", and its gates over `model`."""
    batch, inputs, hidden = 64, 128, 256
    shapes = {"wx": (inputs, 4 * hidden), "wh": (hidden, 4 * hidden), "b": (4 * hidden,)}
    specs = {"wx": P(None, model), "wh": P(None, model), "b": P(model)}

    def loss(p: Any, xs: jax.Array, y: jax.Array) -> jax.Array:
        start = jnp.zeros((batch, hidden))
        return jnp.mean((lstm(p, xs, start, start, unroll=steps if unroll else 1) - y) ** 2)

    params = {name: _abstract(*shape) for name, shape in shapes.items()}
    args = params, _abstract(steps, batch, inputs), _abstract(batch, hidden)
    return sgd_step(loss), args, (specs, P(None, "data"), P("data"))


def convolutions(depth: int) -> Program:
    """A train step of a residual network, its batch over "data"."""

    def loss(kernels: Sequence[jax.Array], x: jax.Array) -> jax.Array:
        for kernel in kernels:
            dims = ("NHWC", "HWIO", "NHWC")
            x = x + lax.conv_general_dilated(jax.nn.relu(x), kernel, (1, 1), "SAME", dimension_numbers=dims)
        return jnp.mean(x**2)

    args = [_abstract(3, 3, 32, 32)] * depth, _abstract(32, 16, 16, 32)
    return sgd_step(loss), args, ([P()] * depth, P("data"))


def imported(program: Program, sizes: dict[str, int]) -> Module:
    """A program as it is imported."""
    function, args, specs = program
    step = spmd.spmd_jit(function, mesh=spmd.create_mesh(sizes, abstract=True), in_layouts=specs)
    return spmd.ir.parse(step.lower(*args).as_text("import"))


def _abstract(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.float32)


DEEP: dict[str, Callable[[], Module]] = {
    "layers_48": lambda: layers(48, {"data": 4, "model": 2}),
    "layers_2d_24": lambda: layers(24, {"data": 2, "model": 4}, "data"),
    "lstm_dp_64": lambda: imported(recurrent(64, None), {"data": 8}),
    "lstm_tp_64": lambda: imported(recurrent(64, "model"), {"data": 2, "model": 4}),
    "convolutions_40": lambda: imported(convolutions(40), {"data": 8}),
}
