"""Programs as larger code bases write them: products with named heads, masks of packed sequences, quantized weights, rays."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, ids

from .registry import program

D8, M8, F8, S8 = [("data", 8)], [("model", 8)], [("fsdp", 8)], [("seq", 8)]
FT = [("fsdp", 4), ("tensor", 2)]
D2M4 = [("data", 2), ("model", 4)]
A8, AB = [("a", 8)], [("a", 4), ("b", 2)]


# ---- a decoder whose parameters are stacked along their second dim, products with heads by name
def rms(x, g):
    return x * lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * g


def decoder_layer(x, p, segments=None):
    y = rms(x, p["n1"])
    q, k, v = (jnp.einsum("bsd,dhk->bshk", y, p[n]) for n in "qkv")
    s = jnp.einsum("bqhk,bshk->bhqs", q, k) / np.sqrt(q.shape[-1])
    mask = np.tril(np.ones((x.shape[1], x.shape[1]), bool))[None]
    if segments is not None:
        mask = mask & (segments[:, :, None] == segments[:, None, :])
    s = jnp.where(mask[:, None], s, -1e9)
    o = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(s), v)
    x = x + jnp.einsum("bqhk,hkd->bqd", o, p["o"])
    y = rms(x, p["n2"])
    h = jax.nn.silu(jnp.einsum("bsd,df->bsf", y, p["wi0"])) * jnp.einsum("bsd,df->bsf", y, p["wi1"])
    return x + jnp.einsum("bsf,fd->bsd", h, p["wo"])


def decoder_params(r, L=2, d=128, h=8, k=16, f=512):
    return {
        "n1": np.ones((d, L), np.float32),
        "n2": np.ones((d, L), np.float32),
        **{n: W(r, d, L, h, k) for n in "qkv"},
        "o": W(r, h, L, k, d),
        "wi0": W(r, d, L, f),
        "wi1": W(r, d, L, f),
        "wo": W(r, f, L, d),
    }


def decoder_specs(d, t):
    return {
        "n1": P(None),
        "n2": P(None),
        **{n: P(d, None, t) for n in "qkv"},
        "o": P(t, None, None, d),
        "wi0": P(d, None, t),
        "wi1": P(d, None, t),
        "wo": P(t, None, d),
    }


def decoder_loss(p, x, segments, remat):
    def body(x, i):
        here = jax.tree.map(lambda a: lax.dynamic_index_in_dim(a, i, 1, keepdims=False), p)
        return decoder_layer(x, here, segments), None

    x, _ = lax.scan(jax.checkpoint(body) if remat else body, x, np.arange(2))
    return (x * x).mean()


def decoder_step(p, x, segments, remat=False):
    loss, g = jax.value_and_grad(decoder_loss)(p, x, segments, remat)
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g), loss


def segments(r, b, s):
    return np.sort(r.randint(0, 4, (b, s)), axis=1).astype(np.int32)


for _remat in (False, True):
    program(
        "stacked_second_fsdp" + "_remat" * _remat,
        F8,
        partial(decoder_step, remat=_remat),
        lambda r: (decoder_params(r), W(r, 8, 64, 128, scale=1), segments(r, 8, 64)),
        (decoder_specs("fsdp", None), P("fsdp"), P("fsdp")),
        (decoder_specs("fsdp", None), P()),
        tol=1e-3,
    )
    program(
        "stacked_second_2d" + "_remat" * _remat,
        FT,
        partial(decoder_step, remat=_remat),
        lambda r: (decoder_params(r), W(r, 8, 64, 128, scale=1), segments(r, 8, 64)),
        (decoder_specs("fsdp", "tensor"), P("fsdp"), P("fsdp")),
        (decoder_specs("fsdp", "tensor"), P()),
        tol=1e-3,
    )


# ---- losses over a vocabulary
def tied_z_loss(e, x, y):
    logits = jnp.einsum("btd,vd->btv", x, e)
    lse = jax.nn.logsumexp(logits, axis=-1)
    hot = jax.nn.one_hot(y, e.shape[0]) * 0.9 + 0.1 / e.shape[0]
    return ((lse - (hot * logits).sum(-1)) + 1e-4 * lse**2).mean()


program(
    "tied_z_loss_vocab",
    D2M4,
    lambda e, x, y: (lambda loss, g: (e - 0.1 * g, loss))(*jax.value_and_grad(tied_z_loss)(e, x, y)),
    lambda r: (W(r, 2048, 128), W(r, 8, 32, 128, scale=1), ids(r, 8, 32, hi=2048)),
    (P("model"), P("data"), P("data")),
    (P("model"), P()),
)


def masked_positions(w, e, x, at, y):
    h = jnp.tanh(x @ w)
    h = jnp.take_along_axis(h, at[:, :, None], axis=1)
    logits = h @ e.T
    return (jax.nn.logsumexp(logits, -1) - jnp.take_along_axis(logits, y[:, :, None], -1)[..., 0]).mean()


for _name, _mesh, _specs in (
    ("dp", D8, (P(), P(), P("data"), P("data"), P("data"))),
    ("vocab", D2M4, (P(None, "model"), P("model"), P("data"), P("data"), P("data"))),
    ("seq", S8, (P(), P(), P(None, "seq"), P(), P())),
):
    program(
        f"masked_positions_{_name}",
        _mesh,
        lambda w, e, x, at, y: jax.value_and_grad(masked_positions, (0, 1))(w, e, x, at, y),
        lambda r: (
            W(r, 128, 128),
            W(r, 1024, 128),
            W(r, 16, 64, 128, scale=1),
            ids(r, 16, 8, hi=64),
            ids(r, 16, 8),
        ),
        _specs,
        tol=5e-4,
    )

program(
    "categorical_vocab",
    D2M4,
    lambda x, w, seed: jax.random.categorical(jax.random.key(seed), x @ w, axis=-1),
    lambda r: (W(r, 64, 128, scale=1), W(r, 128, 2048), np.uint32(3)),
    (P("data"), P(None, "model"), P()),
)


# ---- serving
def prefill(cache, x, ws, start):
    def layer(x, at):
        (ck, cv), (wq, wk, wv, wo) = at
        s = x.shape[1]
        q, k, v = (jnp.einsum("bsd,dhk->bshk", x, w) for w in (wq, wk, wv))
        ck = lax.dynamic_update_slice(ck, k, (0, start, 0, 0))
        cv = lax.dynamic_update_slice(cv, v, (0, start, 0, 0))
        sc = jnp.einsum("bqhk,bshk->bhqs", q, ck) / 4
        live = jnp.arange(ck.shape[1])[None, :] <= start + jnp.arange(s)[:, None]
        o = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(jnp.where(live, sc, -1e9)), cv)
        return x + jnp.einsum("bqhk,hkd->bqd", o, wo), (ck, cv)

    return lax.scan(layer, x, (cache, ws))


for _name, _mesh, _c, _w, _o, _x in (
    ("heads", D2M4, P(None, "data", None, "model"), P(None, None, "model"), P(None, "model"), P("data")),
    ("seq", S8, P(None, None, "seq"), P(), P(), P()),
):
    program(
        f"prefill_cache_{_name}",
        _mesh,
        prefill,
        lambda r: (
            (W(r, 2, 4, 128, 8, 16, scale=1), W(r, 2, 4, 128, 8, 16, scale=1)),
            W(r, 4, 16, 128, scale=1),
            (*(W(r, 2, 128, 8, 16) for _ in range(3)), W(r, 2, 8, 16, 128)),
            np.int32(48),
        ),
        ((_c, _c), _x, (_w, _w, _w, _o), P()),
        (_x, (_c, _c)),
        tol=5e-4,
    )


def int8_layer(x, w, scale):
    s = jnp.abs(x).max(-1, keepdims=True) / 127
    q = jnp.round(x / s).astype(jnp.int8)
    y = lax.dot_general(q, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
    return y.astype(jnp.float32) * s * scale


def int8_mlp(x, w1, s1, w2, s2):
    return int8_layer(jax.nn.relu(int8_layer(x, w1, s1)), w2, s2)


for _name, _mesh, _specs in (
    ("tp", D2M4, (P("data"), P(None, "model"), P("model"), P("model"), P())),
    ("fsdp", F8, (P("fsdp"), P("fsdp"), P(), P("fsdp"), P())),
):
    program(
        f"int8_mlp_{_name}",
        _mesh,
        int8_mlp,
        lambda r: (
            W(r, 64, 256, scale=1),
            r.randint(-127, 127, (256, 1024)).astype(np.int8),
            W(r, 1024, scale=0.01),
            r.randint(-127, 127, (1024, 256)).astype(np.int8),
            W(r, 256, scale=0.01),
        ),
        _specs,
        tol=2e-2,
    )


# ---- mixtures by sorting
def ragged_moe(x, router, w1, w2):
    e = router.shape[1]
    best = jnp.argmax(x @ router, -1)
    order = jnp.argsort(best)
    sizes = jnp.bincount(best, length=e).astype(jnp.int32)
    h = jax.nn.relu(lax.ragged_dot(x[order], w1, sizes))
    y = lax.ragged_dot(h, w2, sizes)
    return jnp.zeros_like(x).at[order].set(y)


for _name, _specs in (("dp", (P("a"), P(), P(), P())), ("tp", (P(), P(), P(None, None, "a"), P(None, "a")))):
    program(
        f"ragged_moe_{_name}",
        A8,
        ragged_moe,
        lambda r: (W(r, 128, 64, scale=1), W(r, 64, 8), W(r, 8, 64, 256), W(r, 8, 256, 64)),
        _specs,
    )


# ---- convolutions
def wavenet(x, ws):
    for i, (f, g, o) in enumerate(ws):
        d = 2**i
        pad = [(2 * d, 0)]
        dn = lax.conv_dimension_numbers(x.shape, f.shape, ("NWC", "WIO", "NWC"))
        conv = partial(
            lax.conv_general_dilated,
            window_strides=(1,),
            padding=pad,
            rhs_dilation=(d,),
            dimension_numbers=dn,
        )
        x = x + (jnp.tanh(conv(x, f)) * jax.nn.sigmoid(conv(x, g))) @ o
    return x


def _wave(r):
    return (
        W(r, 8, 512, 32, scale=1),
        [(W(r, 3, 32, 32), W(r, 3, 32, 32), W(r, 32, 32)) for _ in range(4)],
    )


program("wavenet_seq", [("data", 2), ("seq", 4)], wavenet, _wave, (P("data", "seq"), P()))
program(
    "wavenet_seq_train",
    [("data", 2), ("seq", 4)],
    lambda x, ws: jax.value_and_grad(lambda ws: (wavenet(x, ws) ** 2).mean())(ws),
    _wave,
    (P("data", "seq"), P()),
    tol=5e-4,
)


def conv3d(x, w1, w2):
    dn = ("NDHWC", "DHWIO", "NDHWC")
    x = jax.nn.relu(lax.conv_general_dilated(x, w1, (1, 1, 1), "SAME", dimension_numbers=dn))
    return lax.conv_general_dilated(x, w2, (2, 2, 2), "SAME", dimension_numbers=dn)


def _vol(r):
    return (W(r, 2, 16, 16, 16, 4, scale=1), W(r, 3, 3, 3, 4, 8), W(r, 3, 3, 3, 8, 8))


program("conv3d_depth", [("a", 4), ("b", 2)], conv3d, _vol, (P(None, "a", "b"), P(), P()), tol=5e-4)
program(
    "conv3d_train",
    [("data", 2), ("space", 4)],
    lambda x, a, b: jax.value_and_grad(lambda a, b: (conv3d(x, a, b) ** 2).mean(), (0, 1))(a, b),
    _vol,
    (P("data", "space"), P(), P()),
    tol=5e-4,
)


def resnext(x, w1, w2, w3):
    dn = ("NHWC", "HWIO", "NHWC")
    y = jax.nn.relu(lax.conv_general_dilated(x, w1, (1, 1), "SAME", dimension_numbers=dn))
    y = jax.nn.relu(
        lax.conv_general_dilated(y, w2, (1, 1), "SAME", dimension_numbers=dn, feature_group_count=8)
    )
    return x + lax.conv_general_dilated(y, w3, (1, 1), "SAME", dimension_numbers=dn)


def _grouped(r):
    return (W(r, 8, 16, 16, 32, scale=1), W(r, 1, 1, 32, 64), W(r, 3, 3, 8, 64), W(r, 1, 1, 64, 32))


program(
    "resnext_groups",
    M8,
    resnext,
    _grouped,
    (P(), P(None, None, None, "model"), P(None, None, None, "model"), P(None, None, "model")),
    tol=5e-4,
)
program(
    "resnext_space",
    [("data", 2), ("space", 4)],
    resnext,
    _grouped,
    (P("data", "space"), P(), P(), P()),
    tol=5e-4,
)


# ---- physics
def plaquettes(u):
    """u: links of a lattice, c64[4 directions, t, z, y, x, 2, 2]."""
    total = 0.0
    for m in range(4):
        for n in range(m):
            a, b = u[m], jnp.roll(u[n], -1, m)
            c, d = jnp.roll(u[m], -1, n), u[n]
            p = a @ b @ jnp.conj(jnp.swapaxes(c, -1, -2)) @ jnp.conj(jnp.swapaxes(d, -1, -2))
            total = total + jnp.trace(p, axis1=-2, axis2=-1).real.sum()
    return total


program(
    "plaquettes",
    AB,
    plaquettes,
    lambda r: ((W(r, 4, 8, 4, 4, 4, 2, 2) + 1j * W(r, 4, 8, 4, 4, 4, 2, 2)).astype(np.complex64),),
    (P(None, "a", "b"),),
    tol=1e-3,
)


def render(params, rays, t):
    x = rays[:, None, :3] + t[None, :, None] * rays[:, None, 3:]
    h = jnp.concatenate([x] + [f(2.0**k * x) for k in range(3) for f in (jnp.sin, jnp.cos)], -1)
    for w in params[:-1]:
        h = jax.nn.relu(h @ w)
    out = h @ params[-1]
    alpha = 1 - jnp.exp(-jax.nn.softplus(out[..., 0]) * 0.1)
    through = jnp.cumprod(1 - alpha + 1e-6, -1)
    through = jnp.concatenate([jnp.ones_like(through[:, :1]), through[:, :-1]], -1)
    return ((alpha * through)[..., None] * jax.nn.sigmoid(out[..., 1:])).sum(1)


def _rays(r):
    return (
        [W(r, 21, 64), W(r, 64, 64), W(r, 64, 4)],
        W(r, 512, 6, scale=1),
        np.linspace(0, 1, 32, dtype=np.float32),
        W(r, 512, 3, scale=1),
    )


for _name, _mesh, _specs in (
    ("rays", A8, (P(), P("a"), P(), P("a"))),
    ("samples", A8, (P(), P(), P("a"), P())),
    ("2d", AB, (P(), P("a"), P("b"), P("a"))),
):
    program(
        f"nerf_{_name}",
        _mesh,
        lambda p, rays, t, y: jax.value_and_grad(lambda p: ((render(p, rays, t) - y) ** 2).mean())(p),
        _rays,
        _specs,
        tol=1e-3,
    )


def splats(mean, depth, color, pixels):
    order = jnp.argsort(depth)
    mean, color = mean[order], color[order]
    d = ((pixels[:, None] - mean[None]) ** 2).sum(-1)
    alpha = 0.9 * jnp.exp(-4 * d)
    through = jnp.cumprod(1 - alpha, axis=1) / (1 - alpha)
    return (alpha * through) @ color


for _name, _specs in (
    ("pixels", (P(), P(), P(), P("a"))),
    ("points", (P("a"), P("a"), P("a"), P())),
    ("both", (P("a"), P("a"), P("a"), P("a"))),
):
    program(
        f"splats_{_name}",
        A8,
        splats,
        lambda r: (W(r, 64, 2, scale=1), W(r, 64, scale=1), W(r, 64, 3, scale=1), W(r, 1024, 2, scale=1)),
        _specs,
        tol=1e-3,
    )


# ---- linear algebra of batches
for _name, _fn in (
    ("eigh", lambda a: jnp.linalg.eigh(a @ a.swapaxes(1, 2))[0]),
    ("svd", lambda a: jnp.linalg.svd(a, compute_uv=False)),
    ("solve", lambda a: jnp.linalg.solve(a + 4 * jnp.eye(a.shape[-1]), a[..., 0:1])),
    ("slogdet", lambda a: jnp.linalg.slogdet(a + 4 * jnp.eye(a.shape[-1]))[1]),
    ("expm", lambda a: jax.scipy.linalg.expm(a * 0.1)),
):
    program(f"{_name}_of_batch", A8, _fn, lambda r: (W(r, 16, 12, 12, scale=1),), (P("a"),), tol=1e-2)


# ---- losses over time
def ctc(logits, labels):
    """log-probabilities of an alignment, f32[b, t, v], i32[b, l]."""
    lp = jax.nn.log_softmax(logits)
    b, t, _v = lp.shape
    ext = jnp.stack([jnp.zeros_like(labels), labels], -1).reshape(b, -1)
    emit = jnp.take_along_axis(lp, jnp.broadcast_to(ext[:, None], (b, t, ext.shape[1])), -1)
    first = jnp.full((b, ext.shape[1]), -1e9).at[:, :2].set(emit[:, 0, :2])

    def step(a, e):
        s1 = jnp.pad(a, ((0, 0), (1, 0)), constant_values=-1e9)[:, :-1]
        s2 = jnp.pad(a, ((0, 0), (2, 0)), constant_values=-1e9)[:, :-2]
        return jnp.logaddexp(jnp.logaddexp(a, s1), s2) + e, None

    a, _ = lax.scan(step, first, emit.swapaxes(0, 1)[1:])
    return -a[:, -1].mean()


for _name, _mesh, _x in (("dp", D8, P("data")), ("vocab", D2M4, P("data", None, "model"))):
    program(
        f"ctc_{_name}",
        _mesh,
        lambda w, x, y: jax.value_and_grad(lambda w: ctc(x @ w, y))(w),
        lambda r: (W(r, 64, 128), W(r, 16, 24, 64, scale=1), 1 + ids(r, 16, 6, hi=127)),
        (P(None, _x[2]) if len(_x) > 2 else P(), P("data"), P("data")),
        tol=1e-3,
    )


# ---- memory of the segment before
def xl(ws, mem, x):
    out = []
    for (wq, wk, wv, wo), m in zip(ws, mem, strict=True):
        h = jnp.concatenate([lax.stop_gradient(m), x], 1)
        q = (x @ wq).reshape(*x.shape[:2], 8, 16)
        k, v = ((h @ w).reshape(*h.shape[:2], 8, 16) for w in (wk, wv))
        s = jnp.einsum("bqhk,bshk->bhqs", q, k) / 4
        o = jnp.einsum("bhqs,bshk->bqhk", jax.nn.softmax(s), v)
        out.append(h[:, -m.shape[1] :])
        x = x + o.reshape(*x.shape[:2], -1) @ wo
    return x, out


def _xl(r):
    return (
        [tuple(W(r, 128, 128) for _ in range(4)) for _ in range(2)],
        [W(r, 8, 32, 128, scale=1) for _ in range(2)],
        W(r, 8, 32, 128, scale=1),
    )


_tp = [(P(None, "model"),) * 3 + (P("model"),)] * 2
program("xl_memory_dp", D8, xl, _xl, (P(), P("data"), P("data")), (P("data"), P("data")), tol=5e-4)
program("xl_memory_tp", D2M4, xl, _xl, (_tp, P("data"), P("data")), (P("data"), P("data")), tol=5e-4)
program(
    "xl_memory_seq",
    S8,
    xl,
    _xl,
    (P(), P(None, "seq"), P(None, "seq")),
    (P(None, "seq"), P(None, "seq")),
    tol=5e-4,
)


# ---- populations
def evolve(p, x, y, seed):
    keys = jax.random.split(jax.random.key(seed), 32)
    eps = jax.vmap(lambda k: jax.tree.map(lambda a: jax.random.normal(k, a.shape), p))(keys)

    def fitness(e):
        w1, w2 = jax.tree.map(lambda a, b: a + 0.05 * b, p, e)
        return -((jnp.tanh(x @ w1) @ w2 - y) ** 2).mean()

    f = jax.vmap(fitness)(eps)
    f = (f - f.mean()) / (f.std() + 1e-6)
    return jax.tree.map(lambda a, e: a + 0.01 * jnp.tensordot(f, e, 1), p, eps)


def _es(r):
    return ((W(r, 64, 128), W(r, 128, 16)), W(r, 256, 64, scale=1), W(r, 256, 16, scale=1), np.uint32(1))


program("evolve_data", D8, evolve, _es, (P(), P("data"), P("data"), P()), tol=1e-2)
program("evolve_fsdp", F8, evolve, _es, (P("fsdp"), P(), P(), P()), P("fsdp"), tol=1e-2)
