"""numpyro: steps of variational inference, and of the no-U-turn sampler."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import AutoNormal

from . import Program

_RNG = np.random.RandomState(0)
_X = _RNG.randn(64, 8).astype(np.float32)
_Y = (_X @ _RNG.randn(8) > 0).astype(np.int32)


def _regression(x, y):
    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(x.shape[1]), 1.0).to_event(1))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def _svi():
    svi = SVI(_regression, AutoNormal(_regression), numpyro.optim.Adam(1e-2), Trace_ELBO(num_particles=4))
    state = svi.init(jax.random.PRNGKey(0), _X, _Y)

    def run(state, x, y):
        return jax.lax.scan(lambda s, _: svi.update(s, x, y), state, None, length=5)

    return run, (state, _X, _Y)


def _nuts():
    kernel = NUTS(_regression, max_tree_depth=4)

    def run(key, x, y):
        state = kernel.init(key, 5, None, (x, y), {})
        state = jax.lax.fori_loop(0, 5, lambda _, s: kernel.sample(s, (x, y), {}), state)
        return state.z, state.num_steps, state.accept_prob

    return run, (jax.random.PRNGKey(1), _X, _Y)


PROGRAMS = [
    Program("numpyro SVI", _svi, ("other", "data", "data"), ("data",)),
    Program("numpyro NUTS", _nuts, ("other", "data", "data"), ("data",)),
]
