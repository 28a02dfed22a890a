"""Sizes that the axes don't divide, at the boundary of a program."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from tests.share import examples

AB = [("a", 4), ("b", 2)]
MESHES = [[("a", n)] for n in (3, 5, 6, 7, 8)] + [[("a", 2), ("b", 3)], AB, [("a", 2), ("b", 2), ("c", 2)]]

FUNCTIONS = {
    "matmul": lambda x, y: (x @ y.T, x.sum(0), y.max()),
    "cumulative": lambda x, y: (jnp.cumsum(x, 0), jnp.sort(y, 1)),
    "shapes": lambda x, y: (x.T.reshape(-1), jnp.concatenate([x, y], 0)[::-1]),
    "shifted": lambda x, y: (x[1:] - x[:-1], jnp.pad(y, 1), jnp.roll(x, 2, 0)),
}


def mesh_of(axes):
    size = int(np.prod([n for _, n in axes]))
    return spmd.create_mesh(axes, devices=jax.devices()[:size])


@st.composite
def programs(draw):
    axes = draw(st.sampled_from(MESHES))

    def spec():
        dims = [[], []]
        for name, _ in draw(st.permutations(axes)):
            place = draw(st.integers(-1, 1))
            if place >= 0:
                dims[place].append(name)
        return P(*(tuple(d) or None for d in dims))

    n, m, k = (draw(st.integers(2, 13)) for _ in range(3))
    return draw(st.sampled_from(sorted(FUNCTIONS))), axes, (n, k), (m, k), spec(), spec(), spec()


@examples(25)
@given(programs(), st.booleans())
def test_any_size_over_any_axes(program, pin):
    name, axes, left, right, x_spec, y_spec, out = program
    fun = FUNCTIONS[name]
    rng = np.random.RandomState(0)
    x, y = rng.randn(*left).astype(np.float32), rng.randn(*right).astype(np.float32)
    mesh = mesh_of(axes)
    want = jax.jit(fun)(x, y)
    outs = tuple(out if w.ndim == 2 else None for w in want)

    def pinned(x, y):
        """What is cut stays cut, whether it pays or not."""
        x, y = (spmd.relayout(v, spmd.Layout(s, mesh)) for v, s in ((x, x_spec), (y, y_spec)))
        return tuple(
            v if s is None else spmd.relayout(v, spmd.Layout(s, mesh))
            for v, s in zip(fun(x, y), outs, strict=True)
        )

    program = pinned if pin else fun
    step = spmd.spmd_jit(program, mesh=mesh, in_layouts=(x_spec, y_spec), out_layouts=outs)
    for w, g, layout in zip(want, step(x, y), outs, strict=True):
        np.testing.assert_allclose(g, w, rtol=1e-5, atol=1e-5)
        if layout is not None:
            stored = spmd.Layout(list(layout), mesh).stored(w.shape)
            assert g.sharding.is_equivalent_to(stored.to_jax(), 2)


def test_where_an_array_lies():
    mesh = mesh_of(AB)
    rows = spmd.Layout([("a", "b"), None], mesh)
    assert rows.stored((16, 3)) == rows
    assert rows.stored((12, 3)) == spmd.Layout(["a", None], mesh)
    assert rows.stored((2, 3)) == spmd.Layout([None, None], mesh)
    assert spmd.relayout(jnp.ones((12, 3)), rows).sharding.spec == P("a")
    with pytest.raises(spmd.LayoutError, match="partial"):
        spmd.Layout([None, None], mesh, partial={"a": "sum"}).stored((4, 4))


def test_the_report_names_what_cannot_lie_as_asked():
    mesh = mesh_of(AB)
    step = spmd.spmd_jit(lambda x: jnp.tanh(x), mesh=mesh, in_layouts=P("a"), out_layouts=P("a"))
    lowered = step.lower(np.ones((13, 2), np.float32))
    assert lowered.in_layouts == (spmd.Layout([None, None], mesh),)
    assert lowered.out_layouts == spmd.Layout([None, None], mesh)
    told = lowered.explain()
    assert "argument x, f32[13,2], is wanted in {a,-}, which does not divide it: it lies in {-,-}" in told
    assert "result 0, f32[13,2], is wanted in {a,-}" in told


def test_an_argument_is_cut_where_that_saves_more_work_than_the_result_costs():
    mesh = mesh_of(AB)
    layout = spmd.Layout(["a", None, None], mesh)

    def sent(rank: int, f) -> list[tuple[str, float]]:
        step = spmd.spmd_jit(f, mesh=mesh, in_layouts=P("a"), out_layouts=P("a"))
        shape = (6, 256, 256)[:rank]
        lowered = step.lower(*[jax.ShapeDtypeStruct(shape, np.float32)])
        return [(c.kind, c.bytes_per_device) for c in lowered.collectives()]

    assert sent(2, jnp.tanh) == []
    assert sent(3, lambda x: spmd.relayout(x, layout).sum((1, 2))) == [("all_gather", 3 * 2 * 4)]
    many = sent(3, lambda x: jnp.linalg.cholesky(x).sum((1, 2)))
    assert many == [("all_gather", 3 * 2 * 4)]


def test_a_step_takes_what_it_returned():
    """Without moving it, donated or not."""
    mesh = mesh_of(AB)
    state = {
        "even": np.ones((8, 2), np.float32),
        "half": np.ones(12, np.float32),
        "odd": np.ones(5, np.float32),
    }
    step = spmd.spmd_jit(
        lambda s: jax.tree.map(lambda x: x * 2, s),
        mesh=mesh,
        in_layouts=P(("a", "b")),
        out_layouts=P(("a", "b")),
        donate_argnums=0,
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*relaid.*")
        for _ in range(3):
            state = step(state)
    for value in state.values():
        np.testing.assert_array_equal(value, np.full(value.shape, 8))


def test_under_jit_grad_and_inside_another_program():
    mesh = mesh_of(AB)
    x = np.random.RandomState(0).randn(13, 7).astype(np.float32)
    inner = spmd.spmd_jit(jnp.sin, mesh=mesh, in_layouts=P("a", "b"), out_layouts=P("b", "a"))
    np.testing.assert_allclose(jax.jit(lambda x: inner(x) * 2)(x), np.sin(x) * 2, rtol=1e-5)
    np.testing.assert_allclose(jax.grad(lambda x: inner(x).sum())(x), np.cos(x), rtol=1e-5)
    outer = spmd.spmd_jit(lambda x: inner(x).sum(1), mesh=mesh, in_layouts=P("b"), out_layouts=P("a"))
    np.testing.assert_allclose(outer(x), np.sin(x).sum(1), rtol=1e-5, atol=1e-6)


def test_annotations_of_a_module():
    text = """module {
      sdy.mesh @mesh = <["a"=4, "b"=2]>
      func.func @main(%x: tensor<6x9xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"a"}, {"b"}]>})
          -> (tensor<6x9xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"b"}, {"a"}]>}) {
        %0 = stablehlo.negate %x : tensor<6x9xf32>
        return %0 : tensor<6x9xf32>
      }
    }"""
    lowered = spmd.from_stablehlo(text)
    x = np.arange(54, dtype=np.float32).reshape(6, 9)
    np.testing.assert_array_equal(lowered.compile()(x)[0], -x)
    assert "is wanted in {a,b}" in lowered.explain()
