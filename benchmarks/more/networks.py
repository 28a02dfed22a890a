"""Networks beside the zoo's: attention, routing to experts, recurrences, statistics of batches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, ids, ln, sgd_step, xent
from benchmarks.zoo.transformer import attention

from .registry import program

D8, M8, S8, E8 = [("data", 8)], [("model", 8)], [("seq", 8)], [("expert", 8)]
DM = [("data", 4), ("model", 2)]
D2M4 = [("data", 2), ("model", 4)]


# ---- attention
def windowed(q, k, v):
    S = q.shape[1]
    near = jnp.abs(jnp.arange(S)[:, None] - jnp.arange(S)[None]) < 32
    s = jnp.where(near, jnp.einsum("bshk,bthk->bhst", q, k), -1e9)
    return jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(s, -1), v)


def _qkv(r, b=4, s=128, h=8, k=32):
    return tuple(W(r, b, s, h, k, scale=0.3) for _ in range(3))


program("sliding_window_seq", S8, windowed, _qkv, (P(None, "seq"),) * 3, P(None, "seq"))


def chunked(q, k, v):
    """Softmax over chunks of keys, with a running maximum and sum."""
    B, S, H, K = k.shape
    ks, vs = (x.reshape(B, 8, S // 8, H, K).swapaxes(0, 1) for x in (k, v))

    def body(carry, kv):
        m, z, o = carry
        s = jnp.einsum("bshk,bthk->bhst", q, kv[0])
        new = jnp.maximum(m, s.max(-1))
        p, old = jnp.exp(s - new[..., None]), jnp.exp(m - new)
        return (new, z * old + p.sum(-1), o * old[..., None] + jnp.einsum("bhst,bthk->bhsk", p, kv[1])), None

    init = jnp.full((B, H, S), -1e9), jnp.zeros((B, H, S)), jnp.zeros((B, H, S, K))
    (_, z, o), _ = lax.scan(body, init, (ks, vs))
    return (o / z[..., None]).swapaxes(1, 2)


program("chunked_attention_heads", M8, chunked, _qkv, (P(None, None, "model"),) * 3, P(None, None, "model"))
program("chunked_attention_seq", S8, chunked, _qkv, (P(None, "seq"),) * 3, P(None, "seq"))
program(
    "chunked_attention_batch_heads",
    D2M4,
    chunked,
    _qkv,
    (P("data", None, "model"),) * 3,
    P("data", None, "model"),
)


def alibi(x, p):
    q, k, v = (jnp.einsum("bsd,dhk->bshk", x, p[n]) for n in "qkv")
    S, H = x.shape[1], q.shape[2]
    bias = -jnp.abs(jnp.arange(S)[:, None] - jnp.arange(S)[None]) * 2.0 ** -jnp.arange(H)[:, None, None]
    s = jnp.einsum("bshk,bthk->bhst", q, k) + bias
    return jnp.einsum("bshk,hkd->bsd", jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(s, -1), v), p["o"])


program(
    "alibi_tp",
    DM,
    alibi,
    lambda r: (W(r, 8, 64, 128, scale=1), {**{n: W(r, 128, 8, 16) for n in "qkv"}, "o": W(r, 8, 16, 128)}),
    (P("data"), {**{n: P(None, "model") for n in "qkv"}, "o": P("model")}),
    P("data"),
)


def _vit_params(r):
    D, F = 64, 256
    layer = lambda: {  # noqa: E731
        **{n: W(r, D, 4, 16) for n in "qkv"},
        "o": W(r, D, D),
        "up": W(r, D, F),
        "down": W(r, F, D),
    }
    return {"patch": W(r, 48, D), "pos": W(r, 64, D), "head": W(r, D, 64), "layers": [layer(), layer()]}


def vit(ps, x, y):
    def loss(ps):
        B = x.shape[0]
        t = (
            x.reshape(B, 8, 4, 8, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(B, 64, 48) @ ps["patch"]
            + ps["pos"]
        )
        for p in ps["layers"]:
            h = ln(t, 1.0, 0.0)
            q, k, v = (jnp.einsum("bsd,dhk->bshk", h, p[n]) for n in "qkv")
            t = t + attention(q, k, v, False).reshape(B, 64, -1) @ p["o"]
            t = t + jax.nn.gelu(ln(t, 1.0, 0.0) @ p["up"]) @ p["down"]
        return xent(t.mean(1) @ ps["head"], y)

    return sgd_step(loss)(ps)


_VIT_TP = {
    "patch": P(),
    "pos": P(),
    "head": P(),
    "layers": {
        **{n: P(None, "model") for n in "qkv"},
        "o": P("model"),
        "up": P(None, "model"),
        "down": P("model"),
    },
}
_VIT_TP["layers"] = [_VIT_TP["layers"]] * 2
_images = lambda r: (_vit_params(r), W(r, 64, 32, 32, 3, scale=1), ids(r, 64, hi=64))  # noqa: E731
program("vit_dp_train", D8, vit, _images, (P(), P("data"), P("data")), (P(), P()))
program("vit_dp_tp_train", DM, vit, _images, (_VIT_TP, P("data"), P("data")), (_VIT_TP, P()))


# ---- routing
def expert_choice(p, x):
    N, E = x.shape[0], p["gate"].shape[1]
    w, i = lax.top_k(jax.nn.softmax(x @ p["gate"], -1).T, N // E * 2)  # experts, places
    h = jax.nn.relu(jnp.einsum("ecm,emf->ecf", x[i], p["up"]))
    o = jnp.einsum("ecf,efm->ecm", h, p["down"]) * w[..., None]
    return jnp.zeros_like(x).at[i].add(o)


def switch(p, x):
    N, E = x.shape[0], p["gate"].shape[1]
    C = 2 * N // E
    probs = jax.nn.softmax(x @ p["gate"], -1)
    hit = jax.nn.one_hot(jnp.argmax(probs, -1), E)
    place = ((jnp.cumsum(hit, 0) - 1) * hit).sum(-1).astype(jnp.int32)
    send = hit[..., None] * jax.nn.one_hot(place, C)[:, None]  # tokens, experts, places
    h = jax.nn.relu(jnp.einsum("ecm,emf->ecf", jnp.einsum("nec,nm->ecm", send, x), p["up"]))
    o = jnp.einsum("nec,ecm->nm", send, jnp.einsum("ecf,efm->ecm", h, p["down"]))
    return o * probs.max(-1, keepdims=True), E * (hit.mean(0) * probs.mean(0)).sum()


def _experts(r, n=512):
    ps = {"gate": W(r, 128, 8), "up": W(r, 8, 128, 256, scale=0.1), "down": W(r, 8, 256, 128, scale=0.06)}
    return ps, W(r, n, 128, scale=1)


_EXPERTS = {"gate": P(), "up": P("expert"), "down": P("expert")}
program("moe_expert_choice", E8, expert_choice, _experts, (_EXPERTS, P("expert")), P("expert"))
program("moe_switch", E8, switch, _experts, (_EXPERTS, P("expert")), (P("expert"), P()))
program(
    "moe_switch_dp_ep",
    [("data", 2), ("expert", 4)],
    switch,
    _experts,
    (_EXPERTS, P(("data", "expert"))),
    (P(("data", "expert")), P()),
)


def dense_experts(p, x):
    h = jax.nn.relu(jnp.einsum("nm,emf->enf", x, p["up"]))
    return jnp.einsum(
        "ne,enm->nm", jax.nn.softmax(x @ p["gate"], -1), jnp.einsum("enf,efm->enm", h, p["down"])
    )


program("moe_dense", E8, dense_experts, _experts, (_EXPERTS, P()), P())


# ---- recurrences
def bidirectional(p, x):
    def run(w, x, reverse):
        return lax.scan(
            lambda h, t: ((y := jnp.tanh(t + h @ w)), y), jnp.zeros(x.shape[1:]), x, reverse=reverse
        )[1]

    return jnp.concatenate([run(p["f"], x @ p["in"], False), run(p["b"], x @ p["in"], True)], -1)


_bi = lambda r: ({"in": W(r, 64, 128), "f": W(r, 128, 128), "b": W(r, 128, 128)}, W(r, 16, 64, 64, scale=1))  # noqa: E731
program("birnn_dp", D8, bidirectional, _bi, (P(), P(None, "data")), P(None, "data"))
program(
    "birnn_tp",
    M8,
    bidirectional,
    _bi,
    ({"in": P(None, "model"), "f": P(None, "model"), "b": P(None, "model")}, P()),
)


def seq2seq(p, src, dst):
    def loss(p):
        enc = lax.scan(
            lambda h, t: ((y := jnp.tanh(t + h @ p["e"])), y), jnp.zeros((src.shape[1], 128)), src @ p["in"]
        )[1]

        def step(h, t):
            a = jax.nn.softmax(jnp.einsum("bd,sbd->bs", h, enc), -1)
            h = jnp.tanh(t + h @ p["d"] + jnp.einsum("bs,sbd->bd", a, enc) @ p["c"])
            return h, h

        return ((lax.scan(step, enc[-1], dst @ p["in"])[1] @ p["out"] - dst) ** 2).mean()

    return jax.tree.map(lambda a, g: a - 0.01 * g, p, jax.grad(loss)(p))


program(
    "seq2seq_dp_train",
    D8,
    seq2seq,
    lambda r: (
        {
            "in": W(r, 64, 128),
            "e": W(r, 128, 128),
            "d": W(r, 128, 128),
            "c": W(r, 128, 128),
            "out": W(r, 128, 64),
        },
        W(r, 12, 64, 64, scale=1),
        W(r, 12, 64, 64, scale=1),
    ),
    (P(), P(None, "data"), P(None, "data")),
    P(),
)


def selective(p, x):
    dt = jax.nn.softplus(x @ p["dt"])
    a = jnp.exp(-dt[..., None] * jnp.exp(p["a"]))
    b = dt[..., None] * (x @ p["b"])[:, :, None] * x[..., None]

    def join(l, r):  # noqa: E741
        return r[0] * l[0], r[0] * l[1] + r[1]

    h = lax.associative_scan(join, (a, b), axis=1)[1]
    return jnp.einsum("bsdn,bsn->bsd", h, x @ p["c"])


_ssm = lambda r: (  # noqa: E731
    {"dt": W(r, 64, 64), "a": W(r, 64, 8), "b": W(r, 64, 8), "c": W(r, 64, 8)},
    W(r, 8, 128, 64, scale=1),
)
program("selective_scan_batch", D8, selective, _ssm, (P(), P("data")), P("data"))
program("selective_scan_seq", S8, selective, _ssm, (P(), P(None, "seq")), P(None, "seq"))
program(
    "selective_scan_channels",
    M8,
    selective,
    _ssm,
    ({"dt": P(None, "model"), "a": P("model"), "b": P("model"), "c": P("model")}, P(None, None, "model")),
    P(None, None, "model"),
)


# ---- statistics of batches
def batch_norm_train(p, x):
    def loss(p):
        h = lax.conv_general_dilated(x, p["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        mean = h.mean((0, 1, 2))
        var = ((h - mean) ** 2).mean((0, 1, 2))
        h = jax.nn.relu((h - mean) * lax.rsqrt(var + 1e-5) * p["s"] + p["b"])
        return (h**2).mean(), (mean, var)

    (value, stats), g = jax.value_and_grad(loss, has_aux=True)(p)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), stats, value


program(
    "batchnorm_conv_dp",
    D8,
    batch_norm_train,
    lambda r: (
        {"w": W(r, 3, 3, 8, 16), "s": np.ones(16, np.float32), "b": np.zeros(16, np.float32)},
        W(r, 16, 16, 16, 8, scale=1),
    ),
    (P(), P("data")),
    P(),
)
program(
    "batchnorm_conv_space",
    [("data", 2), ("space", 4)],
    batch_norm_train,
    lambda r: (
        {"w": W(r, 3, 3, 8, 16), "s": np.ones(16, np.float32), "b": np.zeros(16, np.float32)},
        W(r, 8, 32, 16, 8, scale=1),
    ),
    (P(), P("data", "space")),
    P(),
)


def recommender(tables, w, rows, dense, label):
    def loss(tables, w):
        parts = [t[i].sum(1) for t, i in zip(tables, rows.swapaxes(0, 1), strict=True)]
        x = jnp.concatenate([*parts, dense], -1)
        pair = jnp.einsum("bi,bj->bij", x[:, :16], x[:, 16:32]).reshape(x.shape[0], -1)
        z = (jnp.concatenate([x, pair], -1) @ w)[:, 0]
        return (jax.nn.softplus(z) - label * z).mean()

    g = jax.grad(loss, (0, 1))(tables, w)
    return jax.tree.map(lambda a, b: a - 0.1 * b, (tables, w), g)


_ads = lambda r: (  # noqa: E731
    [W(r, 1024, 16, scale=1), W(r, 512, 16, scale=1)],
    W(r, 16 * 16 + 48, 1),
    ids(r, 256, 2, 4, hi=512),
    W(r, 256, 16, scale=1),
    r.randint(0, 2, 256).astype(np.float32),
)
program(
    "dlrm_rows", D8, recommender, _ads, (P("data"), P(), P("data"), P("data"), P("data")), (P("data"), P())
)
program(
    "dlrm_columns",
    D8,
    recommender,
    _ads,
    (P(None, "data"), P(), P("data"), P("data"), P("data")),
    (P(None, "data"), P()),
)
