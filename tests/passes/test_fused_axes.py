"""Axes that a program's layouts only ever name together are searched as one."""

import pytest

from spmd_compiler.ir import parse
from spmd_compiler.ir.layout import Layout
from spmd_compiler.ir.mesh import Mesh
from spmd_compiler.passes import propagate
from spmd_compiler.passes.engine import State
from spmd_compiler.passes.fused_axes import Fusion, fusion_of
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
    fusion = fusion_of(module_of(*layouts))
    assert (fusion and fusion.bundles) == bundles


def test_an_array_that_only_one_of_them_divides_keeps_them_apart():
    text = "mesh {a=2, b=4}\nfunc @main(%x: f32[2,64] {a.b,-}) -> (f32[2,64] {-,-}) {\n  return %x\n}\n"
    assert fusion_of(parse(text)) is None


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


def test_a_piece_that_is_no_product_of_real_axes_is_refused():
    fusion = Fusion({"a_b": ("a", "b")}, Mesh([("a_b", 6)]), Mesh([("a", 3), ("b", 2)]))
    assert fusion.split(state({0: Layout((("a_b:(1)2",),))})) is None


def test_it_finds_what_a_search_axis_by_axis_does_not(monkeypatch):
    """ZeRO-3 over two axes of three."""
    together = lowered("lm_fsdp_train_unrolled~cube0").comm_bytes()
    monkeypatch.setattr(propagate, "fusion_of", lambda module: None)
    assert together < 0.8 * lowered("lm_fsdp_train_unrolled~cube0").comm_bytes()


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
    other = propagate.Propagate().fused(engine, module)
    assert other is not None
    for op, choice in other.choices.items():
        known = engine.book.rule(op).strategies
        assert all(any(pick is s for s in known) for pick in choice.picks)
        assert engine.own_cost(op, choice) > 0
