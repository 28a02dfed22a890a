"""Recurrences, attention of other kinds, chains, mixtures."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, ids, ln, sgd_step, xent

from .registry import program

D8, M8, F8, S8 = [("data", 8)], [("model", 8)], [("fsdp", 8)], [("seq", 8)]
DM, D2M4 = [("data", 4), ("model", 2)], [("data", 2), ("model", 4)]


# ---- sequences
def rwkv(k, v, r, w, u):
    def step(s, t):
        k, v, r = t
        kv = k[..., :, None] * v[..., None, :]
        return s * w[:, :, None] + kv, jnp.einsum("bhi,bhij->bhj", r, s + u[:, :, None] * kv)

    b, _, h, d = k.shape
    s = jnp.zeros((b, h, d, d))
    return lax.scan(step, s, [x.swapaxes(0, 1) for x in (k, v, r)])[1].swapaxes(0, 1)


def _rwkv_args(r):
    x = [W(r, 4, 64, 8, 16) for _ in range(3)]
    return (*x, 1 / (1 + np.exp(W(r, 8, 16))), W(r, 8, 16))


program("rwkv_heads", M8, rwkv, _rwkv_args, (*[P(None, None, "model")] * 3, P("model"), P("model")))
program("rwkv_seq", S8, rwkv, _rwkv_args, (*[P(None, "seq")] * 3, P(), P()), P(None, "seq"))


def griffin(ps, x):
    """Gated linear recurrence by an associative scan, between two projections."""
    a = jax.nn.sigmoid(x @ ps["a"])
    u = jnp.sqrt(1 - a * a) * (x @ ps["u"])
    h = lax.associative_scan(lambda p, q: (p[0] * q[0], p[1] * q[0] + q[1]), (a, u), axis=1)[1]
    return (h * jax.nn.gelu(x @ ps["g"])) @ ps["o"]


def _griffin_args(r):
    return {n: W(r, 128, 256) for n in "aug"} | {"o": W(r, 256, 128)}, W(r, 4, 256, 128)


_griffin_specs = {n: P(None, "model") for n in "aug"} | {"o": P("model")}
program("griffin_tp", M8, griffin, _griffin_args, (_griffin_specs, P()))
program("griffin_seq", S8, griffin, _griffin_args, (P(), P(None, "seq")), P(None, "seq"))


def differential(q, k, v, lam):
    """Differential attention: the difference of two softmaxes."""
    w = jax.nn.softmax(jnp.einsum("bqthd,bkthd->tbhqk", q, k) / 4)
    return jnp.einsum("bhqk,bkhd->bqhd", w[0] - lam * w[1], v)


def _differential_args(r):
    return W(r, 2, 128, 2, 8, 16), W(r, 2, 128, 2, 8, 16), W(r, 2, 128, 8, 32), np.float32(0.3)


program(
    "differential_heads",
    M8,
    differential,
    _differential_args,
    (P(None, None, None, "model"), P(None, None, None, "model"), P(None, None, "model"), P()),
)
program(
    "differential_seq",
    S8,
    differential,
    _differential_args,
    (P(None, "seq"), P(None, "seq"), P(None, "seq"), P()),
    P(None, "seq"),
)


def relative_bias(q, k, v, table):
    """T5: a learned bias looked up by clipped distance."""
    n = q.shape[1]
    d = jnp.clip(jnp.arange(n)[:, None] - jnp.arange(n)[None, :] + 16, 0, 31)
    s = jnp.einsum("bqhd,bkhd->bhqk", q, k) + table[d].transpose(2, 0, 1)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(s), v)


def _bias_args(r):
    return (*[W(r, 2, 128, 8, 32) for _ in range(3)], W(r, 32, 8))


program(
    "relative_bias_heads", M8, relative_bias, _bias_args, (*[P(None, None, "model")] * 3, P(None, "model"))
)
program(
    "relative_bias_train",
    M8,
    sgd_step(lambda t, q, k, v, y: ((relative_bias(q, k, v, t) - y) ** 2).mean()),
    lambda r: ((a := _bias_args(r))[3], *a[:3], W(r, 2, 128, 8, 32)),
    (P(None, "model"), *[P(None, None, "model")] * 4),
    (P(None, "model"), None),
)
program("relative_bias_seq", S8, relative_bias, _bias_args, (*[P(None, "seq")] * 3, P()), P(None, "seq"))


def crf(scores, moves, tags):
    """Negative log likelihood of a linear chain."""

    def step(a, s):
        return jax.nn.logsumexp(a[:, :, None] + moves, 1) + s, None

    z = jax.nn.logsumexp(lax.scan(step, scores[:, 0], scores[:, 1:].swapaxes(0, 1))[0], -1)
    gold = jnp.take_along_axis(scores, tags[..., None], 2)[..., 0].sum(1) + moves[
        tags[:, :-1], tags[:, 1:]
    ].sum(1)
    return (z - gold).mean()


def crf_train(p, x, tags):
    loss, g = jax.value_and_grad(lambda p: crf(x @ p["w"], p["m"], tags))(p)
    return jax.tree.map(lambda p, g: p - 0.1 * g, p, g), loss


def _crf_args(r):
    return {"w": W(r, 128, 32), "m": W(r, 32, 32)}, W(r, 64, 32, 128), ids(r, 64, 32, hi=32)


program("crf_dp", D8, crf_train, _crf_args, (P(), P("data"), P("data")), (P(), None))
program(
    "crf_tags",
    D2M4,
    crf_train,
    _crf_args,
    ({"w": P(None, "model"), "m": P("model")}, P("data"), P("data")),
    ({"w": P(None, "model"), "m": P("model")}, None),
)


# ---- layers
def soft_moe(ps, x):
    """Soft mixture of experts: tokens are mixed into slots and back."""
    logits = jnp.einsum("btd,des->btes", x, ps["phi"])
    d = jax.nn.softmax(logits, 1)
    c = jax.nn.softmax(logits.reshape(*logits.shape[:2], -1), -1).reshape(logits.shape)
    slots = jnp.einsum("btes,btd->ebsd", d, x)
    h = jax.nn.gelu(jnp.einsum("ebsd,edf->ebsf", slots, ps["up"]))
    return jnp.einsum("btes,ebsd->btd", c, jnp.einsum("ebsf,efd->ebsd", h, ps["down"]))


def _soft_args(r):
    return {"phi": W(r, 128, 8, 8), "up": W(r, 8, 128, 256), "down": W(r, 8, 256, 128)}, W(
        r, 8, 128, 128, scale=1
    )


_soft = {"phi": P(), "up": P("data"), "down": P("data")}
program("soft_moe_ep", D8, soft_moe, _soft_args, (_soft, P("data")), P("data"))
program(
    "soft_moe_ep_train",
    D8,
    sgd_step(lambda p, x, y: ((soft_moe(p, x) - y) ** 2).mean()),
    lambda r: (*_soft_args(r), W(r, 8, 128, 128)),
    (_soft, P("data"), P("data")),
    (_soft, None),
)
program(
    "soft_moe_tp",
    DM,
    soft_moe,
    _soft_args,
    ({"phi": P(), "up": P(None, None, "model"), "down": P(None, "model")}, P("data")),
    P("data"),
)


def mtp(ps, x, y):
    """Two heads that predict the next token and the one after it, over one table."""

    def loss(ps, x, y):
        e = ps["e"][x]
        h = jax.nn.gelu(e @ ps["w"])
        h2 = jax.nn.gelu(jnp.concatenate([h, jnp.roll(e, -1, 1)], -1) @ ps["m"])
        return xent(h @ ps["e"].T, y) + 0.3 * xent(h2 @ ps["e"].T, jnp.roll(y, -1, 1))

    return sgd_step(loss)(ps, x, y)


def _mtp_args(r):
    return {"e": W(r, 1024, 128), "w": W(r, 128, 128), "m": W(r, 256, 128)}, ids(r, 8, 64), ids(r, 8, 64)


program(
    "mtp_vocab",
    DM,
    mtp,
    _mtp_args,
    ({"e": P("model"), "w": P(), "m": P()}, P("data"), P("data")),
    ({"e": P("model"), "w": P(), "m": P()}, None),
)
program("mtp_fsdp", F8, mtp, _mtp_args, (P("fsdp"), P("fsdp"), P("fsdp")), (P("fsdp"), None))


def post_norm(p, x):
    for q in p:
        x = ln(x + jax.nn.gelu(x @ q["up"]) @ q["down"], q["s"], q["b"])
    return x


program(
    "post_norm_seq_tp",
    D2M4,
    post_norm,
    lambda r: (
        [
            {
                "up": W(r, 128, 512),
                "down": W(r, 512, 128),
                "s": np.ones(128, np.float32),
                "b": np.zeros(128, np.float32),
            }
            for _ in range(2)
        ],
        W(r, 8, 64, 128, scale=1),
    ),
    ([{"up": P(None, "model"), "down": P("model"), "s": P(), "b": P()}] * 2, P("data", "model")),
    P("data", "model"),
)
