"""Programs of every op family at sizes (n, m, k), whatever these are."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .windowed import sample

Arrays = Sequence[np.ndarray]
# sizes -> (function, arguments)
Program = Callable[[int, int, int], tuple[Callable[..., Any], Arrays]]


def whole_numbers(*shape: int, high: int = 50) -> np.ndarray:
    return np.random.RandomState(1).randint(0, high, shape).astype(np.int32)


def indices(size: int, *shape: int) -> np.ndarray:
    """Some of them out of range, on either side, and some twice."""
    return np.random.RandomState(2).randint(-size - 3, size + 3, shape).astype(np.int32)


def same_shape(fun: Callable[..., Any]) -> Program:
    return lambda n, m, k: (fun, (sample(n, m), sample(n, m)[::-1].copy()))


def unary(fun: Callable[..., Any]) -> Program:
    return lambda n, m, k: (fun, (sample(n, m),))


def cube(fun: Callable[..., Any]) -> Program:
    return lambda n, m, k: (fun, (sample(n, m, k),))


def image(fun: Callable[..., Any], kernel: Sequence[int]) -> Program:
    """NHWC, with n and m the spatial sizes."""
    return lambda n, m, k: (fun, (sample(2, n, m, 4), sample(*kernel)))


def convolve(x: Any, w: Any, strides: Sequence[int] = (1, 1), padding: Any = "SAME", **options: Any) -> Any:
    return lax.conv_general_dilated(
        x, w, strides, padding, dimension_numbers=("NHWC", "HWIO", "NHWC"), **options
    )


def pool(
    x: Any, init: float, combine: Any, window: Any, strides: Any, padding: Any = "SAME", **o: Any
) -> Any:
    return lax.reduce_window(x, np.asarray(init, x.dtype), combine, window, strides, padding, **o)


def many_reductions(x: Any) -> Any:
    some = (x.max(0, initial=-1), x.min(1, initial=1), x.prod(0), (x > 0).any(1), (x > 0).all())
    start = np.float32(3 if x.shape[0] != 1 else 0)  # XLA leaves it out over a dim of size 1
    return *some, x.sum(), lax.reduce(x, start, lax.add, (0,)), jnp.var(x + 1, 1, keepdims=True)


def softmax_loss(x: Any, labels: Any) -> Any:
    def loss(x: Any) -> Any:
        picked = jnp.take_along_axis(x, labels[:, None], 1, mode="clip")
        return jnp.sum(jax.nn.logsumexp(x, -1) - picked[:, 0])

    return jax.value_and_grad(loss)(x)


def windows_max(x: Any) -> Any:
    return pool(x, -np.inf, lax.max, (3, 2), (2, 1))


def scan_rows(x: Any, w: Any) -> Any:
    return lax.scan(lambda h, row: (jnp.tanh(h + row @ w), h.sum()), jnp.zeros(w.shape[1]), x)


def grow(x: Any) -> Any:
    return lax.while_loop(
        lambda c: (jnp.sum(abs(c[0])) < 1e3) & (c[1] < 9),
        lambda c: (jnp.roll(c[0], 1, 0) * 2 + 1, c[1] + 1),
        (x, 0),
    )


def positive(x: Any) -> Any:
    return jnp.einsum("bij,bkj->bik", x, x) + 5 * jnp.eye(x.shape[1])


def batched(fun: Callable[[Any, Any], Any]) -> Program:
    """A batch of n matrices."""
    return lambda n, m, k: (lambda x, y: fun(positive(x), y), (sample(n, 3, 3), sample(n, 3, m)))


def keys(fun: Callable[[Any, int, int], Any]) -> Program:
    def program(n: int, m: int, k: int) -> tuple[Callable[..., Any], Arrays]:
        return lambda seed: fun(jax.random.wrap_key_data(seed), n, m), (np.array([7, 9], np.uint32),)

    return program


def looked_up(fun: Callable[..., Any]) -> Program:
    return lambda n, m, k: (fun, (sample(n, m), indices(n, k)))


def updated(fun: Callable[..., Any]) -> Program:
    return lambda n, m, k: (fun, (sample(n, m), indices(n, k), sample(k, m)))


def at_place(fun: Callable[..., Any]) -> Program:
    return lambda n, m, k: (fun, (sample(n, m), np.int32(n // 2), np.int32(m)))


# any sizes, 0 and 1 among them
ANY: dict[str, Program] = {
    "elementwise": same_shape(
        lambda x, y: (x * y + 1, jnp.where(x > y, x, -y), jnp.clip(x, y, 1), jnp.exp(x))
    ),
    "broadcast": lambda n, m, k: (lambda x, y: x[:, None] * y - x.sum(), (sample(n, k), sample(m, k))),
    "bool": same_shape(lambda x, y: ((x > 0) ^ (y > 0), ~(x > 0), (x > y).sum(0))),
    "bfloat16": same_shape(lambda x, y: (x.astype("bfloat16") + 1, x.astype("bfloat16").max(0, initial=0))),
    "complex": same_shape(
        lambda x, y: (lax.complex(x, y).sum(0), abs(lax.complex(x, y)), lax.complex(x, y).T)
    ),
    "integers": lambda n, m, k: (
        lambda x, y: (x @ y, x // 3, (x % 5) ^ 3, x.sum(1)),
        (whole_numbers(n, k), whole_numbers(k, m)),
    ),
    "rank 1": lambda n, m, k: (lambda x: (jnp.outer(x, x), x @ x, x[::-1]), (sample(n),)),
    "rank 6": lambda n, m, k: (
        lambda x: (x.sum((1, 4)), x.transpose(5, 3, 1, 0, 2, 4), x[:, :, 1:] * 2),
        (sample(2, n, 2, m, 1, k),),
    ),
    "reduce": unary(many_reductions),
    "argmax of any": lambda n, m, k: (
        lambda x: (jnp.argmax(x, 0), jnp.argmin(x, 1)),
        (sample(n or 1, m or 1),),
    ),
    "softmax": unary(lambda x: jax.nn.softmax(x, 0) + jax.nn.softmax(x, 1)),
    "loss": lambda n, m, k: (softmax_loss, (sample(n, m or 1), indices(m, n))),
    "dot": lambda n, m, k: (lambda x, y: x @ y, (sample(n, k), sample(k, m))),
    "dot batch": lambda n, m, k: (
        lambda x, y: jnp.einsum("bij,bjk->kbi", x, y),
        (sample(k, n, 3), sample(k, 3, m)),
    ),
    "dot gradient": lambda n, m, k: (
        jax.grad(lambda x, y: jnp.sum(jnp.tanh(x @ y)), (0, 1)),
        (sample(n, k), sample(k, m)),
    ),
    "pad": unary(lambda x: lax.pad(x, np.float32(7), [(2, 1, 0), (0, 3, 2)])),
    "pad wrap": cube(lambda x: jnp.pad(x, ((1, 2), (0, 0), (3, 0)), constant_values=2)),
    "slice": unary(lambda x: (x[1:] - x[:-1], x[::2], x[:, 1:-1:3], x[2:3])),
    "concatenate": lambda n, m, k: (
        lambda x, y: (jnp.concatenate([x, y, x]), jnp.concatenate([y, y], 1)),
        (sample(n, m), sample(k, m)),
    ),
    "reverse": unary(lambda x: (x[::-1], x[:, ::-1] + x, jnp.flip(x))),
    "roll": unary(lambda x: (jnp.roll(x, 1, 0), jnp.roll(x, -2, 1), jnp.roll(x, (3, 1), (0, 1)))),
    "tile": unary(lambda x: (jnp.tile(x, (2, 3)), jnp.repeat(x, 2, 0), jnp.stack([x, -x], 1))),
    "triangle": unary(lambda x: (jnp.tril(x), jnp.triu(x, 1), jnp.diff(x, axis=0))),
    "transpose": cube(lambda x: (x.transpose(2, 0, 1) * 2, jnp.moveaxis(x, 0, 1))),
    "merge": cube(
        lambda x: (x.reshape(-1) * 2, x.reshape(x.shape[0] * x.shape[1], x.shape[2]), jnp.ravel(x.T))
    ),
    "split": lambda n, m, k: (lambda x: jnp.sin(x.reshape(n, m, k)), (sample(n * m * k),)),
    "regroup": lambda n, m, k: (lambda x: x.reshape(n, m * k) + x.reshape(n, k * m), (sample(n * m, k),)),
    "shift by reshape": cube(lambda x: x.reshape(x.shape[1], x.shape[0], x.shape[2])),
    "cumulative": unary(
        lambda x: (jnp.cumsum(x, 0), jnp.cumprod(x, 1), lax.cummax(x, 0), lax.cumlogsumexp(x, 1))
    ),
    "cumulative reverse": unary(lambda x: (lax.cumsum(x, 0, reverse=True), lax.cummin(x, 1, reverse=True))),
    "associative scan": unary(lambda x: lax.associative_scan(lambda a, b: a * b + b, x)),
    "sort": unary(lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1), jnp.sort(x, 1, descending=True))),
    "sort pairs": same_shape(lambda x, y: lax.sort((jnp.round(x), y), dimension=0, num_keys=1)),
    "searchsorted": lambda n, m, k: (
        lambda x, y: jnp.searchsorted(jnp.sort(x), y),
        (sample(n or 1), sample(m, k)),
    ),
    "top_k": lambda n, m, k: (lambda x: lax.top_k(x, min(n, 3)), (sample(m, n),)),
    "unique": lambda n, m, k: (
        lambda x: jnp.unique(x, size=4, fill_value=0),
        (whole_numbers(n or 1, high=6),),
    ),
    "fft": unary(lambda x: x if 0 in x.shape else (jnp.fft.fft(x), jnp.fft.rfft(x, axis=0), jnp.fft.fft2(x))),
    "inverse fft": unary(lambda x: x if 0 in x.shape else jnp.fft.irfft(jnp.fft.rfft(x), n=x.shape[1])),
    "cholesky": batched(lambda a, y: jnp.linalg.cholesky(a)),
    "triangular solve": batched(lambda a, y: lax.linalg.triangular_solve(a, y, left_side=True, lower=True)),
    "solve": batched(lambda a, y: jnp.linalg.solve(a, y)),
    "eigenvalues": batched(lambda a, y: (jnp.linalg.eigvalsh(a), jnp.linalg.svd(a, compute_uv=False))),
    "qr": batched(lambda a, y: abs(jnp.linalg.qr(a)[1])),
    "scan": lambda n, m, k: (scan_rows, (sample(n, m), sample(m, k))),
    "scan gradient": lambda n, m, k: (
        jax.grad(lambda x, w: scan_rows(x, w)[0].sum(), (0, 1)),
        (sample(n, m), sample(m, k)),
    ),
    "while": unary(grow),
    "cond": unary(lambda x: lax.cond(x.sum() > 0, lambda v: v @ v.T, lambda v: v @ v.T * 2 + 1, x)),
    "cond on one": unary(lambda x: lax.cond(x.sum() > 0, lambda v: jnp.roll(v, 1, 0), lambda v: v[::-1], x)),
    "map": unary(lambda x: lax.map(lambda row: jnp.cumsum(row), x)),
    "normal": keys(lambda key, n, m: jax.random.normal(key, (n, m))),
    "split keys": keys(
        lambda key, n, m: jax.vmap(lambda k: jax.random.uniform(k, (m,)))(jax.random.split(key, n))
    ),
    "permutation": keys(lambda key, n, m: jax.random.permutation(key, jnp.arange(n * 2).reshape(n, 2))),
    "randint": keys(lambda key, n, m: jax.random.randint(key, (n, m), 0, 9)),
    "to bytes": unary(lambda x: lax.bitcast_convert_type(x, np.uint8)),
    "from bytes": lambda n, m, k: (
        lambda x: lax.bitcast_convert_type(x, np.int32),
        (whole_numbers(n, m, 4, high=256).astype(np.uint8),),
    ),
    "same bits": unary(lambda x: lax.bitcast_convert_type(x, np.int32) + 1),
    "iota": unary(lambda x: x + jnp.arange(x.shape[1]) + lax.broadcasted_iota(np.float32, x.shape, 0)),
    "one hot": lambda n, m, k: (lambda i: jax.nn.one_hot(i, m), (indices(m, n),)),
}

# n and m of 1 and more
POSITIVE: dict[str, Program] = {
    "convolution": image(convolve, (3, 3, 4, 2)),
    "convolution strided": image(lambda x, w: convolve(x, w, (2, 3)), (3, 2, 4, 2)),
    "convolution dilated": image(
        lambda x, w: convolve(x, w, (1, 2), [(3, 2), (1, 4)], lhs_dilation=(2, 1), rhs_dilation=(1, 2)),
        (3, 2, 4, 2),
    ),
    "convolution grouped": image(lambda x, w: convolve(x, w, feature_group_count=2), (3, 3, 2, 6)),
    "convolution wide": image(convolve, (7, 5, 4, 2)),
    "convolution by features": lambda n, m, k: (
        lambda x, w: convolve(x, w),
        (sample(m, 3, 3, n), sample(2, 2, n, k + 1)),
    ),
    "convolution gradients": image(
        jax.grad(lambda x, w: (convolve(x, w, (2, 1)) ** 2).sum(), (0, 1)), (3, 3, 4, 2)
    ),
    "max pool": unary(windows_max),
    "mean pool": unary(lambda x: pool(x, 0, lax.add, (4, 3), (1, 2), window_dilation=(1, 2))),
    "dilated pool": unary(lambda x: pool(x, 1, lax.mul, (2, 3), (1, 1), "SAME", base_dilation=(2, 1))),
    "pool gradient": unary(jax.grad(lambda x: (windows_max(x) ** 2).sum())),
    "min pool gradient": unary(jax.grad(lambda x: (pool(x, np.inf, lax.min, (2, 3), (1, 2)) ** 2).sum())),
    "gather": looked_up(lambda x, i: (x[i], x.at[i].get(mode="fill", fill_value=3), x[i, 0], x[:, i % 2])),
    "gather clipped": looked_up(
        lambda x, i: (jnp.take(x, i, 0, mode="clip"), jnp.take(x, i, 1, mode="wrap"))
    ),
    "gather windows": looked_up(
        lambda x, i: jax.vmap(lambda j: lax.dynamic_slice(x, (j, 0), (1, x.shape[1])))(i)
    ),
    "take along": lambda n, m, k: (
        lambda x, i: (jnp.take_along_axis(x, i, 1), jnp.take_along_axis(x, i, 0, mode="clip")[:, :1]),
        (sample(n, m), whole_numbers(n, m, high=min(n, m))),
    ),
    "scatter add": updated(lambda x, i, y: (x.at[i].add(y), x.at[i].add(y, mode="clip"))),
    "scatter max": updated(lambda x, i, y: (x.at[i].max(y), x.at[i].multiply(y, mode="drop"))),
    "scatter set": lambda n, m, k: (
        lambda x, i, y: x.at[i].set(y),
        (
            sample(n, m),
            np.random.RandomState(3).permutation(n + 2)[:k].astype(np.int32),
            sample(min(k, n + 2), m),
        ),
    ),
    "scatter columns": lambda n, m, k: (
        lambda x, i, y: x.at[:, i].add(y),
        (sample(n, m), indices(m, k), sample(n, k)),
    ),
    "histogram": lambda n, m, k: (lambda i: jnp.bincount(i, length=n), (whole_numbers(m, high=n),)),
    "segments": lambda n, m, k: (
        lambda x, i: jax.ops.segment_sum(x, i, n),
        (sample(m, k), whole_numbers(m, high=n)),
    ),
    "embedding gradient": looked_up(jax.grad(lambda x, i: jnp.sin(x[i]).sum())),
    "dynamic slice": at_place(
        lambda x, i, j: (
            lax.dynamic_slice_in_dim(x, i, x.shape[0] // 2, 0),
            lax.dynamic_slice(x, (i, j), (1, 1)),
        )
    ),
    "dynamic update": at_place(
        lambda x, i, j: lax.dynamic_update_slice(x, 2 * x[: (x.shape[0] + 1) // 2, :1], (i, j))
    ),
    "dynamic row": at_place(lambda x, i, j: x.at[i].set(x[i] * 2) + x[j % 2]),
    "loop of rows": at_place(
        lambda x, i, j: lax.fori_loop(0, x.shape[0], lambda r, c: c.at[r].add(c[r - 1] * 0.5), x)
    ),
}
PROGRAMS = {**ANY, **POSITIVE}
