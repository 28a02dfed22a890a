"""Fourier transforms, random numbers, recurrences."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, sgd_step
from benchmarks.zoo.registry import A8, AB, FREE

from .registry import program


def complex_numbers(r, *shape):
    return (W(r, *shape, scale=1) + 1j * W(r, *shape, scale=1)).astype(np.complex64)


# ---- fft
program("fft3_pencil", A8, jnp.fft.fftn, lambda r: (complex_numbers(r, 32, 32, 32),), (P("a"),))
program("ifft_dim", A8, jnp.fft.ifft, lambda r: (complex_numbers(r, 64, 1024),), (P(None, "a"),))
program(
    "rfft2_rows",
    A8,
    lambda x: jnp.abs(jnp.fft.rfft2(x)),
    lambda r: (W(r, 256, 256, scale=1),),
    (P("a"),),
    tol=1e-3,
)
program(
    "fft_conv",
    A8,
    lambda x, k: jnp.fft.irfft2(jnp.fft.rfft2(x) * jnp.fft.rfft2(k), s=(256, 256)),
    lambda r: (W(r, 256, 256, scale=1), W(r, 256, 256, scale=1)),
    (P("a"), P("a")),
    P("a"),
    tol=1e-3,
)
program(
    "spectral_poisson",
    AB,
    lambda x: jnp.real(
        jnp.fft.ifft2(jnp.fft.fft2(x) / (1.0 + jnp.arange(256)[:, None] ** 2 + jnp.arange(256)[None] ** 2))
    ),
    lambda r: (W(r, 256, 256, scale=1),),
    (P("a", "b"),),
    P("a", "b"),
    tol=1e-3,
)
# ---- random
program(
    "dropout_train",
    [("data", 8)],
    sgd_step(
        lambda w, k, x, y: jnp.mean(
            (jax.nn.relu(x @ w) * jax.random.bernoulli(jax.random.wrap_key_data(k), 0.9, (1024, 512)) - y)
            ** 2
        )
    ),
    lambda r: (
        W(r, 256, 512),
        np.array([1, 2], np.uint32),
        W(r, 1024, 256, scale=1),
        W(r, 1024, 512, scale=1),
    ),
    (P(), P(), P("data"), P("data")),
    (P(), FREE),
)
program(
    "init_params",
    AB,
    lambda k: [jax.random.normal(kk, (512, 512)) for kk in jax.random.split(jax.random.wrap_key_data(k), 3)],
    lambda r: (np.array([1, 2], np.uint32),),
    (P(),),
    [P("a", "b")] * 3,
)
program(
    "random_uniform_uneven",
    A8,
    lambda k: jax.random.uniform(jax.random.wrap_key_data(k), (1000, 333)),
    lambda r: (np.array([1, 2], np.uint32),),
    (P(),),
    None,
)
program(
    "permutation",
    A8,
    lambda k, x: x[jax.random.permutation(jax.random.wrap_key_data(k), 4096)],
    lambda r: (np.array([1, 2], np.uint32), W(r, 4096, 64, scale=1)),
    (P(), P("a")),
    P("a"),
)
program(
    "mc_pi",
    A8,
    lambda k: jnp.mean(
        jax.vmap(lambda k: (jax.random.uniform(k, (2,)) ** 2).sum() < 1)(
            jax.random.split(jax.random.wrap_key_data(k), 8192)
        )
    ),
    lambda r: (np.array([1, 2], np.uint32),),
    (P(),),
)


# ---- rnn
def gru(p, xs, h):
    def cell(h, x):
        zr = jax.nn.sigmoid(x @ p["wx"] + h @ p["wh"])
        z, r_ = jnp.split(zr, 2, -1)
        n = jnp.tanh(x @ p["wn"] + (r_ * h) @ p["un"])
        h = (1 - z) * n + z * h
        return h, h

    return lax.scan(cell, h, xs)[1]


program(
    "gru_dp_train",
    [("data", 8)],
    sgd_step(lambda p, x, y: jnp.mean((gru(p, x, jnp.zeros((32, 128))) - y) ** 2)),
    lambda r: (
        {"wx": W(r, 64, 256), "wh": W(r, 128, 256), "wn": W(r, 64, 128), "un": W(r, 128, 128)},
        W(r, 16, 32, 64, scale=1),
        W(r, 16, 32, 128, scale=1),
    ),
    ({"wx": P(), "wh": P(), "wn": P(), "un": P()}, P(None, "data"), P(None, "data")),
    ({"wx": P(), "wh": P(), "wn": P(), "un": P()}, FREE),
    tol=1e-3,
)
program(
    "gru_tp_fwd",
    [("model", 8)],
    lambda p, x, h: gru(p, x, h),
    lambda r: (
        {"wx": W(r, 64, 256), "wh": W(r, 128, 256), "wn": W(r, 64, 128), "un": W(r, 128, 128)},
        W(r, 16, 32, 64, scale=1),
        np.zeros((32, 128), np.float32),
    ),
    (
        {"wx": P(None, "model"), "wh": P(None, "model"), "wn": P(None, "model"), "un": P(None, "model")},
        P(),
        P(),
    ),
    tol=1e-3,
)
program(
    "ssm_scan",
    [("data", 2), ("model", 4)],
    lambda a, b, x: lax.scan(
        lambda h, t: (a * h + b * t[..., None], (a * h + b * t[..., None]).sum(-1)),
        jnp.zeros((8, 256, 16)),
        x,
    )[1],
    lambda r: (r.rand(256, 16).astype(np.float32), W(r, 256, 16, scale=1), W(r, 32, 8, 256, scale=1)),
    (P("model"), P("model"), P(None, "data", "model")),
)
program(
    "linear_attention",
    [("data", 2), ("seq", 4)],
    lambda q, k, v: (lambda kv: jnp.einsum("bsk,bskv->bsv", q, kv))(
        jnp.cumsum(jnp.einsum("bsk,bsv->bskv", k, v), 1)
    ),
    lambda r: (W(r, 4, 256, 16, scale=1), W(r, 4, 256, 16, scale=1), W(r, 4, 256, 16, scale=1)),
    (P("data", "seq"),) * 3,
    P("data", "seq"),
    tol=1e-3,
)
program(
    "rnn_tp_train",
    [("model", 8)],
    sgd_step(
        lambda p, x, y: jnp.mean(
            (
                lax.scan(lambda h, t: (jnp.tanh(t @ p["wx"] + h @ p["wh"]), None), jnp.zeros((32, 256)), x)[0]
                - y
            )
            ** 2
        )
    ),
    lambda r: (
        {"wx": W(r, 64, 256), "wh": W(r, 256, 256)},
        W(r, 16, 32, 64, scale=1),
        W(r, 32, 256, scale=1),
    ),
    ({"wx": P(None, "model"), "wh": P(None, "model")}, P(), P()),
    ({"wx": P(None, "model"), "wh": P(None, "model")}, FREE),
    tol=1e-3,
)
