"""haiku: a ResNet with its running averages, and an LSTM unrolled over time."""

from __future__ import annotations

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np

from . import Program


def _resnet():
    net = hk.transform_with_state(lambda x: hk.nets.ResNet18(10)(x, is_training=True))
    images = np.random.RandomState(0).rand(8, 32, 32, 3).astype(np.float32)
    params, state = net.init(jax.random.key(0), images)

    def step(params, state, images, labels):
        def loss(params):
            logits, new = net.apply(params, state, None, images)
            return -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[:, None], 1).mean(), new

        (value, new), grads = jax.value_and_grad(loss, has_aux=True)(params)
        return value, jax.tree.map(lambda p, g: p - 1e-3 * g, params, grads), new

    return step, (params, state, images, np.arange(8))


def _lstm():
    def run(x):
        core = hk.LSTM(32)
        out, _ = hk.dynamic_unroll(core, x, core.initial_state(x.shape[0]), time_major=False)
        return hk.Linear(5)(out)

    net = hk.without_apply_rng(hk.transform(run))
    x = np.random.RandomState(0).randn(8, 12, 6).astype(np.float32)
    params = net.init(jax.random.key(0), x)
    return jax.value_and_grad(lambda p, x: jnp.square(net.apply(p, x)).mean()), (params, x)


PROGRAMS = [
    Program(
        "haiku ResNet18 train", _resnet, ("params", "other", "data", "data"), ("data", "model", "spatial")
    ),
    Program("haiku LSTM gradients", _lstm, ("params", "data")),
]
