"""Axes that don't divide dims are searched as two, of which one does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from benchmarks import zoo
from spmd_compiler.ir import parse
from spmd_compiler.ir.layout import Layout
from spmd_compiler.passes.estimate import product_flops
from spmd_compiler.passes.rules.strategy import Choice, Strategy
from spmd_compiler.passes.search import cut_axes
from spmd_compiler.passes.search.cut_axes import cut_of
from spmd_compiler.passes.search.engine import State
from tests.variants import lowered

PIECES = ("a:(1)4", "a:(4)2")


def cut_for(*shapes_and_layouts):
    args = ", ".join(f"%x{i}: f32[{shape}] {layout}" for i, (shape, layout) in enumerate(shapes_and_layouts))
    module = parse(
        f"mesh {{a=8, b=2}}\nfunc @main({args}) -> (f32[{shapes_and_layouts[0][0]}]) {{\n  return %x0\n}}\n"
    )
    return cut_of(module, [(v, v.layout) for v in module.main.body.args])


@pytest.mark.parametrize(
    ("values", "cuts"),
    [
        ([("12,4", "{a,-}")], {"a": PIECES}),
        ([("24,4", "{b.a,-}")], {"a": PIECES}),
        ([("4,24", "{-,a.b}")], None),  # 3 to a block, which b doesn't halve; it has no pieces
        ([("12,4", "{a,-}"), ("36,20", "{a,-}"), ("10,4", "{a,-}")], {"a": PIECES}),
        ([("12,4", "{a,-}"), ("90,20", "{a,-}")], {"a": ("a:(1)2", "a:(2)4")}),  # what divides most bytes
        ([("16,4", "{a,-}")], None),
        ([("7,4", "{a,-}")], None),
        ([("12,4", "{a:(1)4,-}")], None),
        ([("12,4", "{a,-}"), ("16", "{a:(1)4}")], None),  # pieces that the user gave
    ],
)
def test_an_axis_is_cut_where_a_piece_divides_what_it_does_not(values, cuts):
    cut = cut_for(*values)
    assert (cut and cut.cuts) == cuts


def test_what_a_search_cuts_unevenly_gets_the_minor_piece():
    """Of the axis that lies elsewhere by plain propagation, where the major piece stays."""
    text = "mesh {a=8, b=4}\nfunc @main(%x: f32[4,64], %y: f32[6,24]) -> (f32[4,64]) {\n  return %x\n}\n"
    module = parse(text)
    x, y = module.main.body.args
    found = [(x, Layout((("a",), ()))), (y, Layout(((), ("b",))))]
    assert cut_of(module, [], found).cuts == {"a": ("a:(1)2", "a:(2)4")}
    plain = [(y, Layout((("b",), ())))]
    assert cut_of(module, plain, found).cuts == {"a": ("a:(1)2", "a:(2)4"), "b": ("b:(1)2", "b:(2)2")}
    assert cut_of(module, found[:1], found).cuts["a"] == PIECES  # what plain propagation cuts counts


def test_what_is_found_on_the_pieces_is_said_on_the_axis():
    cut = cut_for(("12,4", "{a,-}"))
    assert cut.mesh.axes == (("a_0", 4), ("a_1", 2), ("b", 2))
    assert cut.fuse(Layout((("b", "a"), ()))).dims == (("b", "a_0", "a_1"), ())
    rows, columns, total = Strategy((0,), (0,), 0), Strategy((1,), (1,), 1), Strategy(("sum",), ("sum",))
    layouts = {
        0: Layout((("a_0", "a_1"), ("b",))),
        1: Layout((("a_0",), ("a_1",))),
        2: Layout(((), ()), (("a_0", "sum"), ("a_1", "sum"))),
        3: Layout((("a_0:(2)2",), ())),
    }
    choices = {
        0: Choice((layouts[0],), (layouts[0],), 1.0, ("a_0", "b", "a_1"), (rows, columns, rows)),
        1: Choice((layouts[1],), (layouts[1],), 1.0, ("a_0", "a_1"), (rows, columns)),
        2: Choice((layouts[2],), (layouts[2],), 1.0, ("a_0", "a_1"), (total, total)),
    }
    found = cut.split(State(layouts, choices, {}, {}, 0))
    assert found.layouts == {
        0: Layout((("a",), ("b",))),
        1: Layout((("a:(1)4",), ("a:(4)2",))),
        2: Layout(((), ()), (("a", "sum"),)),
        3: Layout((("a:(2)2",), ())),
    }
    assert [c.order for c in found.choices.values()] == [("a", "b"), PIECES, ("a",)]
    assert [c.picks for c in found.choices.values()] == [(rows, columns), (rows, columns), (total,)]


def test_images_go_on_over_pairs_of_devices():
    """Of 48 rows over 8 devices 24 are left, then 12: blocks of other rows than are there (Shardy sends 73,504 bytes)."""
    assert lowered("conv_spatial_fwd~many0", 41).comm_bytes() < 25_000


def attention(q, k, v):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k)
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 virtual devices")
def test_four_heads_on_eight_devices():
    """Plain propagation cuts the sequence, which all devices divide. The search sends heads instead, of which half of the devices
    would have none: four devices share the heads of each half of the sequence, and keys and values are gathered from the other."""
    step = spmd.spmd_jit(
        attention, mesh=spmd.create_mesh({"seq": 8}), in_layouts=P(None, "seq"), out_layouts=P(None, "seq")
    )
    args = [0.1 * jax.random.normal(k, (2, 768, 4, 64)) for k in jax.random.split(jax.random.key(0), 3)]
    lowered = step.lower(*args)
    assert lowered.comm_bytes() == 5 * args[0].nbytes / 8
    work = product_flops(lowered.stages["optimize"].main.body)
    assert work == 2 * 2 * (2 * 4 * 768 * 768 * 64) / 8
    np.testing.assert_allclose(step(*args), jax.jit(attention)(*args), rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 virtual devices")
@pytest.mark.parametrize(
    "name", ["conv_spatial_train", "lstm_tp_fwd", "gqa_kv4_model4_fwd", "mlp_megatron_fwd"]
)
def test_programs_on_pieces_are_right(name, monkeypatch):
    """With all axes in two, whether they divide what they cut or not."""
    monkeypatch.setattr(
        cut_axes, "_dividing", lambda _, mesh: {a: n // 2 for a, n in mesh.axes if n > 2 and n % 2 == 0}
    )
    case = zoo.CASES[name]
    built = case.build()
    layouts = {"in_layouts": built.in_specs, "out_layouts": built.out_specs}
    step = spmd.spmd_jit(built.fn, mesh=spmd.create_mesh(case.mesh), **layouts)
    for got, want in zip(
        jax.tree.leaves(step(*built.args)), jax.tree.leaves(jax.jit(built.fn)(*built.args)), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=built.tol, atol=built.tol * np.max(np.abs(want)))
