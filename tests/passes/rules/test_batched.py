"""Kernels of linear algebra: batches shard, evenly or not, and so do right-hand sides."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
RNG = np.random.RandomState(0)
SQUARE = (RNG.randn(6, 4, 4) + 4 * np.eye(4)).astype(np.float32)
SIDES = RNG.randn(6, 4, 8).astype(np.float32)


def symmetric(x):
    return x @ jnp.swapaxes(x, -1, -2) + jnp.eye(x.shape[-1])


# each gives what is unique: singular vectors, say, are only so up to signs
KERNELS = {
    "cholesky": lambda x: jnp.linalg.cholesky(symmetric(x)),
    "eig": lambda x: jnp.sort(jnp.abs(jnp.linalg.eigvals(x)), -1),
    "eigh": lambda x: jnp.linalg.eigh(symmetric(x))[0],
    "svd": lambda x: jnp.linalg.svd(x)[1],
    "qr": lambda x: jnp.abs(jnp.linalg.qr(x)[1]),
    "lu": lax.linalg.lu,
    "schur": lambda x: jnp.abs(lax.linalg.schur(x)[0]).sum((-1, -2)),
    "hessenberg": lax.linalg.hessenberg,
    "tridiagonal": lambda x: lax.linalg.tridiagonal(symmetric(x))[1],
    "householder_product": lambda x: lax.linalg.householder_product(x, x[..., 0]),
    "determinant": jnp.linalg.det,
}


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shape", [(8, 4, 4), (3, 2, 4, 4), (4, 4)], ids=str)
def test_batches(name, shape):
    """Three batches don't divide four devices: one has nothing but padding, on which a kernel must end all the same."""
    x = np.resize(SQUARE, shape)
    spec = P("a", "b") if len(shape) == 4 else P("a")
    where = NamedSharding(MESH.to_jax(), spec)

    def f(x):
        return KERNELS[name](lax.with_sharding_constraint(x * 2, where))

    step = spmd.spmd_jit(f, mesh=MESH, in_layouts=P())
    want = jax.jit(KERNELS[name])(2 * x)
    for got, exact in zip(jax.tree.leaves(step(x)), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(got, exact, rtol=1e-3, atol=1e-3)
    told = step.lower(x).explain()
    if len(shape) == 2:
        assert "fallback: custom_call @lapack_" in told  # one matrix has nothing to share out
    else:
        assert "fallback:" not in told and "custom_call reads the whole" not in told
        assert "all_gather" not in told or shape[0] == 3


SOLVERS = {
    "triangular_left": lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
    "triangular_right": lambda a, b: jnp.swapaxes(
        lax.linalg.triangular_solve(a, jnp.swapaxes(b, -1, -2), lower=True, transpose_a=True), -1, -2
    ),
    "triangular_unit": lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, unit_diagonal=True),
    "lu": jnp.linalg.solve,
    "cholesky": lambda a, b: jax.scipy.linalg.cho_solve((a, True), b),
    "tridiagonal": lambda a, b: lax.linalg.tridiagonal_solve(a[..., 0], a[..., 1] + 5, a[..., 2], b),
    "orthogonal": lambda a, b: lax.linalg.ormqr(a, a[..., 0], b),
}


@pytest.mark.parametrize("name", SOLVERS)
@pytest.mark.parametrize(
    "dtype, specs",
    [
        ("float32", (P(), P(None, None, "a"))),
        ("complex64", (P("b"), P("b", None, "a"))),
        ("float32", (P("b"), P(None, None, ("a", "b")))),
    ],
)
def test_right_hand_sides_are_not_gathered(name, dtype, specs):
    a, b = SQUARE.astype(dtype), SIDES.astype(dtype)
    if dtype == "complex64":
        a, b = a * (1 + 0.2j), b * 1j
    step = spmd.spmd_jit(SOLVERS[name], mesh=MESH, in_layouts=specs, out_layouts=specs[1])
    lowered = step.lower(a, b)
    assert "all_gather" not in {c.kind for c in lowered.collectives() if c.bytes_per_device >= 6 * 4 * 8}
    if specs[1] != P(None, None, ("a", "b")):
        assert lowered.collectives() == []
    np.testing.assert_allclose(step(a, b), jax.jit(SOLVERS[name])(a, b), rtol=1e-3, atol=1e-3)


def test_terms_of_a_sum_are_solved():
    """The solution is linear in the right-hand sides: their terms are summed once, where the result leaves."""

    def f(a, w, x):
        return lax.linalg.triangular_solve(a, w @ x, left_side=True, lower=True)

    a, w = SQUARE[0], SIDES[0]
    x = np.ascontiguousarray(SIDES[1].T)
    step = spmd.spmd_jit(f, mesh=MESH, in_layouts=(P(), P(None, "a"), P("a")), out_layouts=P(None, "a"))
    assert [c.kind for c in step.lower(a, w, x).collectives()] == ["reduce_scatter"]
    np.testing.assert_allclose(step(a, w, x), np.linalg.solve(np.tril(a), w @ x), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("find", [lax.approx_max_k, lax.approx_min_k], ids=lambda f: f.__name__)
@pytest.mark.parametrize("spec", [P("a"), P(None, "a"), P("b", "a"), P(("b", "a"))], ids=str)
def test_approximate_top_k(find, spec):
    x = RNG.permutation(8 * 30).reshape(8, 30).astype(np.float32)
    for options in ({}, {"reduction_dimension": 0}):
        step = spmd.spmd_jit(lambda x, o=options: find(x, 3, **o), mesh=MESH, in_layouts=spec)
        for got, want in zip(step(x), jax.jit(lambda x, o=options: find(x, 3, **o))(x), strict=True):
            np.testing.assert_array_equal(got, want)
        assert "fallback:" not in step.lower(x).explain()
