"""What users may give for meshes, layouts and options, and what they are told of what they may not."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import checkpoint

MESH = spmd.create_mesh([("data", 4), ("model", 2)])
JAX_MESHES = [MESH.to_jax(), jax.make_mesh((4, 2), ("data", "model"))]
X = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.mark.parametrize("mesh", JAX_MESHES, ids=["auto", "explicit"])
def test_meshes_may_be_those_of_jax(mesh):
    assert spmd.Layout(["data"], mesh) == spmd.Layout(["data"], MESH)
    assert spmd.Layout.replicated(mesh, 2).mesh == MESH
    spmd.barrier(mesh)
    with spmd.default_mesh(mesh) as default:
        assert default == MESH
        y = spmd.spmd_jit(lambda x: x * 2, in_layouts=P("data"))(X)
        made = spmd.call_with_layout(jnp.ones, P("data"), (8, 8))
    np.testing.assert_array_equal(y, X * 2)
    assert y.sharding.spec == made.sharding.spec == P("data")


def test_devices_may_be_an_array():
    assert (
        spmd.create_mesh([("data", 4), ("model", 2)], devices=np.array(jax.devices()).reshape(4, 2)) == MESH
    )
    assert spmd.create_mesh([("a", np.int64(8))]).shape == {"a": 8}


@pytest.mark.parametrize("like", [P("data"), NamedSharding(MESH.to_jax(), P("data"))])
def test_layouts_of_dtensor_calls_may_be_those_of_jax(like):
    blocks = [X[2 * k : 2 * k + 2] for k in (0, 0, 1, 1, 2, 2, 3, 3)]
    with spmd.default_mesh(MESH):
        packed = spmd.pack(blocks, like)
        made = spmd.call_with_layout(lambda: jnp.asarray(X), like)
        copied = spmd.copy_to_mesh({"x": X, "n": X[0]}, like)
    for x in (packed, made, copied["x"]):
        np.testing.assert_array_equal(x, X)
        spmd.check_layout(x, like)
        with pytest.raises(spmd.LayoutError, match="not in"):
            spmd.check_layout(x, P("model"))


def test_axes_of_one_device_are_kept_in_results():
    mesh = spmd.create_mesh({"data": 8, "model": 1})
    layout = spmd.Layout(["data", "model"], mesh)
    lowered = spmd.spmd_jit(lambda x: x * 2, mesh=mesh, in_layouts=layout, out_layouts=layout).lower(X)
    assert lowered.out_layouts == layout
    y = lowered.compile()(spmd.relayout(X, layout))
    spmd.check_layout(y, layout)
    np.testing.assert_array_equal(y, X * 2)


def test_static_arguments_that_are_equal_but_of_other_types():
    g = spmd.spmd_jit(lambda x, n: jnp.asarray(n), mesh=MESH, static_argnums=1)
    assert [g(X, n).dtype for n in (1, 1.0, True, 1)] == [np.int32, np.float32, np.bool_, np.int32]


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype")
def test_wide_arrays_where_types_are_narrow():
    with jax.enable_x64(True):
        wide = jnp.arange(8, dtype=jnp.float64)
    f = lambda x: x + 1  # noqa: E731
    got, want = spmd.spmd_jit(f, mesh=MESH, in_layouts=P("data"))(wide), jax.jit(f)(wide)
    np.testing.assert_array_equal(got, want)
    assert got.dtype == want.dtype


def test_specs_with_unreduced_axes():
    def f(x):
        return spmd.relayout(x @ x, P("data", unreduced={"model"})) * 2

    lowered = spmd.spmd_jit(f, mesh=MESH, in_layouts=P(None, "model")).lower(X)
    assert "| +model" in lowered.as_text("propagate")
    np.testing.assert_allclose(
        lowered.compile()(spmd.relayout(X, spmd.Layout([None, "model"], MESH))), X @ X * 2
    )


def test_checkpoints_of_one_array_and_of_keys(tmp_path):
    checkpoint.save(tmp_path / "array", X)
    np.testing.assert_array_equal(checkpoint.restore(tmp_path / "array", X), X)
    key = jax.random.key(3)
    checkpoint.save(tmp_path / "keys", {"key": key})
    found = checkpoint.restore(tmp_path / "keys", jax.eval_shape(lambda: {"key": key}))
    assert found["key"].dtype == key.dtype
    np.testing.assert_array_equal(jax.random.key_data(found["key"]), jax.random.key_data(key))


def partial(kind, dtype):
    layout = spmd.Layout([None, None], MESH, partial={"model": kind})
    return spmd.spmd_jit(lambda x: spmd.relayout(x, layout), mesh=MESH).lower(X.astype(dtype))


def within_shard_map(f):
    return jax.shard_map(f, mesh=JAX_MESHES[0], in_specs=P("data"), out_specs=P("data"))(X)


MISTAKES = {
    "an axis that is a number": (lambda: spmd.Layout([0], MESH), spmd.LayoutError, "0 is no axis"),
    "no specs": (lambda: spmd.Layout(None, MESH), spmd.LayoutError, "a list with a spec per dim"),
    "no mesh": (lambda: spmd.Layout(["data"], "m"), spmd.MeshError, "'m' is no mesh"),
    "an unconstrained dim": (lambda: spmd.Layout([P.UNCONSTRAINED], MESH), spmd.LayoutError, "is no axis"),
    "a list of partials": (lambda: spmd.Layout([None], MESH, partial=["data"]), spmd.LayoutError, "a dict"),
    "a negative rank": (lambda: spmd.Layout.replicated(MESH, -1), spmd.LayoutError, "0 dims or more"),
    "a dim that is not there": (
        lambda: spmd.Layout(["data"], MESH).delete(3),
        spmd.LayoutError,
        "none of which is 3",
    ),
    "a local shape": (
        lambda: spmd.Layout(["data"], MESH).global_shape_from_local_shape((1, 2)),
        spmd.LayoutError,
        "has 1 dims",
    ),
    "a stored shape": (lambda: spmd.Layout(["data"], MESH).stored((1, 2)), spmd.LayoutError, "has 1 dims"),
    "half a device": (lambda: spmd.create_mesh([("a", 8.7)]), spmd.MeshError, "no integer"),
    "a size as text": (lambda: spmd.create_mesh([("a", "8")]), spmd.MeshError, "no integer"),
    "axes without sizes": (
        lambda: spmd.create_mesh(["data", "model"]),
        spmd.MeshError,
        "pairs of a name and a size",
    ),
    "a number of devices": (lambda: spmd.create_mesh([("a", 8)], devices=8), spmd.MeshError, "jax.devices"),
    "numbers of devices": (
        lambda: spmd.create_mesh([("a", 2)], devices=[0, 1]),
        spmd.MeshError,
        "jax.devices",
    ),
    "a default that is no mesh": (lambda: spmd.default_mesh(3).__enter__(), spmd.MeshError, "3 is no mesh"),
    "a copy to nowhere": (lambda: spmd.copy_to_mesh(X, None), spmd.LayoutError, "give a layout"),
    "names that are none": (
        lambda: spmd.spmd_jit(abs, static_argnames=1),
        spmd.ArgumentError,
        "static_argnames",
    ),
    "fewer rounds than none": (lambda: spmd.Options(sweeps=-1), spmd.ArgumentError, "sweeps=-1"),
    "memory as text": (lambda: spmd.Options(memory_limit="1G"), spmd.ArgumentError, "memory_limit='1G'"),
    "no time": (lambda: spmd.Options(time_limit=0), spmd.ArgumentError, "time_limit=0"),
    "hardware as a number": (lambda: spmd.Options(hardware=3), spmd.ArgumentError, "no hardware 3"),
    "rings perhaps": (lambda: spmd.Options(collective_matmul="yes"), spmd.ArgumentError, "collective_matmul"),
    "links without bandwidth": (
        lambda: spmd.Hardware("slow", {"default": 1e9}, 1e9, 0.0, 1e-6, 1e9),
        spmd.ArgumentError,
        "positive",
    ),
    "nothing to import": (
        lambda: spmd.from_stablehlo(None),
        spmd.ArgumentError,
        "a NoneType is no StableHLO",
    ),
    "bits of floats": (lambda: partial("and", np.float32), spmd.LayoutError, "float32 has no and"),
    "the larger of complex numbers": (lambda: partial("max", np.complex64), spmd.LayoutError, "no max"),
    "a program in a shard_map": (
        lambda: within_shard_map(spmd.spmd_jit(lambda x: x, mesh=MESH)),
        spmd.MeshError,
        "within jax.shard_map",
    ),
    "relayout in a shard_map": (
        lambda: within_shard_map(lambda x: spmd.relayout(x, spmd.Layout(["model", None], MESH))),
        spmd.MeshError,
        "within jax.shard_map",
    ),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_are_told(what):
    make, error, text = MISTAKES[what]
    with pytest.raises(error, match=text):
        make()
