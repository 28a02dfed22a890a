"""flax.nnx: a convolutional network with batch norm and dropout, and a transformer block with its optimizer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from . import Program


class _Images(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(3, 16, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(16, rngs=rngs)
        self.drop = nnx.Dropout(0.1, rngs=rngs)
        self.out = nnx.Linear(16 * 64, 10, rngs=rngs)

    def __call__(self, x):
        x = nnx.max_pool(nnx.relu(self.norm(self.conv(x))), (2, 2), (2, 2))
        return self.out(self.drop(x.reshape(x.shape[0], -1)))


class _Block(nnx.Module):
    def __init__(self, rngs, width=32):
        self.embed = nnx.Embed(64, width, rngs=rngs)
        self.norm = nnx.LayerNorm(width, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
        self.up, self.down = nnx.Linear(width, 4 * width, rngs=rngs), nnx.Linear(4 * width, width, rngs=rngs)
        self.out = nnx.Linear(width, 64, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        mask = nnx.make_causal_mask(tokens)
        x = x + self.attention(self.norm(x), mask=mask)
        return self.out(x + self.down(nnx.gelu(self.up(self.norm(x)))))


def _train(make, inputs, labels):
    def build():
        graph, params, rest = nnx.split(make(nnx.Rngs(0)), nnx.Param, ...)
        optimizer = optax.sgd(
            0.1, momentum=0.9
        )  # Adam would turn gradients that are only rounding into steps
        moments = optimizer.init(params)

        def loss(params, rest, x, y):
            model = nnx.merge(graph, params, rest, copy=True)
            value = optax.softmax_cross_entropy_with_integer_labels(model(x), y).mean()
            return value, nnx.split(model, nnx.Param, ...)[2]

        def step(params, moments, rest, x, y):
            (value, rest), grads = jax.value_and_grad(loss, has_aux=True)(params, rest, x, y)
            updates, moments = optimizer.update(grads, moments, params)
            return value, optax.apply_updates(params, updates), moments, jax.tree.leaves(rest)

        return step, (params, moments, rest, inputs, labels)

    return build


_RNG = np.random.RandomState(0)
_TOKENS = _RNG.randint(0, 64, (8, 16))
_ROLES = ("params", "params", "other", "data", "data")

PROGRAMS = [
    Program(
        "nnx convolutions train",
        _train(_Images, _RNG.rand(8, 16, 16, 3).astype(np.float32), np.arange(8)),
        _ROLES,
        ("data", "model", "spatial"),
    ),
    Program("nnx transformer train", _train(_Block, _TOKENS, jnp.roll(_TOKENS, -1, 1)), _ROLES),
]
