"""Layers from papers: attention along several dims in turn, through latents, in windows and chunks; what serving does with caches."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, ids, ln, sgd_step
from benchmarks.zoo.conv import conv
from benchmarks.zoo.registry import A8

from .registry import program

D8, M8, F8 = [("data", 8)], [("model", 8)], [("fsdp", 8)]
D2M4 = [("data", 2), ("model", 4)]
AB = [("a", 2), ("b", 4)]


def heads(x, n):
    return x.reshape(*x.shape[:-1], n, -1)


def attend(q, k, v):
    s = jnp.einsum("...qhd,...khd->...hqk", q, k) / np.sqrt(q.shape[-1])
    return jnp.einsum("...hqk,...khd->...qhd", jax.nn.softmax(s), v)


def latent_attention(ws, x):
    """DeepSeek's: keys and values come of one small latent."""
    q, c = heads(x @ ws["q"], 8), x @ ws["down"]
    out = attend(q, heads(c @ ws["k"], 8), heads(c @ ws["v"], 8))
    return x + out.reshape(x.shape) @ ws["o"]


def axial(x, w):
    """Attention along rows, and then along columns."""
    q, k, v = jnp.split(heads(x @ w[0], 12), 3, -2)
    x = x + attend(q, k, v).reshape(x.shape)
    q, k, v = jnp.split(heads(x.swapaxes(1, 2) @ w[1], 12), 3, -2)
    return x + attend(q, k, v).reshape(x.swapaxes(1, 2).shape).swapaxes(1, 2)


def triangle(z, w):
    a, b = jax.nn.sigmoid(z @ w[0]), z @ w[1]
    out = jnp.einsum("ikc,jkc->ijc", a, b)
    return z + ln(out, 1.0, 0.0) @ w[2]


def shifted_windows(x, w):
    """Swin: windows of 8 x 8, and once more shifted by half of one."""

    def windows(x):
        b, h, wd, c = x.shape
        t = x.reshape(b, h // 8, 8, wd // 8, 8, c).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 64, c)
        q, k, v = jnp.split(heads(t @ w, 12), 3, -2)
        t = attend(q, k, v).reshape(b, h // 8, wd // 8, 8, 8, c).transpose(0, 1, 3, 2, 4, 5)
        return t.reshape(x.shape)

    x = x + windows(x)
    return x + jnp.roll(windows(jnp.roll(x, (-4, -4), (1, 2))), (4, 4), (1, 2))


def unet(ws, x):
    a = jax.nn.relu(conv(x, ws[0]))
    b = jax.nn.relu(conv(a, ws[1], 2))
    b = jax.nn.relu(conv(b, ws[2]))
    up = jnp.repeat(jnp.repeat(b, 2, 1), 2, 2)
    return conv(jnp.concatenate([a, up], -1), ws[3])


def perceiver(latents, x, w):
    for _ in range(2):
        latents = latents + attend(heads(latents @ w[0], 4), heads(x @ w[1], 4), heads(x @ w[2], 4)).reshape(
            latents.shape
        )
    return latents


def retention(q, k, v):
    """Chunks in turn, with a decaying state."""
    b, n, d = q.shape
    decay = 0.9 ** (jnp.arange(64)[:, None] - jnp.arange(64)) * (jnp.arange(64)[:, None] >= jnp.arange(64))
    q, k, v = (t.reshape(b, n // 64, 64, d).swapaxes(0, 1) for t in (q, k, v))

    def chunk(state, qkv):
        q, k, v = qkv
        out = (jnp.einsum("bqd,bkd->bqk", q, k) * decay) @ v + (0.9 ** (jnp.arange(64)[:, None] + 1)) * (
            q @ state
        )
        return 0.9**64 * state + jnp.einsum("bkd,bke->bde", k * 0.9 ** (63 - jnp.arange(64))[:, None], v), out

    out = lax.scan(chunk, jnp.zeros((b, d, d)), (q, k, v))[1]
    return out.swapaxes(0, 1).reshape(b, n, d)


def depths(x, router, w):
    """Mixture of depths: an eighth of the tokens goes through the block."""
    score = x @ router
    top, where = lax.top_k(score, x.shape[1] // 8)
    picked = jnp.take_along_axis(x, where[..., None], 1)
    out = jax.nn.gelu(picked @ w[0]) @ w[1] * jax.nn.sigmoid(top)[..., None]
    return x.at[jnp.arange(len(x))[:, None], where].add(out)


def chunked_xent(w, x, y):
    """Cross entropy by chunks of tokens: no logits of all of them."""

    def loss(w, x, y):
        def chunk(total, xy):
            logits = xy[0] @ w
            picked = jnp.take_along_axis(logits, xy[1][:, None], 1)[:, 0]
            return total + (jax.nn.logsumexp(logits, 1) - picked).sum(), None

        cut = x.reshape(8, -1, x.shape[1]), y.reshape(8, -1)
        return lax.scan(jax.checkpoint(chunk), 0.0, cut)[0] / len(x)

    return sgd_step(loss)(w, x, y)


def shared_layers(w, x):
    """ALBERT: one layer, several times."""

    def layer(x, _):
        return x + jax.nn.gelu(ln(x, 1.0, 0.0) @ w[0]) @ w[1], None

    return (lax.scan(layer, x, None, 4)[0] ** 2).mean()


def cached_ring(cache, q, new, at):
    """A cache of the last tokens, written round and round."""
    cache = lax.dynamic_update_slice_in_dim(cache, new, at % cache.shape[1], 1)
    return attend(q, cache, cache), cache


def penalised(logits, seen, key):
    """Penalises what was said, and samples."""
    rows = jnp.arange(len(logits))[:, None]
    logits = logits.at[rows, seen].multiply(0.8)
    return jnp.argmax(logits + jax.random.gumbel(key, logits.shape), -1)


def verified(target, draft, tokens, key):
    """Speculative decoding: how many of the draft's tokens are kept, and the one after."""
    p, q = (
        jnp.take_along_axis(jax.nn.softmax(v), tokens[..., None], -1)[..., 0] for v in (target[:, :-1], draft)
    )
    kept = jnp.cumprod(jax.random.uniform(key, p.shape) < p / q, 1).sum(1)
    left = jnp.take_along_axis(target, kept[:, None, None], 1)[:, 0]
    return kept, left.argmax(-1)


def prefixed(prefix, w, x):
    b = jnp.broadcast_to(prefix, (len(x), *prefix.shape))
    q, k, v = jnp.split(heads(jnp.concatenate([b, x], 1) @ w, 12), 3, -2)
    return attend(q, k, v).reshape(len(x), -1, x.shape[-1])[:, len(prefix) :]


def _mla(r):
    return (
        {
            "q": W(r, 256, 256),
            "down": W(r, 256, 64),
            "k": W(r, 64, 256),
            "v": W(r, 64, 256),
            "o": W(r, 256, 256),
        },
        W(r, 4, 64, 256, scale=1),
    )


_split = {"q": P(None, "model"), "down": P(), "k": P(None, "model"), "v": P(None, "model"), "o": P("model")}
program("mla_tp", M8, latent_attention, _mla, (_split, P()), P(), 1e-3)
program("mla_2d", D2M4, latent_attention, _mla, (_split, P("data")), P("data"), 1e-3)


def _axial(r):
    return (W(r, 2, 32, 32, 64, scale=1), [W(r, 64, 192), W(r, 64, 192)])


program("axial_rows", A8, axial, _axial, (P(None, "a"), P()), P(None, "a"), 1e-3)
program("axial_2d", AB, axial, _axial, (P("a", "b"), P()), P("a", "b"), 1e-3)


def _pairs(r):
    return (W(r, 64, 64, 32, scale=1), [W(r, 32, 32) for _ in range(3)])


program("triangle_rows", A8, triangle, _pairs, (P("a"), P()), P("a"), 1e-3)
program("triangle_2d", AB, triangle, _pairs, (P("a", "b"), P()), P("a", "b"), 1e-3)


def _image(r):
    return (W(r, 2, 64, 64, 32, scale=1), W(r, 32, 96))


program("swin_rows", A8, shifted_windows, _image, (P(None, "a"), P()), P(None, "a"), 1e-3)
program("swin_2d", AB, shifted_windows, _image, (P(None, "a", "b"), P()), P(None, "a", "b"), 1e-3)


def _unet(r):
    return (
        [W(r, 3, 3, *io, scale=0.1) for io in ((4, 16), (16, 32), (32, 32), (48, 4))],
        W(r, 4, 64, 64, 4, scale=1),
    )


program("unet_rows", A8, unet, _unet, (P(), P(None, "a")), P(None, "a"), 1e-3)
program(
    "unet_train_2d",
    AB,
    lambda ps, x: sgd_step(lambda ps, x: ((unet(ps, x) - x) ** 2).mean())(ps, x),
    _unet,
    (P(), P("a", "b")),
    P(),
    1e-3,
)
program(
    "perceiver_seq",
    A8,
    perceiver,
    lambda r: (W(r, 4, 32, 64), W(r, 4, 1024, 64, scale=1), [W(r, 64, 64) for _ in range(3)]),
    (P(), P(None, "a"), P()),
    P(),
    1e-3,
)
program(
    "retention_seq",
    A8,
    retention,
    lambda r: tuple(W(r, 2, 1024, 32, scale=0.3) for _ in range(3)),
    (P(None, "a"),) * 3,
    P(None, "a"),
    1e-3,
)


def _depths(r):
    return (W(r, 8, 256, 64, scale=1), W(r, 64), [W(r, 64, 256), W(r, 256, 64)])


program("mixture_of_depths_dp", D8, depths, _depths, (P("data"), P(), P()), P("data"), 1e-3)
program("mixture_of_depths_seq", D8, depths, _depths, (P(None, "data"), P(), P()), P(None, "data"), 1e-3)


def _chunks(r):
    return (W(r, 64, 1024), W(r, 1024, 64, scale=1), ids(r, 1024))


program(
    "chunked_xent_vocab",
    M8,
    chunked_xent,
    _chunks,
    (P(None, "model"), P(), P()),
    (P(None, "model"), P()),
    1e-3,
)
program("chunked_xent_dp", D8, chunked_xent, _chunks, (P(), P("data"), P("data")), P(), 1e-3)
program(
    "chunked_xent_2d",
    D2M4,
    chunked_xent,
    _chunks,
    (P(None, "model"), P("data"), P("data")),
    (P(None, "model"), P()),
    1e-3,
)


def _albert(r):
    return ([W(r, 128, 512), W(r, 512, 128)], W(r, 256, 128, scale=1))


program(
    "albert_tp_train",
    M8,
    sgd_step(shared_layers),
    _albert,
    ([P(None, "model"), P("model")], P()),
    ([P(None, "model"), P("model")], P()),
    1e-3,
)
program(
    "albert_fsdp_train", F8, sgd_step(shared_layers), _albert, (P("fsdp"), P("fsdp")), (P("fsdp"), P()), 1e-3
)


def _cache(r):
    return (
        W(r, 4, 512, 8, 16, scale=1),
        W(r, 4, 1, 8, 16, scale=1),
        W(r, 4, 1, 8, 16, scale=1),
        np.int32(700),
    )


program("ring_cache_seq", A8, cached_ring, _cache, (P(None, "a"), P(), P(), P()), (P(), P(None, "a")), 1e-3)
program(
    "ring_cache_heads",
    A8,
    cached_ring,
    _cache,
    (P(None, None, "a"), P(), P(), P()),
    (P(), P(None, None, "a")),
    1e-3,
)
program(
    "penalised_vocab",
    M8,
    penalised,
    lambda r: (W(r, 16, 4096, scale=1), ids(r, 16, 32, hi=4096), jax.random.PRNGKey(1)),
    (P(None, "model"), P(), P()),
    P(),
)
program(
    "speculative_vocab",
    M8,
    verified,
    lambda r: (
        W(r, 8, 5, 2048, scale=1),
        W(r, 8, 4, 2048, scale=1),
        ids(r, 8, 4, hi=2048),
        jax.random.PRNGKey(1),
    ),
    (P(None, None, "model"), P(None, None, "model"), P(), P()),
    P(),
)
program(
    "prefix_seq",
    A8,
    prefixed,
    lambda r: (W(r, 8, 64), W(r, 64, 192), W(r, 4, 128, 64, scale=1)),
    (P(), P(), P(None, "a")),
    P(None, "a"),
    1e-3,
)
