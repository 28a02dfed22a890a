"""What programs send at sizes that an axis doesn't divide, beside sizes that it divides: no operand is gathered for that."""

import jax
import jax.numpy as jnp
import pytest

import spmd_compiler as spmd
from tests.variants import lowered

from .uneven_programs import PROGRAMS

DEVICES, SIZE = 4, 32
MESH = spmd.create_mesh({"a": DEVICES}, abstract=True)
SLAB = (SIZE // DEVICES) * SIZE * 4  # a block of f32[32,32]

# Where blocks of what is read and of what is made begin at other places, and by how much: bytes allowed on top
SHIFTED = {
    "concatenate": SLAB,
    "merge": 8 * SLAB,
    "split": 3 * SLAB,
    "regroup": 3 * SLAB,
    "associative scan": 2 * SLAB,
    "dynamic update": SLAB,
}


def on(dim, rank):
    return spmd.Layout(["a" if d == dim else None for d in range(rank)], MESH)


def sent(name, size, dim):
    """Bytes, with arguments and results sharded along `dim`; a sum stands for the results outside."""
    fun, args = PROGRAMS[name](size, size, size)

    def program(*args):
        results = jax.tree.leaves(fun(*(spmd.relayout(x, on(dim, x.ndim)) for x in args)))
        pinned = [spmd.relayout(x, on(dim, x.ndim)) for x in results]
        return sum(jnp.sum(jnp.abs(x.astype(jnp.float32))) for x in pinned)

    return spmd.spmd_jit(program, mesh=MESH, in_layouts=None).lower(*args).comm_bytes()


@pytest.mark.filterwarnings("ignore:.*discards the imaginary part")
@pytest.mark.parametrize("dim", (0, 1))
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_lean_as_where_it_divides(name, dim):
    even, uneven = sent(name, SIZE, dim), sent(name, SIZE - 1, dim)
    assert uneven <= 1.05 * even + SHIFTED.get(name, 0) + 128


def test_rows_stay_where_they_are_when_half_the_devices_have_none():
    """Of 32 rows over 16 devices 16 are left, then 8: neighbours' rows are sent, not all of them (Shardy sends 29,248
    bytes)."""
    assert lowered("conv_spatial_fwd~many1", 11).comm_bytes() <= 14_000
