"""The public mesh and layout: construction, JAX both ways, errors."""

import copy

import jax
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import UNSHARDED, Layout, LayoutError, MeshError
from spmd_compiler.ir.layout import Layout as IrLayout


@pytest.fixture
def mesh():
    return spmd.create_mesh([("batch", 4), ("model", 2)])


class TestMesh:
    def test_a_copy_is_the_mesh_itself(self, mesh):
        layout = Layout(("batch", UNSHARDED), mesh)
        assert copy.copy(mesh) is copy.deepcopy(mesh) is copy.deepcopy(layout).mesh is mesh

    def test_pairs_and_dict_are_the_same_mesh(self, mesh):
        assert spmd.create_mesh({"batch": 4, "model": 2}) == mesh
        assert mesh.shape == {"batch": 4, "model": 2}
        assert mesh.axis_names == mesh.dim_names == ("batch", "model")
        assert (mesh.size, mesh.dim_size("model"), mesh.is_abstract) == (8, 2, False)

    def test_jax_both_ways(self, mesh):
        jax_mesh = mesh.to_jax()
        assert list(jax_mesh.devices.flat) == jax.devices()
        assert dict(jax_mesh.shape) == mesh.shape
        assert spmd.Mesh.from_jax(jax_mesh) == mesh
        assert spmd.Mesh.from_jax(jax_mesh).to_jax() == jax_mesh

    def test_abstract_meshes_of_any_size(self):
        big = spmd.create_mesh({"data": 65_536, "model": 4}, abstract=True)
        assert big.is_abstract and big.size == 262_144
        assert spmd.Mesh.from_jax(big.to_jax()) == big
        assert isinstance(big.to_jax(), jax.sharding.AbstractMesh)

    def test_order_of_devices_matters(self, mesh):
        assert spmd.create_mesh(mesh.axes, devices=jax.devices()[::-1]) != mesh

    def test_described_devices_compile_but_do_not_run(self, mesh, monkeypatch):
        monkeypatch.setattr("spmd_compiler.compat.only_compiles", lambda device: True)
        double = spmd.spmd_jit(lambda x: x * 2, mesh=mesh, in_layouts=P("batch"))
        x = np.ones(8, np.float32)
        compiled = double.lower(x).compile()
        for run in (double, compiled):
            with pytest.raises(MeshError, match=r"can.t run: the devices of .* are a topology.s description"):
                run(x)

    @pytest.mark.parametrize(
        ("axes", "devices", "message"),
        [
            ([("a", 3)], None, "3 positions, but there are 8 devices"),
            ([("a", 4), ("a", 2)], None, "'a' is given twice"),
            ([("a", 0)], None, "size 0"),
            ([("not a name", 8)], None, "letters, digits and _"),
            ([("a", 2)], "twice", "a device is given twice"),
            ([("a", 2)], "kinds", "different kinds: cpu cpu, tpu v9"),
        ],
    )
    def test_errors(self, axes, devices, message):
        class Other:
            platform, device_kind = "tpu", "v9"

        chosen = {None: None, "twice": jax.devices()[:1] * 2, "kinds": [jax.devices()[0], Other()]}[devices]
        with pytest.raises(MeshError, match=message):
            spmd.create_mesh(axes, devices=chosen)

    def test_default_mesh_nests(self, mesh):
        inner = spmd.create_mesh([("x", 8)])
        assert spmd.get_default_mesh() is None
        with spmd.default_mesh(mesh):
            with spmd.default_mesh(inner):
                assert spmd.get_default_mesh() is inner
            assert spmd.get_default_mesh() is mesh
        assert spmd.get_default_mesh() is None


class TestLayout:
    def test_specs(self, mesh):
        layout = Layout(["batch", UNSHARDED, None], mesh)
        assert layout.specs == ("batch", None, None)
        assert layout.ir is IrLayout((("batch",), (), ()))
        assert Layout([("batch", "model")], mesh).specs == (("batch", "model"),)
        assert Layout([None], mesh, partial={"model": "sum"}).partial == {"model": "sum"}

    def test_named_constructors(self, mesh):
        assert Layout.replicated(mesh, 2) == Layout([None, None], mesh)
        assert Layout.batch_sharded(mesh, "batch", 3) == Layout(["batch", None, None], mesh)
        assert Layout.batch_sharded(mesh, "batch", 3, axis=1) == Layout([None, "batch", None], mesh)
        assert Layout.inner_sharded(mesh, "model", rank=2) == Layout([None, "model"], mesh)
        assert Layout(["batch", None, "model"], mesh).delete([1]) == Layout(["batch", "model"], mesh)
        assert Layout(["batch", None, "model"], mesh).delete([-1]) == Layout(["batch", None], mesh)

    def test_shapes(self, mesh):
        layout = Layout(["batch", "model"], mesh)
        assert layout.local_shape_from_global_shape((8, 6)) == (2, 3)
        assert layout.global_shape_from_local_shape((2, 3)) == (8, 6)
        assert layout.num_shards(0) == 4
        assert not layout.is_fully_replicated()

    @pytest.mark.parametrize(
        "specs", [["batch", None], [None, ("batch", "model")], [("model", "batch"), None]]
    )
    def test_jax_both_ways(self, mesh, specs):
        layout = Layout(specs, mesh)
        assert Layout.from_jax(layout.to_jax(), 2) == layout

    def test_from_a_short_partition_spec(self, mesh):
        sharding = NamedSharding(mesh.to_jax(), P("batch"))
        assert Layout.from_jax(sharding, 3) == Layout(["batch", None, None], mesh)

    def test_sub_axes_use_a_finer_mesh(self, mesh):
        layout = Layout([("batch:(2)2",), ("batch:(1)2", "model")], mesh)
        sharding = layout.to_jax()
        assert dict(sharding.mesh.shape) == {"batch_0": 2, "batch_1": 2, "model": 2}
        assert list(sharding.mesh.devices.flat) == jax.devices()
        assert Layout.from_jax(sharding, 2) == layout
        x = jax.device_put(np.arange(32).reshape(4, 8), sharding)
        # device 4·i + 2·j + k has position 2·i + j on batch, k on model
        assert x.addressable_shards[2].index == (slice(2, 4), slice(0, 2))
        assert x.addressable_shards[5].index == (slice(0, 2), slice(6, 8))

    @pytest.mark.parametrize(
        ("specs", "partial", "message"),
        [
            (["bach"], None, "no axis 'bach'; it has batch, model"),
            (["batch", "batch"], None, "'batch' is used twice"),
            ([("batch", "batch")], None, "'batch' is used twice"),
            (["batch"], {"batch": "sum"}, "'batch' is used twice"),
            ([None], {"model": "average"}, "'average' over 'model' is not one of sum, max"),
            ([None], {"modle": "sum"}, "no axis 'modle'"),
            ("batch", None, "a list with a spec per dim"),
        ],
    )
    def test_errors(self, mesh, specs, partial, message):
        with pytest.raises(LayoutError, match=message):
            Layout(specs, mesh, partial)

    def test_what_no_named_sharding_says(self, mesh):
        with pytest.raises(LayoutError, match="partial"):
            Layout([None], mesh, partial={"model": "sum"}).to_jax()
        with pytest.raises(LayoutError, match="names no mesh axes"):
            Layout.from_jax(jax.devices()[0], 1)
        with pytest.raises(LayoutError, match="has 2 dims, but the value has 1"):
            Layout.from_jax(NamedSharding(mesh.to_jax(), P("batch", "model")), 1)
