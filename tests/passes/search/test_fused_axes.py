"""Axes that a program's layouts name together are searched as one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.ir import parse
from spmd_compiler.ir.layout import Layout
from spmd_compiler.ir.mesh import Mesh
from spmd_compiler.passes import propagate
from spmd_compiler.passes.cost import USUAL
from spmd_compiler.passes.search.engine import State
from spmd_compiler.passes.search.fused_axes import Fusion, fusions_of
from tests.variants import lowered


def module_of(*layouts):
    args = ", ".join(f"%a{i}: f32[64,64] {layout}" for i, layout in enumerate(layouts))
    return parse(f"mesh {{a=2, b=4, c=2}}\nfunc @main({args}) -> (f32[64,64] {{-,-}}) {{\n  return %a0\n}}\n")


@pytest.mark.parametrize(
    ("layouts", "bundles"),
    [
        (("{a.b,-}", "{-,a.b}"), {"a_b": ("a", "b")}),
        (("{c.a.b,-}", "{-,c.a.b}"), {"c_a_b": ("c", "a", "b")}),
        (("{c.a.b,-}", "{c,a.b}"), {"a_b": ("a", "b")}),
        (("{a.b,-}", "{b.a,-}"), None),
        (("{a.b,-}", "{a,-}"), None),
        (("{a.b,-}", "{a,b}"), None),
        (("{a,b}", "{c,-}"), None),
    ],
)
def test_axes_belong_together_if_no_layout_has_one_without_the_other(layouts, bundles):
    assert [fusion.bundles for fusion in fusions_of(module_of(*layouts))] == ([bundles] if bundles else [])


def test_an_array_that_only_one_of_them_divides_keeps_them_apart():
    text = "mesh {a=2, b=4}\nfunc @main(%x: f32[2,64] {a.b,-}) -> (f32[2,64] {-,-}) {\n  return %x\n}\n"
    assert not fusions_of(parse(text))


@pytest.mark.parametrize("few", [(), ("{a.b,-}",)])
def test_arrays_without_elements_put_no_axes_together(few):
    """They weigh nothing, against each other either: a search for the axis behind each went round in circles."""
    layouts = ("{c.a,-}", "{a.b,-}", "{b.a,-}")
    args = [f"%a{i}: f32[0,64] {x}" for i, x in enumerate(layouts)]
    args += [f"%b{i}: f32[64,64] {x}" for i, x in enumerate(few)]
    text = (
        f"mesh {{a=2, b=4, c=2}}\nfunc @main({', '.join(args)}) -> (f32[0,64] {{-,-}}) {{\n  return %a0\n}}\n"
    )
    assert [fusion.bundles for fusion in fusions_of(parse(text))] == [{"a_b": ("a", "b")}] * len(few)


@pytest.mark.parametrize(
    ("small", "body", "together"),
    [
        ("%y: f32[64] {b}", "", True),
        ("%y: f32[64,64] {b,-}", "", False),  # too much
        ("%y: f32[64] {-}", "  %0: f32[64] {b} = relayout(%y)\n", False),  # must be so where it stands
        ("%y: f32[64] {-}", "  %0: f32[64] {a.b} = relayout(%y)\n", True),
    ],
)
def test_a_few_small_arguments_may_have_one_alone(small, body, together):
    text = f"mesh {{a=2, b=4}}\nfunc @main(%x: f32[64,64] {{a.b,-}}, {small}) -> (f32[64,64] {{-,a.b}}) {{\n{body}  return %x\n}}\n"
    assert bool(fusions_of(parse(text))) == together


def state(layouts):
    return State(layouts, choices={}, demands={}, ends={}, number=0)


def test_a_fused_axis_is_fused_and_split_in_place():
    fine = Mesh([("a", 2), ("b", 4), ("c", 2)])
    fusion = Fusion({"a_b": ("a", "b")}, Mesh([("a_b", 8), ("c", 2)]), fine)
    given = Layout((("c", "a", "b"), ()))
    fused = fusion.fuse(given)
    assert fused.dims == (("c", "a_b"), ())
    split = fusion.split(state({0: fused, 1: Layout((("a_b:(1)4",),), (("a_b:(4)2", "sum"),))}))
    assert split is not None
    assert split.layouts[0] is given
    assert split.layouts[1] is Layout((("a", "b:(1)2"),), (("b:(2)2", "sum"),))


def test_what_has_only_one_of_them_is_seen_without():
    fusion = Fusion({"a_b": ("a", "b")}, Mesh([("a_b", 8), ("c", 2)]), Mesh([("a", 2), ("b", 4), ("c", 2)]))
    for dims in ((("b",), ("c",)), (("b", "a"), ("c",)), (("a", "c", "b"), ())):
        assert fusion.fuse(Layout(dims)) is Layout(dims).drop(("a", "b"))


def test_a_piece_that_is_no_product_of_real_axes_is_refused():
    fusion = Fusion({"a_b": ("a", "b")}, Mesh([("a_b", 6)]), Mesh([("a", 3), ("b", 2)]))
    assert fusion.split(state({0: Layout((("a_b:(1)2",),))})) is None


def test_it_finds_what_a_search_axis_by_axis_does_not(monkeypatch):
    """Convolutions over two axes of three: the work is shared, and few bytes are sent."""

    def cost() -> float:
        sent = lowered("conv_spatial_fwd~cube0")
        return sent.comm_bytes() + USUAL.flop * sum(sent.cost("cpu").flops.values())

    together = cost()
    monkeypatch.setattr(propagate, "fusions_of", lambda module: [])
    assert together < 0.8 * cost()


def test_biases_on_one_of_the_axes_stay_there():
    """Weights over all axes of three, biases over one: gathered, as if that one were not named alone."""
    low = lowered("lm_fsdp_train_unrolled~cube0", 5)
    assert low.comm_bytes() < 13_500_000
    asked = [attrs.get("layout") for attrs in low.stages["import"].main.result_attrs]
    assert any(x is not None and len(x.axes) == 1 for x in asked)
    for value, layout in zip(low.stages["propagate"].main.body.returns, asked, strict=True):
        assert layout is None or value.layout is layout


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 virtual devices")
def test_arguments_and_results_lie_as_given():
    def f(x, w, b):
        y = jnp.tanh(x @ w + b)
        return y @ w.T, b * 2 + y.sum(0)

    layouts, outs = (P(("a", "b")), P(None, ("a", "b")), P("b")), (P(("a", "b")), P("b"))
    args = [
        np.random.default_rng(0).normal(size=s).astype(np.float32) for s in ((64, 128), (128, 256), (256,))
    ]
    step = spmd.spmd_jit(f, mesh=spmd.create_mesh({"a": 2, "b": 4}), in_layouts=layouts, out_layouts=outs)
    assert fusions_of(step.lower(*args).stages["import"])
    found = step(*args)
    assert found[1].sharding.spec == P("b")
    for got, want in zip(found, f(*args), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_strategies_are_those_of_the_rules_on_the_real_axes():
    text = """mesh {a=2, b=4}
func @main(%x: f32[64,64] {a.b,-}, %w: f32[64,64] {-,a.b}) -> (f32[64,64] {a.b,-}) {
  %0: f32[64,64] = dot_general(%x, %w) contract=[1]x[0] batch=[]x[]
  %1: f32[64,64] = add(%0, %x)
  return %1
}
"""
    module = parse(text)
    engine, _ = propagate.Propagate().assigned(module)
    (other,) = propagate.Propagate().fused(engine, module)
    for op, choice in other.choices.items():
        known = engine.book.rule(op).strategies
        assert all(any(pick is s for s in known) for pick in choice.picks)
        assert choice.cost > 0
