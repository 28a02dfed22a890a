"""Ops that work on each element of a sharded batch by itself: nothing needs to be sent."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .registry import Program, bug, normal


@bug("openxla/xla#47945", what="grouped convolution, batch sharded", sent=0, data=8)
def grouped_convolution() -> Program:
    def f(x, w):
        return lax.conv_general_dilated(
            x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=2
        )

    args = normal(16, 8, 8, 8), normal(3, 3, 4, 8, seed=1)
    return Program(f, args, (P("data"), P()), P("data"))


@bug("openxla/xla#24", "jax-ml/jax#15680", what="fft, batch sharded", sent=0, x=8)
def batched_fft() -> Program:
    return Program(jnp.fft.fft, (normal(16, 1024),), (P("x"),), P("x"))


# two dims transformed after one transposition there and one back
@bug("jax-ml/jax#16909", what="fft of three dims, one of them sharded", sent=2 * 7 / 8 * 16**3, x=8)
def fft_of_three_dims() -> Program:
    x = (normal(16, 16, 16) + 1j * normal(16, 16, 16, seed=1)).astype(np.complex64)
    return Program(jnp.fft.fftn, (x,), (P(None, "x"),), P(None, "x"))


@bug("jax-ml/jax#20683", what="vmap of cholesky, batch sharded", sent=0, x=8)
def batched_cholesky() -> Program:
    x = normal(16, 8, 8)
    x = x @ x.transpose(0, 2, 1) + 8 * np.eye(8, dtype=np.float32)
    return Program(jax.vmap(jnp.linalg.cholesky), (x,), (P("x"),), P("x"))


@bug("jax-ml/jax#26379", what="eigenvalues, batch sharded", sent=0, batch=8)
def batched_eig() -> Program:
    def f(x):
        return jnp.sort(jnp.abs(jnp.linalg.eigvals(x)), -1)

    return Program(f, (normal(8, 16, 16),), (P("batch"),), P("batch"), tol=1e-3)


@bug("jax-ml/jax#33230", what="vmap of a matrix inverse, batch sharded", sent=0, i=8)
def batched_inverse() -> Program:
    x = normal(16, 5, 5) + 5 * np.eye(5, dtype=np.float32)
    return Program(jax.vmap(jnp.linalg.inv), (x,), (P("i"),), P("i"), tol=1e-4)


@bug("jax-ml/jax#20381", what="each row of a sharded batch shuffled", sent=0, dp=8)
def shuffled_rows() -> Program:
    def f(key, x):
        keys = jax.random.split(jax.random.wrap_key_data(key), x.shape[0])
        return jax.vmap(jax.random.permutation)(keys, x)

    return Program(f, (np.array([0, 3], np.uint32), normal(24, 256, 4)), (P(), P("dp")), P("dp"))


# three all-to-alls of the block
@bug("openxla/xla#24", what="fft of one dim, sharded", sent=3 * 7 / 8 * 4096 * 8 / 8, x=8)
def fft_of_one_dim() -> Program:
    x = (normal(4096) + 1j * normal(4096, seed=1)).astype(np.complex64)
    return Program(jnp.fft.fft, (x,), (P("x"),), P("x"))
