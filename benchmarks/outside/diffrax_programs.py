"""diffrax: a batch of adaptive solves, and the gradient of a neural differential equation."""

from __future__ import annotations

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from . import Program

_STARTS = np.random.RandomState(0).rand(16, 2).astype(np.float32) + 0.5


def _solve(field, start, args, steps):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(field),
        diffrax.Tsit5(),
        0.0,
        2.0,
        0.05,
        start,
        args,
        stepsize_controller=steps,
        saveat=diffrax.SaveAt(ts=jnp.linspace(0.0, 2.0, 9)),
    ).ys


def _predators():
    def field(t, y, args):
        return jnp.stack([y[0] * (1.3 - 0.9 * y[1]), y[1] * (0.8 * y[0] - 1.8)])

    adaptive = diffrax.PIDController(rtol=1e-5, atol=1e-6)
    return jax.vmap(lambda y: _solve(field, y, None, adaptive)), (_STARTS,)


def _neural():
    net = eqx.nn.MLP(2, 2, 32, 2, key=jax.random.key(0))
    params, static = eqx.partition(net, eqx.is_array)

    def loss(params, starts):
        field = lambda t, y, params: eqx.combine(params, static)(y)  # noqa: E731
        run = lambda y: _solve(field, y, params, diffrax.ConstantStepSize())  # noqa: E731
        return jnp.square(jax.vmap(run)(starts)).mean()

    return jax.value_and_grad(loss), (params, _STARTS)


PROGRAMS = [
    Program("diffrax adaptive solves", _predators, ("data",), ("data",)),
    Program("diffrax neural ODE gradients", _neural, ("params", "data")),
]
