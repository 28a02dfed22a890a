"""Recommenders, graphs, reinforcement: what is looked up and added to, and models that follow another."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, ids, sgd_step, xent
from benchmarks.zoo.mlp import mlp, mlp_params

from .registry import program

D8, M8 = [("data", 8)], [("model", 8)]
DM, D2M4 = [("data", 4), ("model", 2)], [("data", 2), ("model", 4)]


# ---- embeddings
def skipgram(tables, centre, context, negative):
    """word2vec with negative samples: rows of two tables, and their gradients added in."""

    def loss(tables, centre, context, negative):
        c, o, n = tables[0][centre], tables[1][context], tables[1][negative]
        return -(
            jax.nn.log_sigmoid((c * o).sum(-1)) + jax.nn.log_sigmoid(-jnp.einsum("bd,bnd->bn", c, n)).sum(-1)
        ).mean()

    return sgd_step(loss)(tables, centre, context, negative)


def _skipgram_args(r):
    return (
        [W(r, 4096, 64), W(r, 4096, 64)],
        ids(r, 512, hi=4096),
        ids(r, 512, hi=4096),
        ids(r, 512, 5, hi=4096),
    )


program("skipgram_dp", D8, skipgram, _skipgram_args, (P(), P("data"), P("data"), P("data")), (P(), None))
program(
    "skipgram_rows",
    D8,
    skipgram,
    _skipgram_args,
    (P("data"), P("data"), P("data"), P("data")),
    (P("data"), None),
)
program(
    "skipgram_columns",
    D2M4,
    skipgram,
    _skipgram_args,
    (P(None, "model"), P("data"), P("data"), P("data")),
    (P(None, "model"), None),
)


def factors(u, v, rows, columns, rating):
    """Matrix factorisation by stochastic gradients."""

    def loss(uv, rows, columns, rating):
        return ((jnp.sum(uv[0][rows] * uv[1][columns], -1) - rating) ** 2).mean()

    return sgd_step(loss)((u, v), rows, columns, rating)


program(
    "factors_users",
    D8,
    factors,
    lambda r: (W(r, 2048, 32), W(r, 1024, 32), ids(r, 1024, hi=2048), ids(r, 1024), W(r, 1024)),
    (P("data"), P(), P("data"), P("data"), P("data")),
    ((P("data"), P()), None),
)


def fm(w, v, x):
    """Factorisation machine."""
    s = x @ v
    return x @ w + 0.5 * (s * s - (x * x) @ (v * v)).sum(-1)


program(
    "factorisation_machine",
    D8,
    fm,
    lambda r: (W(r, 1024), W(r, 1024, 64), W(r, 512, 1024)),
    (P("data"), P("data"), P(None, "data")),
)


def cross(ps, x):
    """Deep and cross network: x0 * (W x + b) + x."""
    h = x
    for w, b in ps:
        h = x * (h @ w + b) + h
    return h


program(
    "cross_network_tp",
    DM,
    sgd_step(lambda ps, x, y: ((cross(ps, x) - y) ** 2).mean()),
    lambda r: ([(W(r, 256, 256), W(r, 256)) for _ in range(3)], W(r, 512, 256), W(r, 512, 256)),
    ([(P(None, "model"), P("model"))] * 3, P("data"), P("data")),
    ([(P(None, "model"), P("model"))] * 3, None),
)


def two_towers(ps, user, item):
    def loss(ps, user, item):
        a, b = mlp(ps[0], user), mlp(ps[1], item)
        return xent(a @ b.T, jnp.arange(len(a)))

    return sgd_step(loss)(ps, user, item)


program(
    "two_towers_dp",
    D8,
    two_towers,
    lambda r: ([mlp_params(r, [128, 256, 64]), mlp_params(r, [64, 256, 64])], W(r, 512, 128), W(r, 512, 64)),
    (P(), P("data"), P("data")),
    (P(), None),
)


# ---- graphs
def gat(w, a, x, senders, receivers):
    h = x @ w
    e = jax.nn.leaky_relu((h @ a[0])[senders] + (h @ a[1])[receivers])
    n = len(x)
    e = jnp.exp(e - jax.ops.segment_max(e, receivers, n)[receivers])
    return jax.ops.segment_sum(e[:, None] * h[senders], receivers, n) / (
        jax.ops.segment_sum(e, receivers, n)[:, None] + 1e-6
    )


def _gat_args(r):
    return W(r, 128, 64), W(r, 2, 64), W(r, 1024, 128), ids(r, 8192), ids(r, 8192)


program("gat_edges", D8, gat, _gat_args, (P(), P(), P(), P("data"), P("data")))
program("gat_nodes", D8, gat, _gat_args, (P(), P(), P("data"), P("data"), P("data")), P("data"))
program(
    "gat_features", M8, gat, _gat_args, (P(None, "model"), P(None, "model"), P(), P(), P()), P(None, "model")
)


def translate(e, r, h, rel, t, n):
    """TransE: margins between true and corrupted triples."""

    def loss(er, h, rel, t, n):
        def d(h, t):
            return jnp.abs(er[0][h] + er[1][rel] - er[0][t]).sum(-1)

        return jax.nn.relu(1 + d(h, t) - d(h, n)).mean()

    return sgd_step(loss)((e, r), h, rel, t, n)


program(
    "transe_rows",
    D2M4,
    translate,
    lambda r: (
        W(r, 4096, 64),
        W(r, 64, 64),
        ids(r, 512, hi=4096),
        ids(r, 512, hi=64),
        ids(r, 512, hi=4096),
        ids(r, 512, hi=4096),
    ),
    (P("model"), P(), P("data"), P("data"), P("data"), P("data")),
    ((P("model"), P()), None),
)


def point_net(ps, x):
    h = mlp(ps[0], x)
    return mlp(ps[1], h.max(1))


program(
    "point_net_points",
    DM,
    sgd_step(lambda ps, x, y: ((point_net(ps, x) - y) ** 2).mean()),
    lambda r: ([mlp_params(r, [3, 64, 256]), mlp_params(r, [256, 128, 10])], W(r, 32, 128, 3), W(r, 32, 10)),
    (P(), P("data", "model"), P("data")),
    (P(), None),
)


# ---- reinforcement, and models that follow another
def dqn(ps, target, s, a, r, s2):
    def loss(ps):
        q = jnp.take_along_axis(mlp(ps, s), a[:, None], 1)[:, 0]
        return ((r + 0.99 * mlp(target, s2).max(1) - q) ** 2).mean()

    value, g = jax.value_and_grad(loss)(ps)
    ps = jax.tree.map(lambda p, g: p - 1e-2 * g, ps, g)
    return ps, jax.tree.map(lambda t, p: 0.99 * t + 0.01 * p, target, ps), value


program(
    "dqn_dp",
    D8,
    dqn,
    lambda r: (
        mlp_params(r, [64, 256, 18]),
        mlp_params(r, [64, 256, 18]),
        W(r, 512, 64),
        ids(r, 512, hi=18),
        W(r, 512),
        W(r, 512, 64),
    ),
    (P(), P(), *[P("data")] * 4),
    (P(), P(), None),
)


def replay(buffer, rows, at, pick):
    """New rows are written into a ring, a batch is drawn from it."""
    buffer = lax.dynamic_update_slice(buffer, rows, (at, 0))
    return buffer, buffer[pick]


def _replay_args(r):
    return W(r, 4096, 128), W(r, 64, 128), np.int32(1000), ids(r, 256, hi=4096)


program(
    "replay_rows",
    D8,
    replay,
    _replay_args,
    (P("data"), P("data"), P(), P("data")),
    (P("data"), P("data")),
)
program(
    "replay_columns",
    D8,
    replay,
    _replay_args,
    (P(None, "data"), P("data"), P(), P("data")),
    (P(None, "data"), P("data")),
)


def moco(ps, key, queue, x, x2, at):
    """Contrast with a queue of keys of the slow network, which the new keys enter."""

    def loss(ps, k):
        q = mlp(ps, x)
        q = q / jnp.linalg.norm(q, axis=1, keepdims=True)
        return xent(
            jnp.concatenate([(q * k).sum(1, keepdims=True), q @ queue.T], 1) / 0.1,
            jnp.zeros(len(q), jnp.int32),
        )

    k = mlp(key, x2)
    k = k / jnp.linalg.norm(k, axis=1, keepdims=True)
    g = jax.grad(loss)(ps, k)
    ps = jax.tree.map(lambda p, g: p - 1e-2 * g, ps, g)
    return (
        ps,
        jax.tree.map(lambda a, b: 0.99 * a + 0.01 * b, key, ps),
        lax.dynamic_update_slice(queue, k, (at, 0)),
    )


def _moco_args(r):
    return (
        mlp_params(r, [128, 256, 64]),
        mlp_params(r, [128, 256, 64]),
        W(r, 2048, 64),
        W(r, 256, 128),
        W(r, 256, 128),
        np.int32(512),
    )


program("moco_dp", D8, moco, _moco_args, (P(), P(), P(), P("data"), P("data"), P()), (P(), P(), P()))
program(
    "moco_queue",
    D8,
    moco,
    _moco_args,
    (P(), P(), P("data"), P("data"), P("data"), P()),
    (P(), P(), P("data")),
)
