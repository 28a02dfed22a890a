"""Sharded checkpoints restore under another layout and another mesh."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import Layout, LayoutError, MeshError, SpmdError, checkpoint

ONE = spmd.create_mesh([("a", 4), ("b", 2)])
TWO = spmd.create_mesh([("x", 2), ("y", 4)])
X = np.arange(64, dtype=np.float32).reshape(8, 8)


@pytest.fixture
def saved(tmp_path):
    tree = {"w": spmd.copy_to_mesh(X, Layout(["a", "b"], ONE)), "n": jnp.int32(7)}
    checkpoint.save(tmp_path / "state", tree)
    return tmp_path / "state", tree


@pytest.mark.parametrize("dims", [["x", "y"], ["y", None], [None, ("x", "y")], [None, None]])
def test_another_layout_and_mesh(saved, dims):
    path, tree = saved
    layouts = {"w": Layout(dims, TWO), "n": Layout([], TWO)}
    out = checkpoint.restore(path, tree, layouts)
    assert jax.tree.map(spmd.fetch_layout, out) == layouts
    np.testing.assert_array_equal(out["w"], X)
    assert out["n"] == 7


def test_fewer_devices(saved):
    path, tree = saved
    mesh = spmd.create_mesh([("c", 2)], devices=jax.devices()[2:4])
    out = checkpoint.restore(path, tree, {"w": Layout(["c", None], mesh), "n": None})
    assert out["w"].sharding.device_set == set(jax.devices()[2:4])
    np.testing.assert_array_equal(out["w"], X)


def test_without_layouts_it_lies_as_the_example(saved):
    path, tree = saved
    out = checkpoint.restore(path, tree)
    assert out["w"].sharding == tree["w"].sharding
    shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)
    np.testing.assert_array_equal(checkpoint.restore(path, shapes)["w"], X)


def test_specs(saved):
    path, tree = saved
    with spmd.default_mesh(TWO):
        out = checkpoint.restore(path, tree, {"w": P("y"), "n": NamedSharding(TWO.to_jax(), P())})
    assert spmd.fetch_layout(out["w"]) == Layout(["y", None], TWO)


def test_keys_small_types_and_empty_arrays(tmp_path):
    tree = {
        "keys": jax.random.split(jax.random.key(1), 8),
        "half": jnp.arange(8, dtype=jnp.bfloat16),
        "none": jnp.zeros((0, 3)),
        "flag": np.bool_(True),
    }
    checkpoint.save(tmp_path / "t", tree)
    layouts = {"keys": Layout(["x"], TWO), "half": Layout(["y"], TWO), "none": None, "flag": None}
    out = checkpoint.restore(tmp_path / "t", tree, layouts)
    assert out["keys"].dtype == tree["keys"].dtype and out["half"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(jax.random.key_data(out["keys"]), jax.random.key_data(tree["keys"]))
    np.testing.assert_array_equal(out["half"].astype("float32"), np.arange(8))
    assert out["none"].shape == (0, 3) and out["flag"]


def test_mistakes(saved, tmp_path):
    path, tree = saved
    with pytest.raises(SpmdError, match="already; give overwrite=True"):
        checkpoint.save(path, tree)
    checkpoint.save(path, {"w": tree["w"] + 1, "n": tree["n"]}, overwrite=True)
    np.testing.assert_array_equal(checkpoint.restore(path, tree)["w"], X + 1)
    with pytest.raises(SpmdError, match="there is no checkpoint"):
        checkpoint.restore(tmp_path / "other", tree)
    with pytest.raises(SpmdError, match="structure of `like`"):
        checkpoint.restore(path, {"v": tree["w"]})
    with spmd.default_mesh(TWO), pytest.raises(LayoutError, match=r"layouts\['w'\].*no axis 'q'"):
        checkpoint.restore(path, tree, {"w": P("q"), "n": None})
    with pytest.raises(MeshError, match="names no mesh"):
        checkpoint.restore(path, tree, {"w": P("x"), "n": None})
