"""jraph: a graph network, and a graph convolution, with gradients."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jraph
import numpy as np

from . import Program

_RNG = np.random.RandomState(0)
NODES, EDGES, WIDTH = 24, 64, 8
_GRAPH = (
    _RNG.randn(NODES, WIDTH).astype(np.float32),
    _RNG.randn(EDGES, WIDTH).astype(np.float32),
    _RNG.randint(0, NODES, EDGES),
    _RNG.randint(0, NODES, EDGES),
)


def _graph(nodes, edges, senders, receivers):
    counts = np.array([NODES]), np.array([EDGES])
    return jraph.GraphsTuple(nodes, edges, receivers, senders, jnp.zeros((1, WIDTH)), *counts)


def _network():
    params = {
        "edge": _RNG.randn(4 * WIDTH, WIDTH).astype(np.float32) * 0.3,
        "node": _RNG.randn(4 * WIDTH, WIDTH).astype(np.float32) * 0.3,
    }

    def loss(params, nodes, edges, senders, receivers):
        net = jraph.GraphNetwork(
            update_edge_fn=lambda *xs: jnp.tanh(jnp.concatenate(xs, -1) @ params["edge"]),
            update_node_fn=lambda *xs: jnp.tanh(jnp.concatenate(xs, -1) @ params["node"]),
        )
        out = net(net(_graph(nodes, edges, senders, receivers)))
        return jnp.square(out.nodes).mean() + jnp.square(out.edges).mean()

    return jax.value_and_grad(loss), (params, *_GRAPH)


def _convolution():
    def loss(w, nodes, edges, senders, receivers):
        net = jraph.GraphConvolution(lambda n: n @ w, add_self_edges=True)
        return jnp.square(net(_graph(nodes, edges, senders, receivers)).nodes).mean()

    return jax.value_and_grad(loss), (_RNG.randn(WIDTH, WIDTH).astype(np.float32), *_GRAPH)


_ROLES = ("params", "data", "data", "data", "data")
PROGRAMS = [
    Program("jraph graph network gradients", _network, _ROLES),
    Program("jraph graph convolution gradients", _convolution, _ROLES),
]
