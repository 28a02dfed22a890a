"""Functions and custom calls with sharding rules: the same numbers for every layout, and the traffic that the rule allows."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import PartitionSpec as P
from jaxlib import lapack

import spmd_compiler as spmd
from spmd_compiler.errors import LayoutError, ParseError
from tests.share import examples

MESH = spmd.create_mesh([("a", 4), ("b", 2)])


def f32(*shape):
    return np.random.RandomState(sum(shape)).rand(*shape).astype(np.float32)


@spmd.sharding_rule("b i, i o -> b o", reduction="sum")
def matmul(x, w):
    return jnp.sin(x) @ w


@spmd.sharding_rule("... d, d -> ... d, ...")
def scaled(x, *, scale, power=2):
    """Whole rows, any leading dims."""
    norm = (x**power).sum(-1)
    return x * scale / norm[..., None], norm


@spmd.sharding_rule("(h k) t -> h t, t", reduction={"h": "max"}, k=3)
def heads(x):
    y = x.reshape(-1, 3, x.shape[1]).sum(1)
    return y, y.max(0)


@spmd.sharding_rule("b d, d -> d, ", reduction="sum", need_replication_factors="d")
def weighted(x, w):
    y = (x * x).sum(0) * w
    return y, y.sum()


PROGRAMS = {
    "matmul": (matmul, [(8, 6), (6, 4)]),
    "matmul uneven": (matmul, [(7, 5), (5, 3)]),
    "scaled": (lambda x, s: scaled(x, scale=s), [(4, 5, 6), (6,)]),
    "heads": (heads, [(24, 5)]),
    "heads uneven": (heads, [(9, 6)]),
    "weighted": (weighted, [(9, 4), (4,)]),
}
specs = st.permutations(["a", "b", None, None])


@given(st.sampled_from(sorted(PROGRAMS)), st.lists(specs, min_size=3, max_size=3))
@examples(30)
def test_any_layout(name, wanted):
    function, shapes = PROGRAMS[name]
    args = [f32(*s) for s in shapes]
    layouts = tuple(P(*spec[: len(s)]) for spec, s in zip(wanted, shapes, strict=False))
    got = spmd.spmd_jit(function, mesh=MESH, in_layouts=layouts)(*args)
    want = jax.jit(function)(*args)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), got, want)


def test_runs_on_blocks():
    """A product of which both operands are cut along the summed dim leaves partial sums: one reduce-scatter."""
    x, w = f32(8, 6), f32(6, 4)
    step = spmd.spmd_jit(lambda x, w: 2 * matmul(x, w), mesh=MESH, in_layouts=(P("a", "b"), P("b")))
    lowered = step.lower(x, w)
    assert [c.kind for c in lowered.collectives()] == ["reduce_scatter"]
    assert "fallback" not in lowered.explain()
    assert 'sharding_rule="b i, i o -> b o {i=sum}"' in lowered.as_text("propagate")
    np.testing.assert_allclose(step(x, w), 2 * np.sin(x) @ w, rtol=1e-5)


def test_is_the_plain_function_elsewhere():
    x, w = f32(8, 6), f32(6, 4)
    want = np.sin(x) @ w
    np.testing.assert_allclose(matmul(x, w), want, rtol=1e-5)
    np.testing.assert_allclose(jax.jit(matmul)(x, w), want, rtol=1e-5)
    assert matmul.__name__ == "matmul"


def test_mistakes():
    with pytest.raises(ParseError, match="column 3"):
        spmd.sharding_rule("b + -> b")
    with pytest.raises(LayoutError, match="no factor c"):
        spmd.register_sharding_rule("target", "b -> b", reduction_factors=("c",))
    with pytest.raises(LayoutError, match="'average' is no reduction"):
        spmd.sharding_rule("b -> ", reduction="average")

    def lower(function, *shapes):
        args = [jax.ShapeDtypeStruct(s, np.float32) for s in shapes]
        spmd.spmd_jit(function, mesh=MESH, in_layouts=P("a")).lower(*args)

    with pytest.raises(LayoutError, match="operand 0 has 1 dims, but the rule 2"):
        lower(matmul, (8,), (8, 4))
    fixed = spmd.sharding_rule("b -> b")(lambda x: x.reshape(8) * 2)
    with pytest.raises(LayoutError, match=r"by its sharding rule 'b -> b', but on \(f32\[2\]\) it fails"):
        lower(fixed, (8,))
    grows = spmd.sharding_rule("b -> b")(lambda x: jnp.pad(x, (0, 8 - x.size)))
    with pytest.raises(LayoutError, match=r"makes \(f32\[8\]\) of \(f32\[2\]\) instead of \(f32\[2\]\)"):
        lower(grows, (8,))


def test_registered_targets():
    """LAPACK's Cholesky under a name that nobody knows: its rule says that the leading dim is batch."""
    kernel = next(k for name, k, _ in lapack.registrations()["cpu"] if name == "lapack_spotrf_ffi")
    jax.ffi.register_ffi_target("my_cholesky", kernel, platform="cpu")
    x = f32(8, 3, 3)
    x = x @ x.transpose(0, 2, 1) + np.eye(3, dtype=np.float32)
    jnp.linalg.cholesky(x).block_until_ready()  # loads LAPACK

    def fun(x):
        kinds = jax.ShapeDtypeStruct(x.shape, x.dtype), jax.ShapeDtypeStruct(x.shape[:1], np.int32)
        return jnp.triu(jax.ffi.ffi_call("my_cholesky", kinds)(x, uplo=np.uint8(ord("L")))[0])  # column-major

    def step():
        return spmd.spmd_jit(fun, mesh=MESH, in_layouts=P("a"), out_layouts=P("a"))

    assert "fallback: custom_call" in step().lower(x).explain()
    spmd.register_sharding_rule("my_cholesky", "n i j -> n i j, n", need_replication_factors=("i", "j"))
    assert not step().lower(x).collectives()
    np.testing.assert_allclose(step()(x).transpose(0, 2, 1), np.linalg.cholesky(x), rtol=1e-3, atol=1e-5)


def test_rules_of_shardy():
    """On custom calls, in programs from elsewhere: the operands' blocks, and the reduction that the target leaves."""
    lowered = spmd.from_stablehlo("""module {
      sdy.mesh @mesh = <["a"=4, "b"=2]>
      func.func @main(%x: tensor<8x6xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>},
          %w: tensor<6x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {}]>})
          -> (tensor<8x4xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {}]>}) {
        %0 = stablehlo.custom_call @their_kernel(%x, %w) {sdy.sharding_rule =
          #sdy.op_sharding_rule<([i, j], [j, k])->([i, k]) {i=8, j=6, k=4} reduction={j}, custom>}
          : (tensor<8x6xf32>, tensor<6x4xf32>) -> tensor<8x4xf32>
        return %0 : tensor<8x4xf32>
      }
    }""")
    assert [(c.kind, c.axes) for c in lowered.collectives()] == [("all_reduce", ("b",))]
    misfit = """module {
      func.func @main(%x: tensor<8xf32>) -> tensor<8xf32> {
        %0 = stablehlo.custom_call @their_kernel(%x) {sdy.sharding_rule =
          #sdy.op_sharding_rule<([ij])->([i]) {i=8, j=2}, custom>} : (tensor<8xf32>) -> tensor<8xf32>
        return %0 : tensor<8xf32>
      }
    }"""
    notes = spmd.from_stablehlo(misfit, mesh=MESH).explain()
    assert "(i j) is a dim of size 8 of operand 0, not of 16; it runs replicated" in notes
    kernel = "custom_call @their_kernel(%arg0, %arg1) : (tensor<2x3xf32>, tensor<3x4xf32>) -> tensor<2x4xf32>"
    assert kernel in lowered.stablehlo()


def test_registered_primitives():
    """A primitive of the user's own, whose lowering is for it alone to know."""
    p = Primitive("power_sum")
    p.def_abstract_eval(lambda x, *, power: jax.core.ShapedArray(x.shape[1:], x.dtype))
    plain = lambda x, power: (x**power).sum(0)  # noqa: E731
    p.def_impl(lambda x, *, power: plain(x, power))
    mlir.register_lowering(p, mlir.lower_fun(lambda x, *, power: plain(x, power), multiple_results=False))
    spmd.register_sharding_rule(p, "b d -> d", reduction="sum")
    x = f32(8, 6)
    step = spmd.spmd_jit(
        lambda x: p.bind(x, power=2) + p.bind(x, power=3), mesh=MESH, in_layouts=P("a"), out_layouts=P()
    )
    lowered = step.lower(x)
    assert lowered.as_text("propagate").count("custom_call") == 2
    assert [c.kind for c in lowered.collectives()] == ["all_reduce"]
    np.testing.assert_allclose(step(x), (x**2 + x**3).sum(0), rtol=1e-5)
    np.testing.assert_allclose(jax.jit(lambda x: p.bind(x, power=2))(x), (x**2).sum(0), rtol=1e-5)


def test_static_arguments_that_are_equal_but_not_the_same():
    """0.0 is -0.0, and 1 is 1.0, but what is made of them is not the same."""
    signed = spmd.sharding_rule("b -> b")(lambda x, by: x + math.copysign(1, by))
    scaled = spmd.sharding_rule("b -> b")(lambda x, by: x * by)
    x = np.arange(8, dtype=np.int32)
    for by in (0.0, -0.0):
        got = spmd.spmd_jit(lambda x, by=by: signed(x, by), mesh=MESH, in_layouts=P("a"))(x)
        np.testing.assert_array_equal(got, x + math.copysign(1, by))
    for by in (1, 1.0, True):
        got = spmd.spmd_jit(lambda x, by=by: scaled(x, by), mesh=MESH, in_layouts=P("a"))(x)
        assert got.dtype == (np.float32 if isinstance(by, float) else np.int32)


def test_host_functions_run_on_blocks():
    """A kernel in numpy, beside another that the program calls itself."""

    def host(function, x):
        return jax.pure_callback(function, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    seen = []

    def sort(x):
        seen.append(x.shape)
        return np.sort(x, axis=1)

    by_row = spmd.sharding_rule("b d -> b d", need_replication_factors="d")(lambda x: host(sort, x))
    step = spmd.spmd_jit(lambda x: by_row(x) + host(lambda x: 2 * x, x), mesh=MESH, in_layouts=P("a"))
    x = f32(8, 5)
    np.testing.assert_allclose(step(x), np.sort(x, axis=1) + 2 * x, rtol=1e-5)
    assert set(seen) == {(2, 5)}


def test_in_regions():
    """In loops and branches, and in a manual region over the axes that it leaves."""

    def fun(x, w):
        y = jax.lax.fori_loop(0, 3, lambda i, y: matmul(y, w), x)
        inside = jax.shard_map(
            lambda x, w: jax.lax.psum(matmul(x, w), "a"),
            mesh=MESH.to_jax(),
            in_specs=(P("a"), P()),
            out_specs=P(),
            axis_names={"a"},
            check_vma=False,
        )
        return jax.lax.cond(y[0, 0] > 0, lambda y: matmul(y, w), lambda y: y, y), inside(x, w)

    x, w = f32(8, 6), f32(6, 6)
    got = spmd.spmd_jit(fun, mesh=MESH, in_layouts=(P("a", "b"), P("b")))(x, w)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, jax.jit(fun)(x, w))


def test_pallas():
    """A kernel that is written for blocks of rows."""
    from jax.experimental import pallas as pl

    def kernel(x, out):
        out[...] = jnp.exp(x[...]) / jnp.exp(x[...]).sum(-1, keepdims=True)

    @spmd.sharding_rule("b d -> b d", need_replication_factors="d")
    def softmax(x):
        spec = pl.BlockSpec((1, x.shape[1]), lambda i: (i, 0))
        struct = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(
            kernel, struct, grid=(x.shape[0],), in_specs=[spec], out_specs=spec, interpret=True
        )(x)

    x = f32(8, 6)
    step = spmd.spmd_jit(softmax, mesh=MESH, in_layouts=P("a"), out_layouts=P("a"))
    assert not step.lower(x).collectives()
    np.testing.assert_allclose(step(x), jax.nn.softmax(x), rtol=1e-5)
