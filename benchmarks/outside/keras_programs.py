"""Keras applications, forward and one step of training by gradient descent."""

from __future__ import annotations

import os

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax
import jax.numpy as jnp
import keras
import numpy as np

from . import Program

MODELS = ("ResNet50", "MobileNetV3Small", "EfficientNetB0", "ConvNeXtTiny")
CLASSES, BATCH, SIDE = 10, 8, 64


def _model(name):
    keras.utils.set_random_seed(0)
    model = getattr(keras.applications, name)(weights=None, input_shape=(SIDE, SIDE, 3), classes=CLASSES)
    values = [np.asarray(v) for v in model.trainable_variables]
    state = [np.asarray(v) for v in model.non_trainable_variables]
    images = np.random.RandomState(0).rand(BATCH, SIDE, SIDE, 3).astype(np.float32) * 2 - 1
    return model, values, state, images


def _forward(name):
    def build():
        model, values, state, images = _model(name)

        def forward(values, state, images):
            return model.stateless_call(values, state, images, training=False)[0]

        return forward, (values, state, images)

    return build


def _train(name):
    def build():
        model, values, state, images = _model(name)
        labels = np.arange(BATCH) % CLASSES

        def loss(values, state, images, labels):
            out, state = model.stateless_call(values, state, images, training=True)
            picked = jnp.take_along_axis(jnp.log(out + 1e-7), labels[:, None], 1)
            return -picked.mean(), state

        def step(values, state, images, labels):
            (value, state), grads = jax.value_and_grad(loss, has_aux=True)(values, state, images, labels)
            return value, jax.tree.map(lambda v, g: v - 1e-3 * g, values, grads), state

        return step, (values, state, images, labels)

    return build


PROGRAMS = [
    program
    for name in MODELS
    for program in (
        Program(f"{name} forward", _forward(name), ("params", "other", "data"), ("data", "model", "spatial")),
        Program(
            f"{name} train",
            _train(name),
            ("params", "other", "data", "data"),
            ("data", "model", "spatial"),
        ),
    )
]
