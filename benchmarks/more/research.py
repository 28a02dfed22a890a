"""Training steps from papers: gradients of gradients and of each example, solvers within, optimizers that keep blocks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, ids, sgd_step
from benchmarks.zoo.mlp import mlp, mlp_params, mse

from .registry import program

D8, M8, F8 = [("data", 8)], [("model", 8)], [("fsdp", 8)]
D2M4 = [("data", 2), ("model", 4)]
AB = [("a", 2), ("b", 4)]


def _mlp_args(r, rows=256, widths=(128, 256, 128)):
    return mlp_params(r, list(widths)), W(r, rows, widths[0], scale=1), W(r, rows, widths[-1], scale=1)


def private(ps, x, y):
    """DP-SGD: each example's gradient is clipped by itself."""
    grads = jax.vmap(lambda x, y: jax.grad(mse(mlp))(ps, x[None], y[None]))(x, y)
    norms = jnp.sqrt(sum((g * g).sum(tuple(range(1, g.ndim))) for g in jax.tree.leaves(grads)))
    scale = jnp.minimum(1.0, 1.0 / (norms + 1e-6))
    return jax.tree.map(lambda p, g: p - 0.1 * jnp.tensordot(scale, g, 1) / len(x), ps, grads)


def hessian_step(ps, x, y):
    """Three steps of conjugate gradients on Hessian-vector products."""
    grad = jax.grad(lambda ps: mse(mlp)(ps, x, y))
    g = grad(ps)
    step, _ = jax.scipy.sparse.linalg.cg(
        lambda v: jax.tree.map(lambda h, v: h + 0.1 * v, jax.jvp(grad, (ps,), (v,))[1], v), g, maxiter=3
    )
    return jax.tree.map(lambda p, s: p - s, ps, step)


def meta_step(ps, x, y, x2, y2):
    """MAML: two steps on each task, and the gradient through them."""

    def loss(ps):
        def task(x, y, x2, y2):
            inner = ps
            for _ in range(2):
                inner = jax.tree.map(lambda p, g: p - 0.01 * g, inner, jax.grad(mse(mlp))(inner, x, y))
            return mse(mlp)(inner, x2, y2)

        return jax.vmap(task)(x, y, x2, y2).mean()

    return jax.tree.map(lambda p, g: p - 0.01 * g, ps, jax.grad(loss)(ps))


def ensemble(ps, x, y):
    return jax.vmap(sgd_step(mse(mlp)), (0, None, None))(ps, x, y)


def neural_ode(ps, x, y):
    def flow(ps, x):
        def step(x, _):
            k1 = mlp(ps, x)
            k2 = mlp(ps, x + 0.05 * k1)
            return x + 0.1 * k2, None

        return lax.scan(step, x, None, 6)[0]

    return sgd_step(lambda ps, x, y: ((flow(ps, x) - y) ** 2).mean())(ps, x, y)


def equilibrium(w, x):
    def more(c):
        z, _, n = c
        new = jnp.tanh(z @ w + x)
        return new, jnp.abs(new - z).max(), n + 1

    return lax.while_loop(lambda c: (c[1] > 1e-4) & (c[2] < 12), more, (jnp.zeros_like(x), jnp.inf, 0))[0]


def shampoo(p, left, right, g):
    left, right = left + g @ g.T, right + g.T @ g

    def root(m):
        w, v = jnp.linalg.eigh(m + 1e-3 * jnp.eye(len(m)))
        return (v * w**-0.25) @ v.T

    return p - 0.1 * root(left) @ g @ root(right), left, right


def adam8bit(p, q, scale, g):
    """Moments of eight bits, in blocks with a scale each."""
    m = 0.9 * (q.astype(jnp.float32) * scale[:, None]).reshape(p.shape) + 0.1 * g
    blocks = m.reshape(-1, 256)
    scale = jnp.abs(blocks).max(1) / 127
    return p - 0.01 * m, jnp.round(blocks / scale[:, None]).astype(jnp.int8), scale


def barlow(ps, x, y):
    def loss(ps, x, y):
        a, b = (jax.nn.relu(v @ ps[0]) @ ps[1] for v in (x, y))
        a, b = ((v - v.mean(0)) / (v.std(0) + 1e-5) for v in (a, b))
        c = a.T @ b / len(a)
        return ((jnp.diag(c) - 1) ** 2).sum() + 0.01 * (c * c).sum()

    return sgd_step(loss)(ps, x, y)


def siglip(ps, x, y):
    def loss(ps, x, y):
        a, b = (v / jnp.linalg.norm(v, axis=1, keepdims=True) for v in (x @ ps[0], y @ ps[1]))
        return -jax.nn.log_sigmoid((2 * jnp.eye(len(a)) - 1) * (10 * a @ b.T - 10)).sum() / len(a)

    return sgd_step(loss)(ps, x, y)


def bf16_compute(ps, x, y):
    def loss(ps, x, y):
        for w in ps:
            x = jax.nn.gelu(x @ w.astype(jnp.bfloat16))
        return ((x.astype(jnp.float32) - y) ** 2).mean()

    return sgd_step(loss)(ps, x.astype(jnp.bfloat16), y)


def policy_step(ps, obs, actions, returns, old):
    def loss(ps, obs, actions):
        logits = mlp(ps, obs)
        logp = jax.nn.log_softmax(logits)
        taken = jnp.take_along_axis(logp, actions[:, None], 1)[:, 0]
        ratio = jnp.exp(taken - old)
        adv = (returns - returns.mean()) / (returns.std() + 1e-6)
        clipped = jnp.clip(ratio, 0.8, 1.2)
        entropy = -(jnp.exp(logp) * logp).sum(1).mean()
        return -jnp.minimum(ratio * adv, clipped * adv).mean() - 0.01 * entropy

    return sgd_step(loss)(ps, obs, actions)


program("dp_sgd", D8, private, _mlp_args, (P(), P("data"), P("data")), P(), 1e-3)
program("newton_cg_dp", D8, hessian_step, _mlp_args, (P(), P("data"), P("data")), P(), 1e-3)
program("newton_cg_fsdp", F8, hessian_step, _mlp_args, (P("fsdp"), P("fsdp"), P("fsdp")), P("fsdp"), 1e-3)


def _tasks(r):
    return (mlp_params(r, [64, 128, 64]), *[W(r, 16, 32, 64, scale=1) for _ in range(4)])


program("maml_tasks", D8, meta_step, _tasks, (P(), *[P("data")] * 4), P(), 1e-3)
program("maml_rows", D8, meta_step, _tasks, (P(), *[P(None, "data")] * 4), P(), 1e-3)


def _ensemble(r):
    ps, x, y = _mlp_args(r)
    return jax.tree.map(lambda p: np.stack([p + 0.01 * i for i in range(8)]), ps), x, y


program("ensemble_models", M8, ensemble, _ensemble, (P("model"), P(), P()), (P("model"), P("model")), 1e-3)
program(
    "ensemble_2d",
    D2M4,
    ensemble,
    _ensemble,
    (P("model"), P("data"), P("data")),
    (P("model"), P("model")),
    1e-3,
)
program("neural_ode_dp", D8, neural_ode, _mlp_args, (P(), P("data"), P("data")), P(), 1e-3)
program(
    "neural_ode_tp",
    M8,
    neural_ode,
    _mlp_args,
    ([{"w": P(None, "model"), "b": P("model")}, {"w": P("model"), "b": P()}], P(), P()),
    None,
    1e-3,
)
program(
    "equilibrium_tp",
    M8,
    equilibrium,
    lambda r: (0.5 * W(r, 256, 256), W(r, 64, 256)),
    (P(None, "model"), P(None, "model")),
    P(None, "model"),
    1e-3,
)
program(
    "shampoo_fsdp",
    F8,
    shampoo,
    lambda r: (W(r, 128, 256), np.eye(128, dtype=np.float32), np.eye(256, dtype=np.float32), W(r, 128, 256)),
    (P("fsdp"),) * 4,
    P("fsdp"),
    1e-2,
)


def _moments(r):
    p, moments = W(r, 512, 512), r.randint(-127, 127, (1024, 256)).astype(np.int8)
    return p, moments, np.full(1024, 1e-3, np.float32), W(r, 512, 512)


program(
    "adam8bit",
    F8,
    adam8bit,
    _moments,
    (P("fsdp"),) * 4,
    P("fsdp"),
)
program(
    "adam8bit_2d",
    AB,
    adam8bit,
    _moments,
    (P("a", "b"), P(("a", "b")), P(("a", "b")), P("a", "b")),
    (P("a", "b"), P(("a", "b")), P(("a", "b"))),
)
program(
    "barlow_dp",
    D8,
    barlow,
    lambda r: ([W(r, 128, 256), W(r, 256, 128)], *_mlp_args(r)[1:]),
    (P(), P("data"), P("data")),
    P(),
    1e-2,
)
program(
    "siglip_dp",
    D8,
    siglip,
    lambda r: ([W(r, 256, 128), W(r, 128, 128)], W(r, 512, 256), W(r, 512, 128)),
    (P(), P("data"), P("data")),
    P(),
    1e-3,
)
program(
    "bf16_compute_fsdp",
    F8,
    bf16_compute,
    lambda r: ([W(r, 256, 256) for _ in range(3)], W(r, 512, 256), W(r, 512, 256)),
    (P("fsdp"), P("fsdp"), P("fsdp")),
    (P("fsdp"), P()),
    2e-2,
)
program(
    "ppo_dp",
    D8,
    policy_step,
    lambda r: (
        mlp_params(r, [64, 128, 16]),
        W(r, 1024, 64),
        ids(r, 1024, hi=16),
        W(r, 1024),
        W(r, 1024, scale=0.1),
    ),
    (P(), *[P("data")] * 4),
    P(),
    1e-3,
)
