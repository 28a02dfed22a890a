"""Meshes on which the types of arrays say how they lie, as `jax.make_mesh` makes them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

JAX_MESH = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Explicit,) * 2)
AUTO = jax.make_mesh((4, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2)
X = np.random.RandomState(0).rand(16, 8).astype(np.float32)


def on(spec, mesh=JAX_MESH):
    return jax.device_put(X, NamedSharding(mesh, spec))


def fun(x):
    return jnp.tanh(x @ x.T) @ x  # ambiguous for types


WANT = np.tanh(X @ X.T) @ X


def check(y, mesh=JAX_MESH):
    np.testing.assert_allclose(y, WANT, rtol=1e-4)
    assert y.sharding.mesh == mesh


@pytest.mark.parametrize("given", [None, JAX_MESH, spmd.Mesh.from_jax(JAX_MESH)], ids=["own", "jax", "spmd"])
@pytest.mark.parametrize("spec", [P("a"), P("a", "b"), P(("b", "a")), P()], ids=str)
def test_results_go_with_arguments(given, spec):
    x = on(spec)
    step = spmd.spmd_jit(fun, mesh=given)
    for y in (step(x), step.lower(x).compile()(x)):
        check(y)
        np.testing.assert_allclose(y + step(x), 2 * WANT, rtol=1e-4)
        with jax.set_mesh(JAX_MESH):
            assert jax.typeof(y + 1) == jax.typeof(y)
    assert step(step(x)).sharding.mesh == JAX_MESH


def test_one_function_on_both_kinds_of_mesh():
    step = spmd.spmd_jit(fun)
    for mesh in (JAX_MESH, AUTO, JAX_MESH):
        check(step(on(P("a"), mesh)), mesh)


def test_within_other_transformations():
    step, x = spmd.spmd_jit(fun, out_layouts=P("a", "b")), on(P("a", "b"))
    with jax.set_mesh(JAX_MESH):
        check(jax.jit(lambda x: step(x))(x))
        check(jax.jit(lambda x: step(x) + 0 * x, out_shardings=P("b"))(x))
        slope = jax.jit(jax.grad(lambda x: (step(x) * x).sum()))(x)
        np.testing.assert_allclose(slope, jax.grad(lambda x: (fun(x) * x).sum())(X), rtol=1e-3)
        both = jax.vmap(step)(jnp.stack([x, 2 * x]))
    np.testing.assert_allclose(both[0], WANT, rtol=1e-4)


def named(x, w):
    """The result lies as it says; so does the type of what comes before."""
    y = jnp.einsum("ij,kj->ik", jnp.tanh(x), w, out_sharding=P("b"))
    assert jax.typeof(y).sharding.spec == P("b", None)
    return {
        "y": jax.sharding.reshard(y * 2, P(None, "a")),
        "z": x.sum(1) + jnp.zeros(16, out_sharding=P("a")),
    }


def test_functions_that_name_types():
    x, w = on(P("a", "b")), X[:8]
    want = {"y": 2 * np.tanh(X) @ w.T, "z": X.sum(1)}
    step = spmd.spmd_jit(named)
    given = spmd.spmd_jit(
        named, mesh=JAX_MESH, in_layouts=(P("a", "b"), P()), out_layouts={"y": P(), "z": None}
    )
    with jax.set_mesh(JAX_MESH):
        within = jax.jit(lambda x, w: step(x, w))(x, w)
        slope = spmd.spmd_jit(jax.grad(lambda x: named(x, w)["y"].sum()))(x)
    for got, spec in ((step(x, w), P(None, "a")), (given(X, w), P()), (within, P(None, "a"))):
        assert got["y"].sharding.is_equivalent_to(NamedSharding(JAX_MESH, spec), 2)
        assert got["z"].sharding.is_equivalent_to(NamedSharding(JAX_MESH, P("a")), 1)
        jax.tree.map(lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4), got, want)
    np.testing.assert_allclose(slope, 2 * (1 - np.tanh(X) ** 2) * w.sum(0), rtol=1e-4)
    assert "all_reduce over b" in step.lower(x, w).explain()
    abstract = spmd.Mesh.from_jax(JAX_MESH.abstract_mesh)
    structs = [jax.ShapeDtypeStruct(v.shape, v.dtype) for v in (x, w)]
    lowered = spmd.spmd_jit(named, mesh=abstract, in_layouts=P("a")).lower(*structs)
    assert lowered.out_layouts["y"].specs == (None, "a")


def test_functions_that_bring_types_along():
    """Arrays from outside, and a manual region over the mesh."""
    x, there = on(P("a")), on(P(None, "b"))

    def manual(x):
        inside = jax.shard_map(lambda x: jax.lax.psum(x, "a"), mesh=JAX_MESH, in_specs=P("a"), out_specs=P())
        return inside(x) * 2

    for run, want in (
        (lambda x: jnp.sin(x) + 2 * there, np.sin(X) + 2 * X),
        (manual, 2 * X.reshape(4, 4, 8).sum(0)),
    ):
        with jax.set_mesh(JAX_MESH):
            within = jax.jit(lambda x, run=run: spmd.spmd_jit(run)(x))(x)
        for y in (spmd.spmd_jit(run)(x), within):
            np.testing.assert_allclose(y, want, rtol=1e-5)
            assert y.sharding.mesh == JAX_MESH


def test_what_types_forbid_stays_an_error():
    def contradicts(x):
        return jnp.zeros((16, 8), out_sharding=P("b")) + x

    with pytest.raises(Exception, match=r"[Ss]harding"):
        spmd.spmd_jit(contradicts)(on(P("a")))
    with pytest.raises(ValueError, match=r"AxisType\.Auto"):
        spmd.spmd_jit(contradicts)(on(P("a"), AUTO))


@pytest.mark.parametrize("mesh", [JAX_MESH, AUTO], ids=["explicit", "auto"])
def test_the_mesh_of_the_context(mesh):
    step = spmd.spmd_jit(fun, in_layouts=P("a"))
    with jax.set_mesh(mesh):
        check(step(X), mesh)
        np.testing.assert_allclose(jax.jit(lambda x: step(x))(X), WANT, rtol=1e-4)
    with pytest.raises(spmd.MeshError, match="no mesh"):
        step(X)


def test_pieces_of_axes_do_not_leave():
    """On a mesh of the user's there are none."""

    def cut(x):
        return x.reshape(2, 8, 8).swapaxes(0, 1) * 2

    for mesh, split in ((AUTO, True), (JAX_MESH, False)):
        y = spmd.spmd_jit(cut)(on(P("a"), mesh))
        np.testing.assert_array_equal(y, cut(X))
        assert (y.sharding.mesh != mesh) == split


def test_relayout():
    layout = spmd.Layout.from_jax(NamedSharding(JAX_MESH, P("b", "a")), 2)
    assert layout.to_jax() == NamedSharding(JAX_MESH, P("b", "a"))
    x = on(P("a"))
    assert spmd.relayout(x, layout).sharding == layout.to_jax()
    step = spmd.spmd_jit(lambda x: spmd.relayout(fun(x), P("b", "a")))
    assert step(x).sharding == layout.to_jax()
    with jax.set_mesh(JAX_MESH):
        assert jax.jit(lambda x: spmd.relayout(x, layout))(x).sharding == layout.to_jax()
