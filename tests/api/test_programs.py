"""Programs under generated layouts compute what `jax.jit` computes on one device."""

import zlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESHES = [[("a", 2), ("b", 2), ("c", 2)], [("a", 4), ("b", 2)], [("a", 8)], [("a", 1), ("b", 8)]]


def attention(q, k, v):
    s = jnp.einsum("bshk,bthk->bhst", q, k) / 4
    mask = jnp.arange(s.shape[-1])[:, None] >= jnp.arange(s.shape[-1])
    return jnp.einsum("bhst,bthk->bshk", jax.nn.softmax(jnp.where(mask, s, -1e9), -1), v)


def xent(logits, labels):
    picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)


def scan_mlp(ws, x):
    return lax.scan(lambda h, w: (jnp.tanh(h @ w), h.sum()), x, ws)


def accumulate(w, xs):
    def body(c, x):
        return c + jax.grad(lambda w: jnp.mean((x @ w) ** 2))(w), None

    return lax.scan(body, jnp.zeros_like(w), xs)[0]


def conv(x, w):
    y = lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return lax.reduce_window(jax.nn.relu(y), -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


F, I = "float32", "int32"  # noqa: E741
PROGRAMS = {
    "matmul": (lambda a, b: a @ b, [(F, (8, 16)), (F, (16, 24))]),
    "matmul_grad": (
        lambda a, b: jax.grad(lambda a, b: jnp.sum(jnp.tanh(a @ b)), (0, 1))(a, b),
        [(F, (8, 16)), (F, (16, 8))],
    ),
    "mean_var": (lambda x: (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(0) + 1), [(F, (8, 16))]),
    "reduce_max_min_prod": (
        lambda x: (x.max(0), x.min(1), x.prod(0), (x > 0).any(1), (x > 0).all()),
        [(F, (8, 16))],
    ),
    "argmax": (lambda x: (jnp.argmax(x, 0), jnp.argmin(x, 1)), [(F, (8, 16))]),
    "reshape": (lambda x: jnp.sin(x.reshape(32, 24)) @ jnp.ones((24, 3)), [(F, (8, 4, 24))]),
    "reshape_split": (lambda x: jnp.sin(x.reshape(2, 16, 8)).sum(-1), [(F, (32, 8))]),
    "transpose": (lambda x: x.transpose(2, 0, 1) * 2, [(F, (8, 4, 16))]),
    "slices": (lambda x: x[1:] - x[:-1], [(F, (16, 8))]),
    "pads": (lambda x: jnp.pad(x, ((1, 2), (0, 3))), [(F, (16, 8))]),
    "concat_flip": (lambda x, y: jnp.concatenate([x, y[::-1]], 0), [(F, (16, 8)), (F, (8, 8))]),
    "uneven": (lambda x, w: jnp.tanh(x[:, :13]) @ w[:13] + x[:13].sum(), [(F, (16, 16)), (F, (16, 8))]),
    "attention": (attention, [(F, (4, 8, 8, 16))] * 3),
    "embed": (lambda t, i: t[i], [(F, (32, 16)), (I, (8, 4), 32)]),
    "embed_grad": (
        lambda t, i: jax.grad(lambda t: jnp.sum(jnp.sin(t[i])))(t),
        [(F, (32, 16)), (I, (8, 4), 32)],
    ),
    "xent": (lambda lg, lab: jax.value_and_grad(xent)(lg, lab), [(F, (8, 4, 32)), (I, (8, 4), 32)]),
    "scan": (scan_mlp, [(F, (4, 16, 16)), (F, (8, 16))]),
    "scan_grad": (
        lambda ws, x: jax.grad(lambda ws, x: jnp.sum(scan_mlp(ws, x)[0]))(ws, x),
        [(F, (4, 16, 16)), (F, (8, 16))],
    ),
    "accumulate": (accumulate, [(F, (8, 8)), (F, (4, 16, 8))]),
    "while": (
        lambda x: lax.while_loop(lambda c: jnp.sum(c) < 1e4, lambda c: c * 1.5 + 1, jnp.abs(x)),
        [(F, (8, 8))],
    ),
    "cond": (lambda x: lax.cond(x.sum() > 0, lambda v: v @ v.T, lambda v: v @ v.T * 2 + 1, x), [(F, (8, 8))]),
    "conv": (conv, [(F, (8, 8, 8, 4)), (F, (3, 3, 4, 8))]),
    "conv_grad": (
        lambda x, w: jax.grad(lambda x, w: jnp.sum(conv(x, w) ** 2), (0, 1))(x, w),
        [(F, (8, 8, 8, 4)), (F, (3, 3, 4, 8))],
    ),
    "sort": (lambda x: (jnp.sort(x, -1), lax.top_k(x, 3)), [(F, (8, 16))]),
    "cumsum": (lambda x: jnp.cumsum(x, 0), [(F, (16, 8))]),
    "random": (lambda k: jax.random.normal(jax.random.wrap_key_data(k), (16, 8)), [("uint32", (2,))]),
    "linalg": (
        lambda a: jnp.linalg.cholesky(a @ a.transpose(0, 2, 1) + 5 * jnp.eye(4)),
        [(F, (8, 4, 4))],
    ),
    "fft": (lambda x: jnp.fft.fft(x), [("complex64", (8, 16))]),
    "dynamic": (
        lambda x, i: lax.dynamic_update_slice(x, lax.dynamic_slice_in_dim(x, i, 4, 0) * 2, (i + 1, 0)),
        [(F, (16, 8)), (I, (), 9)],
    ),
    "bf16": (lambda a, b: a @ b, [("bfloat16", (8, 16)), ("bfloat16", (16, 8))]),
    "ints": (lambda a, b: (a @ b, a // 3, (a % 5) ^ 3), [(I, (8, 8), 50), (I, (8, 8), 50)]),
}


def make(kind, shape, high=None, *, rng):
    if high is not None:
        return rng.randint(0, high, shape).astype(kind)
    if kind == "uint32":
        return np.arange(1, 3, dtype=np.uint32)
    x = rng.randn(*shape)
    if kind == "complex64":
        x = x + 1j * rng.randn(*shape)
    return np.asarray(jnp.asarray(x, kind))


def random_spec(shape, mesh, rng):
    """Axes on dims that they divide, sometimes two on one."""
    axes = [n for n, _ in mesh if rng.rand() < 0.8]
    rng.shuffle(axes)
    sizes = dict(mesh)
    dims = [[] for _ in shape]
    for axis in axes:
        fits = [
            d
            for d, n in enumerate(shape)
            if n % (sizes[axis] * int(np.prod([sizes[a] for a in dims[d]]))) == 0
        ]
        if fits:
            dims[fits[rng.randint(len(fits))]].append(axis)
    return P(*(tuple(d) if d else None for d in dims))


def close(got, want):
    for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        g, w = np.asarray(g), np.asarray(w)
        assert g.shape == w.shape and g.dtype == w.dtype
        tol = 5e-2 if w.dtype.name == "bfloat16" else 2e-4
        np.testing.assert_allclose(g.astype("complex128"), w.astype("complex128"), rtol=tol, atol=tol)


# the even meshes for one program, the odd ones for the next
CASES = [(name, mesh) for k, name in enumerate(PROGRAMS) for mesh in MESHES[k % 2 :: 2]]


@pytest.mark.parametrize("name,mesh", CASES, ids=lambda x: x if isinstance(x, str) else "")
def test_equal_to_jit(name, mesh):
    fun, kinds = PROGRAMS[name]
    rng = np.random.RandomState(zlib.crc32(f"{name}{mesh}".encode()))
    args = [make(*k, rng=rng) for k in kinds]
    want = jax.jit(fun)(*args)
    specs = tuple(random_spec(np.shape(a), mesh, rng) for a in args)
    step = spmd.spmd_jit(fun, mesh=spmd.create_mesh(mesh), in_layouts=specs)
    close(step(*args), want)
