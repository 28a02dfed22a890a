"""equinox: attention over sequences, and a GRU scanned over time."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from . import Program


def _attention():
    keys = jax.random.split(jax.random.key(0), 2)
    model = (eqx.nn.MultiheadAttention(4, 32, key=keys[0]), eqx.nn.MLP(32, 32, 64, 2, key=keys[1]))
    params, static = eqx.partition(model, eqx.is_array)
    x = np.random.RandomState(0).randn(8, 16, 32).astype(np.float32)

    def loss(params, x):
        attention, mlp = eqx.combine(params, static)
        mixed = jax.vmap(lambda s: attention(s, s, s))(x)
        return jnp.square(jax.vmap(jax.vmap(mlp))(mixed + x)).mean()

    return jax.value_and_grad(loss), (params, x)


def _gru():
    cell = eqx.nn.GRUCell(6, 24, key=jax.random.key(1))
    params, static = eqx.partition(cell, eqx.is_array)
    x = np.random.RandomState(0).randn(8, 12, 6).astype(np.float32)

    def loss(params, x):
        cell = eqx.combine(params, static)

        def run(sequence):
            return jax.lax.scan(lambda h, i: (cell(i, h),) * 2, jnp.zeros(24), sequence)[1]

        return jnp.square(jax.vmap(run)(x)).mean()

    return jax.value_and_grad(loss), (params, x)


PROGRAMS = [
    Program("equinox attention gradients", _attention, ("params", "data")),
    Program("equinox GRU gradients", _gru, ("params", "data")),
]
