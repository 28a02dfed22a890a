"""Pallas kernels, and composites: ops that somebody else implements."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from jax.sharding import AbstractDevice
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
X = np.random.RandomState(0).randn(8, 16).astype(np.float32)


def kernel(x_ref, o_ref):
    o_ref[...] = jnp.sin(x_ref[...]) * 2


def whole(x, **options):
    return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype), **options)(x)


def in_blocks(x, **options):
    block = pl.BlockSpec((x.shape[0] // 2, x.shape[1]), lambda i: (i, 0))
    return whole(x, grid=(2,), in_specs=[block], out_specs=block, **options)


def mapped(call, mesh, spec, axes, **options):
    def f(x):
        inner = jax.shard_map(
            lambda x: call(x, **options),
            mesh=mesh.to_jax(),
            in_specs=spec,
            out_specs=spec,
            axis_names=axes,
            check_vma=False,
        )
        return inner(x + 1) * 2

    return f


@pytest.mark.parametrize("call", [whole, in_blocks], ids=lambda f: f.__name__)
@pytest.mark.parametrize("axes, spec", [({"a", "b"}, P("b", "a")), ({"b"}, P("b"))], ids=["manual", "auto"])
@pytest.mark.parametrize("layout", [P("a"), P("b"), P(None, ("a", "b"))], ids=str)
def test_pallas_in_shard_map(call, axes, spec, layout):
    step = spmd.spmd_jit(mapped(call, MESH, spec, axes, interpret=True), mesh=MESH, in_layouts=layout)
    np.testing.assert_allclose(step(X), np.sin(X + 1) * 4, rtol=1e-5)
    assert "fallback:" not in step.lower(X).explain()


DEVICES = {
    "tpu_custom_call": (AbstractDevice("TPU v5e", 1, "tpu"), None),
    "__gpu$xla.gpu.triton": (AbstractDevice("NVIDIA H100", 132, "gpu"), plt.CompilerParams()),
}


@pytest.mark.parametrize("target", DEVICES)
def test_kernels_for_absent_devices(target):
    """Mosaic and Triton kernels are lowered where there are no such devices; in a manual region on its blocks, outside on
    whole operands, which the report tells."""
    device, params = DEVICES[target]
    mesh = spmd.create_mesh({"a": 4, "b": 2}, abstract=True, abstract_device=device)
    assert spmd.Mesh.from_jax(mesh.to_jax()) == mesh != spmd.create_mesh(mesh.axes, abstract=True)
    f = mapped(whole, mesh, P("a", "b"), {"a", "b"}, compiler_params=params)
    x = jax.ShapeDtypeStruct((64, 1024), jnp.float32)
    lowered = spmd.spmd_jit(f, mesh=mesh, in_layouts=P("a", "b")).lower(x)
    assert lowered.explain() == "no collectives, no fallbacks"
    (call,) = [line for line in lowered.stablehlo().splitlines() if "custom_call" in line]
    assert f"@{target}(" in call and call.endswith("(tensor<16x512xf32>) -> tensor<16x512xf32>")
    bare = spmd.spmd_jit(lambda x: whole(x, compiler_params=params), mesh=mesh, in_layouts=P("a"))
    assert f"fallback: custom_call @{target} runs replicated" in bare.lower(x).explain()


def test_solvers_with_factors():
    """A number that all problems share has no batch."""
    device, _ = DEVICES["__gpu$xla.gpu.triton"]
    mesh = spmd.create_mesh({"a": 4}, abstract=True, abstract_device=device)
    x, y = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((8, 16, 4), (8, 16, 16)))
    step = spmd.spmd_jit(lambda x, y: lax.linalg.symmetric_product(x, y), mesh=mesh, in_layouts=P("a"))
    lowered = step.lower(x, y)
    assert lowered.explain() == "no collectives, no fallbacks"
    assert "@cusolver_syrk_ffi(" in lowered.stablehlo() and "tensor<2x16x4xf32>" in lowered.stablehlo()


@pytest.mark.parametrize("target", DEVICES)
def test_offloading(target):
    """What a policy keeps on the host, each device keeps of its own: no more collectives than without."""
    mesh = spmd.create_mesh({"a": 4, "b": 2}, abstract=True, abstract_device=DEVICES[target][0])
    names = {"names_which_can_be_saved": [], "names_which_can_be_offloaded": ["hidden"]}
    memories = {"offload_src": "device", "offload_dst": "pinned_host"}
    offloaded = jax.checkpoint_policies.save_and_offload_only_these_names(**names, **memories)
    w, x = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((3, 64, 64), (16, 32, 64)))

    def lowered(policy):
        @functools.partial(jax.checkpoint, policy=policy)
        def layer(h, w):
            return jnp.tanh(checkpoint_name(h @ w, "hidden")), None

        def train(w, x):
            return jax.grad(lambda w: lax.scan(layer, x, w)[0].sum())(w)

        layouts = P(None, None, "b"), P("a")
        return spmd.spmd_jit(train, mesh=mesh, in_layouts=layouts, out_layouts=layouts[0]).lower(w, x)

    kept = lowered(jax.checkpoint_policies.save_only_these_names("hidden"))
    moved = lowered(offloaded)
    assert moved.comm_bytes() <= kept.comm_bytes() and "fallback" not in moved.explain()
    placed = [line for line in moved.stablehlo().splitlines() if "@annotate_device_placement" in line]
    assert len(placed) == 2 and not any("tensor<16x" in line for line in placed)


def test_orders_of_dims_in_memory_are_for_each_device():
    from jax.experimental.layout import Layout as Order
    from jax.experimental.layout import with_layout_constraint

    step = spmd.spmd_jit(
        lambda x: with_layout_constraint(x * 2, Order((1, 0))) + 1, mesh=MESH, in_layouts=P("a", "b")
    )
    np.testing.assert_allclose(step(X), X * 2 + 1)
    lowered = step.lower(X)
    assert lowered.explain() == "no collectives, no fallbacks"
    assert "@LayoutConstraint" in lowered.stablehlo()


def test_abstract_device_is_for_abstract_meshes():
    with pytest.raises(spmd.MeshError, match="abstract=True"):
        spmd.create_mesh([("a", 8)], abstract_device=DEVICES["tpu_custom_call"][0])


def test_composites_are_partitioned_and_leave_their_name():
    inner = lax.composite(lambda x: jnp.tanh(x), name="my.activation")
    dense = lax.composite(lambda x, w: inner(x @ w), name="my.dense")

    def f(x, w):
        return dense(x, w) + lax.composite(lambda x, k: lax.top_k(x, k)[0], name="my.best")(x, k=8)

    w = np.ascontiguousarray(X.T)
    step = spmd.spmd_jit(f, mesh=MESH, in_layouts=(P("a"), P(None, "b")), out_layouts=P("a", "b"))
    np.testing.assert_allclose(step(X, w), np.tanh(X @ w) - np.sort(-X, 1)[:, :8], rtol=1e-4, atol=1e-5)
    lowered = step.lower(X, w)
    assert lowered.collectives() == []
    scopes = {op.name: op.loc.scope for op in lowered.stages["optimize"].walk()}
    assert scopes["dot_general"].startswith("my.dense/")
    assert scopes["tanh"].startswith("my.dense/my.activation/")
    assert scopes["chlo.top_k"].startswith("my.best/")
    assert "my.dense/" in lowered.compile().as_text()
