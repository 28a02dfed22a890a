"""Programs for TPUs write collectives as their compiler keeps them: tried here on CPU devices that are taken for such."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ir, program
from spmd_compiler.passes.optimizations.tpu_forms import part_as_matrix
from spmd_compiler.passes.optimize import Optimize
from spmd_compiler.passes.pipeline import Target

MESH = {"a": 4, "b": 2}


@pytest.fixture
def tpus(monkeypatch):
    """Programs are written for TPUs, and run here."""
    compiled = program.compile_module
    monkeypatch.setattr(
        program, "compile_module", lambda *a, **k: compiled(*a, **{**k, "target": Target("tpu")})
    )


def weights_gradient(spec):
    """[H,K,D], a partial sum that leaves in the layout `spec`."""
    return spmd.spmd_jit(
        lambda x, q: jnp.einsum("bsd,bshk->hkd", x, q),
        mesh=spmd.create_mesh(MESH),
        in_layouts=(P(("a", "b")), P(("a", "b"))),
        out_layouts=spec,
    )


@pytest.mark.parametrize("spec", [P(None, None, ("a", "b")), P(None, "b", "a"), P("a", "b"), P()])
@pytest.mark.parametrize("width", [16, 128, 272])  # too small for tiles, whole tiles, padded ones
def test_same_numbers(spec, width, tpus):
    rng = np.random.default_rng(0)
    x, q = rng.normal(size=(64, 8, width)).astype("f"), rng.normal(size=(64, 8, 4, 6)).astype("f")
    lowered = weights_gradient(spec).lower(x, q)
    np.testing.assert_allclose(lowered.compile()(x, q), np.einsum("bsd,bshk->hkd", x, q), atol=1e-3)


@pytest.mark.parametrize("dtype", ["int32", "float16", "complex64", "bool"])
def test_types_without_reduce_scatter(dtype, tpus):
    """The program sends what a reduce-scatter would."""
    x = (np.random.default_rng(0).normal(size=(16, 40, 24)) * 3).astype(dtype)
    f = (lambda x: x.any(0)) if dtype == "bool" else (lambda x: x.max(0) if dtype == "float16" else x.sum(0))
    step = spmd.spmd_jit(f, mesh=spmd.create_mesh([("a", 8)]), in_layouts=P("a"), out_layouts=P("a"))
    (sent,) = step.lower(x).collectives()
    assert sent.kind == "all_to_all"
    assert sent.bytes_per_device == 7 / 8 * f(jnp.asarray(x)).nbytes
    np.testing.assert_allclose(step(x), f(jnp.asarray(x)), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shape", [(40, 24), (3,)])
def test_complex_product(shape, tpus):
    """There is no all-reduce of products of complex numbers."""
    rng = np.random.default_rng(0)
    x = (rng.normal(size=(16, *shape)) + 1j * rng.normal(size=(16, *shape))).astype("complex64")
    step = spmd.spmd_jit(lambda x: x.prod(0), mesh=spmd.create_mesh([("a", 8)]), in_layouts=P("a"))
    assert "all_reduce" not in {c.kind for c in step.lower(x).collectives()}
    np.testing.assert_allclose(step(x), x.prod(0), rtol=1e-4)


@pytest.mark.parametrize("shape, dim", [((24,), 0), ((8, 1), 0), ((1, 16, 1), 1), ((1, 8, 1), 1), ((8,), 0)])
def test_gathered_vectors(shape, dim, tpus):
    mesh = spmd.create_mesh([("a", 8)])
    spec = P(*(None,) * dim, "a")
    step = spmd.spmd_jit(lambda x: x * 2, mesh=mesh, in_layouts=spec, out_layouts=P())
    x = np.arange(np.prod(shape), dtype="f").reshape(shape)
    lowered = step.lower(x)
    (sent,) = lowered.collectives()
    assert sent.bytes_per_device == 7 / 8 * x.nbytes
    assert ("barrier" in lowered.as_text()) == (x.size > 8)
    np.testing.assert_array_equal(step(x), 2 * x)


def test_in_a_loop(tpus):
    """Gradients of a scan: reduce-scatters inside the loop and behind it."""

    def loss(w, x):
        def layer(h, w):
            return jnp.tanh(h @ w), None

        return jnp.sum(lax.scan(layer, x, w)[0] ** 2)

    rng = np.random.default_rng(0)
    w, x = rng.normal(size=(3, 32, 32)).astype("f") / 6, rng.normal(size=(16, 32)).astype("f")
    specs = P(None, None, ("a", "b")), P("a", "b")
    step = spmd.spmd_jit(jax.grad(loss), mesh=spmd.create_mesh(MESH), in_layouts=specs, out_layouts=specs[0])
    found = step.lower(w, x).collectives()
    assert any(c.kind in ("reduce_scatter", "all_to_all") for c in found)
    np.testing.assert_allclose(step(w, x), jax.jit(jax.grad(loss))(w, x), atol=1e-4)


def test_other_devices_keep_the_plain_form():
    lowered = weights_gradient(P(None, None, ("a", "b"))).lower(
        jax.ShapeDtypeStruct((64, 32, 128), "f"), jax.ShapeDtypeStruct((64, 32, 4, 6), "f")
    )
    (op,) = (op for op in lowered.stages["optimize"].walk() if op.name == "reduce_scatter")
    assert (op.attrs["dim"], op.results[0].type.shape) == (2, (4, 6, 16))


@pytest.mark.parametrize(
    "part, matrix",
    [
        ((32, 1024), (32, 1024)),  # as it is
        ((1, 4, 128, 256), (512, 256)),  # leading dims joined
        ((256, 4, 32), (256, 128)),  # trailing dims joined
        ((256, 64), (16, 1024)),
        ((8, 300), (16, 150)),
        ((1, 256), (16, 16)),
        ((7, 333), (16, 146)),  # a bit more than the part
        ((160,), None),
        ((257,), None),
        ((), None),
    ],
)
def test_part_as_matrix(part, matrix):
    assert part_as_matrix(part) == matrix


BEFORE = """mesh {a=8}
func @main(%x: f32[3,24,200]) -> (f32[3,3,200]) {
  %0: f32[3,3,200] = reduce_scatter(%x) axes=["a"] dim=1 kind="sum"
  return %0
}
"""


def test_its_form():
    """Parts of 1,800 numbers: no whole tiles, and no 16 rows; parts of 2,400 are."""
    kinds = [op.name for op in Optimize(platform="tpu")(ir.parse(BEFORE)).walk()]
    assert kinds[:1] == ["all_to_all"] and "reduce" in kinds
    module = Optimize(platform="tpu")(ir.parse(BEFORE.replace("200", "800")))
    made = [(op.name, op.results[0].type.shape) for op in module.main.body.ops]
    assert made == [
        ("transpose", (24, 3, 800)),
        ("reshape", (8, 16, 450)),
        ("reduce_scatter", (1, 16, 450)),
        ("reshape", (3, 3, 800)),
        ("transpose", (3, 3, 800)),
    ]
