"""Slices and updates at traced starts, also out of range; slices, pads and concatenations along a sharded dim."""

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .registry import Program, bug, normal


@bug("openxla/xla#49118", what="dynamic_update_slice whose start is beyond the last one", sent=0, x=2)
def update_out_of_range() -> Program:
    def f(x, update, start):
        return lax.dynamic_update_slice(x, update, [jnp.int32(0), start])

    args = np.arange(64 * 64, dtype=np.int32).reshape(64, 64), np.full((64, 1), 99, np.int32), np.int32(64)
    return Program(f, args, (P(None, "x"), P(), P()), P(None, "x"))


@bug("openxla/xla#49122", what="dynamic_slice whose start is beyond the last one", sent=0, x=2)
def slice_out_of_range() -> Program:
    def f(x, start):
        return lax.dynamic_slice(x, [jnp.int32(0), start], (2, 6))

    args = np.arange(16, dtype=np.int32).reshape(2, 8), np.int32(7)
    return Program(f, args, (P(), P()), P(None, "x"))


# rows instead of columns by an all-to-all, and back
@bug(
    "openxla/xla#49122",
    what="dynamic_slice of a sharded dim whose start is beyond the last one",
    sent=7 / 8 * 64 * (64 + 48) * 4 / 8,
    x=8,
)
def sharded_slice_out_of_range() -> Program:
    def f(x, start):
        return lax.dynamic_slice(x, [jnp.int32(0), start], (64, 48))

    return Program(f, (normal(64, 64), np.int32(63)), (P(None, "x"), P()), P(None, "x"))


# two rolls of one row per device
@bug("jax-ml/jax#39301", what="concatenations of negative pads, one row a device", sent=2 * 256 * 4, d=4)
def concatenated_negative_pads() -> Program:
    def f(x):
        def cropped(low, high):
            return lax.pad(x, 0.0, [(low, high, 0), (0, 0, 0)])

        return lax.concatenate([cropped(-3, 0), cropped(0, -1)], 0) + lax.concatenate(
            [cropped(-1, 0), cropped(0, -3)], 0
        )

    return Program(f, (normal(4, 256),), (P("d"),), P("d"))


# its 1 and 3 rows; the latter lie across two blocks for some
@bug(
    "jax-ml/jax#24576",
    what="concatenation of two arrays along their sharded dim",
    sent=(1 + 3 + 1) * 256 * 4,
    data=4,
    model=2,
)
def concatenated_sharded() -> Program:
    args = normal(4, 256), normal(12, 256, seed=1)
    return Program(lambda x, y: jnp.concatenate([x, y]), args, (P("data"), P("data")), P("data"))


@bug(
    "jax-ml/jax#19106",
    what="concatenation of a replicated array and a sharded one",
    sent=256 * 4,
    data=4,
    model=2,
)
def concatenated_with_replicated() -> Program:
    args = normal(2, 256), normal(10, 256, seed=1)
    return Program(lambda x, y: jnp.concatenate([x, y]), args, (P(), P("model")), P("model"))


# the neighbour's edge of 3 rows
@bug("jax-ml/jax#15773", what="roll by a constant", sent=3 * 64 * 4, x=8)
def rolled() -> Program:
    return Program(lambda x: jnp.roll(x, 3, 0), (normal(64, 64),), (P("x"),), P("x"))


# the neighbour's first row
@bug("jax-ml/jax#18434", what="array shifted by one by an update, then its last row set", sent=16 * 4, x=8)
def shifted_by_update() -> Program:
    def f(x, value):
        shifted = x.at[:-1, :].set(x[1:, :])
        return shifted.at[-1, :].set(jnp.ones(x.shape[1]) * value)

    return Program(f, (normal(16, 16), np.float32(1.456)), (P("x", None), P()), P("x", None))


@bug("jax-ml/jax#23052", what="update of rows at constant places", sent=0, x=8)
def update_at_constant_rows() -> Program:
    args = normal(64, 64), normal(3, 64, seed=1)
    return Program(lambda x, u: x.at[0:3].set(u), args, (P("x"), P()), P("x"))


@bug("tenstorrent/tt-mlir#4799", what="every second element of a sharded dim", sent=0, batch=8)
def strided_slice() -> Program:
    def f(x):
        return x[:, :, 1::2]

    return Program(f, (normal(4, 16, 64),), (P(None, None, "batch"),), P(None, None, "batch"))


@bug("jax-ml/jax#39100", what="pieces padded one by one, concatenated, taken apart again", sent=16128, d=4)
def padded_pieces() -> Program:
    def padded(x):
        return jnp.concatenate([jnp.pad(x[2 * k : 2 * (k + 1)], ((1, 2), (0, 0))) for k in range(4)])

    def compact(x):
        return jnp.concatenate([x[5 * k + 1 : 5 * k + 3] for k in range(4)])

    def f(x, z):
        return compact(padded(x) * z) + compact(padded(compact(z)))

    return Program(f, (normal(8, 256), normal(20, 256, seed=1)), (P("d"), P("d")), P("d"))


# one row, reduced from its owner to all
@bug("openxla/xla#44796", what="one layer of a stack sharded by layers", sent=2 * 7 / 8 * 64 * 64 * 4, x=8)
def layer_of_sharded_stack() -> Program:
    def f(stack, i):
        return lax.dynamic_index_in_dim(stack, i, 0, keepdims=False)

    return Program(f, (normal(16, 64, 64), np.int32(11)), (P("x"), P()), P())


@bug("jax-ml/jax#35896", what="arange of 64-bit numbers, sharded", sent=0, x=8)
def arange_64_bits() -> Program:
    def f():
        return jnp.arange(64, dtype=jnp.int64), jnp.arange(64, dtype=jnp.float64)

    return Program(f, (), (), (P("x"), P("x")), x64=True)


@bug("jax-ml/jax#40232", what="random.normal, sharded", sent=0, x=8)
def random_normal() -> Program:
    def f(key):
        return jax.random.normal(jax.random.wrap_key_data(key), (496, 8))

    return Program(f, (np.array([0, 7], np.uint32),), (P(),), P("x"))


# columns instead of rows by an all-to-all, and back
@bug("jax-ml/jax#15773", what="roll by a traced shift", sent=2 * 7 / 8 * 64 * 64 * 4 / 8, x=8)
def rolled_by_traced_shift() -> Program:
    return Program(lambda x, s: jnp.roll(x, s, 0), (normal(64, 64), np.int32(37)), (P("x"), P()), P("x"))


# by one block, two, and four, as the bits of the shift say, and by a part of a block
@bug("jax-ml/jax#15773", what="roll of one dim by a traced shift", sent=4 * 4096 * 4 / 8, x=8)
def row_rolled_by_traced_shift() -> Program:
    return Program(lambda x, s: jnp.roll(x, s), (normal(4096), np.int32(2500)), (P("x"), P()), P("x"))


# columns instead of planes by an all-to-all, and the sums
@bug(
    "EnzymeAD/Reactant.jl#1176",
    what="a plane of a sharded dim appended to it, which then divides no more",
    sent=3 / 4 * 8 * 8 * (2 + 1) * 4 + 0,
    x=4,
)
def plane_appended() -> Program:
    def f(x):
        return jnp.sin(jnp.concatenate([x, x[:, :, :1]], 2)).sum(2)

    return Program(f, (normal(8, 8, 8),), (P(None, None, "x"),), P())


# blocks of the interior begin three rows later: three rows from the neighbour, and back
@bug("EnzymeAD/Enzyme-JAX#596", what="interior of an array with halos updated", sent=2 * 3 * 64 * 4, x=8)
def interior_updated() -> Program:
    def f(x, u):
        return lax.dynamic_update_slice(x, 2 * x[3:-3] + u, (3, 0))

    return Program(f, (normal(64, 64), normal(64, seed=1)), (P("x"), P()), P("x"))


@bug("jax-ml/jax#23052", what="scatter of rows of a sharded array, as lax has it", sent=0, x=4)
def scatter_of_rows() -> Program:
    def f(x, rows, u):
        how = lax.ScatterDimensionNumbers((1,), (0,), (0,))
        return lax.scatter(x, rows, u, how)

    args = normal(16, 8), np.array([[0], [1], [2]], np.int32), normal(3, 8, seed=1)
    return Program(f, args, (P("x"), P(), P()), P("x"))
