"""Programs for TPUs scatter along first dims: tried here on CPU devices that are taken for such."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.ir.exporter import export_module, export_text
from spmd_compiler.partitioned import Partitioned

MESH = {"a": 4, "b": 2}


def weights_gradient(spec):
    """[H,K,D], a partial sum that leaves in the layout `spec`."""
    return spmd.spmd_jit(
        lambda x, q: jnp.einsum("bsd,bshk->hkd", x, q),
        mesh=spmd.create_mesh(MESH),
        in_layouts=(P(("a", "b")), P(("a", "b"))),
        out_layouts=spec,
    )


@pytest.mark.parametrize("spec", [P(None, None, ("a", "b")), P(None, "b", "a"), P("a", "b"), P()])
def test_same_numbers(spec, monkeypatch):
    monkeypatch.setattr(Partitioned, "on_tpu", True)
    rng = np.random.default_rng(0)
    x, q = rng.normal(size=(64, 32, 16)).astype("f"), rng.normal(size=(64, 32, 4, 6)).astype("f")
    lowered = weights_gradient(spec).lower(x, q)
    np.testing.assert_allclose(lowered.compile()(x, q), np.einsum("bsd,bshk->hkd", x, q), atol=1e-3)


def test_where_they_scatter():
    x, q = jax.ShapeDtypeStruct((64, 32, 16), "f"), jax.ShapeDtypeStruct((64, 32, 4, 6), "f")
    lowered = weights_gradient(P(None, None, ("a", "b"))).lower(x, q)
    assert [c.kind for c in lowered.collectives()] == ["reduce_scatter"]
    module = lowered.stages["optimize"]
    assert "scatter_dimension = 2" in export_text(module)
    text = str(export_module(module, scatter_first=True))
    assert "scatter_dimension = 0" in text and "scatter_dimension = 2" not in text
    assert "(tensor<16x4x6xf32>) -> tensor<2x4x6xf32>" in text
