"""Programs that repeat themselves: the search sees loops in place of the parts, and what it finds holds for all of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from benchmarks import deep, passes
from spmd_compiler import ir
from spmd_compiler.passes import cost, propagate
from spmd_compiler.passes.pipeline import PREPARE, compile_module
from spmd_compiler.passes.propagate import Propagate
from spmd_compiler.passes.report import collectives
from spmd_compiler.passes.search import rolling
from spmd_compiler.passes.search.engine import Engine
from spmd_compiler.passes.simplify import Simplify
from tests.share import examples

MESH = spmd.create_mesh({"data": 2, "model": 4})
DENSE = {"w": P(None, "model"), "v": P("model", None)}


def parameters(depth, width=8):
    rng = np.random.RandomState(0)
    small = [rng.randint(-2, 3, (2, width, width)).astype(np.float32) / 8 for _ in range(depth)]
    return [{"w": w, "v": v} for w, v in small]


def dense(h, p):
    return h + jnp.tanh(h @ p["w"]) @ p["v"]


def looping(h, p):
    return h + lax.fori_loop(0, 2, lambda _, x: jnp.tanh(x @ p["w"]) @ p["v"], h)


def longer_looping(h, p):
    return h + lax.fori_loop(0, 2, lambda _, x: jnp.sin(jnp.tanh(x @ p["w"])) @ p["v"], h)


def branching(h, p):
    return h + lax.cond(h[0, 0] > 0, lambda: jnp.tanh(h @ p["w"]) @ p["v"], lambda: h @ p["v"])


def step(layer, params, x):
    def loss(params):
        h = x
        for p in params:
            h = layer(h, p)
        return jnp.mean(h**2)

    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))


def forward(layer, params, x):
    for p in params:
        x = layer(x, p)
    return x.sum(0)


def imported(function, args, layouts):
    lowered = spmd.spmd_jit(function, mesh=MESH, in_layouts=layouts).lower(*args)
    return Simplify()(cost.priced(ir.parse(lowered.as_text("import")), None))


def total(module):
    return Propagate().assigned(module)[0].total()


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(rolling, "LARGE", 1)


def rolled(module):
    engine = Propagate(0).assigned(module)[0]
    return rolling.rolled(engine, module)


PROGRAMS = {
    "dense": (forward, dense, 9),
    "train": (step, dense, 8),
    "looping": (forward, looping, 12),
    "branching": (forward, branching, 9),
}


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", PROGRAMS)
def test_same_cost_as_the_whole_and_right(name, monkeypatch):
    program, layer, depth = PROGRAMS[name]
    args = parameters(depth, 32), np.ones((256, 32), np.float32)
    layouts = [DENSE] * depth, P("data")

    def run(params, x):
        return program(layer, params, x)

    module = imported(run, args, layouts)
    assert rolled(module) is not None
    found = total(module)
    compiled = spmd.spmd_jit(run, mesh=MESH, in_layouts=layouts)
    for got, want in zip(jax.tree.leaves(compiled(*args)), jax.tree.leaves(run(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    monkeypatch.setattr(rolling, "LARGE", 10**9)
    assert found <= 1.02 * total(module)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("name", PROGRAMS)
def test_costs_what_the_whole_does(name):
    """Parts that are all alike cost, as a loop, what they cost one by one."""
    program, layer, depth = PROGRAMS[name]
    args = parameters(depth, 32), np.ones((256, 32), np.float32)
    module = imported(lambda p, x: program(layer, p, x), args, ([DENSE] * depth, P("data")))
    engine = Propagate(0).assigned(module)[0]
    short = rolling.rolled(engine, module)
    assert short is not None
    found = Propagate().assigned(short.module)[0]
    rolling.adopt(engine, found, short.stand_ins)
    assert engine.total() == pytest.approx(found.total(), rel=0.02)


@pytest.mark.usefixtures("small")
@examples(10)
@given(depth=st.integers(7, 12), x=st.sampled_from([P("data"), P(None, "model"), P(("data", "model")), P()]))
def test_layers_differ_only_at_the_ends(depth, x):
    module = imported(
        lambda p, x: forward(dense, p, x), (parameters(depth), np.ones((16, 8), np.float32)), (None, x)
    )
    engine = Propagate().assigned(module)[0]
    products = [engine.choices[op] for op in module.main.body.ops if op.name == "dot_general"]
    assert len(products) == 2 * depth
    assert len(set(products[2:-4:2])) <= 1 and len(set(products[3:-4:2])) <= 1


@pytest.mark.usefixtures("small")
def test_each_op_has_a_stand_in_of_its_kind():
    depth = 8
    args = parameters(depth), np.ones((16, 8), np.float32)
    module = imported(lambda p, x: step(dense, p, x), args, ([DENSE] * depth, P("data")))
    short = rolled(module)
    assert short is not None and len(list(short.module.main.body.walk())) < 0.6 * len(module.main.body.ops)
    there = set(short.module.main.body.walk())
    assert [op for op, _ in short.stand_ins] == module.main.body.ops
    for op, other in short.stand_ins:
        assert other in there and other.name == op.name
        assert [v.type for v in other.operands] == [v.type for v in op.operands]


@pytest.mark.usefixtures("small")
def test_a_loop_stands_for_loops_that_do_the_same(monkeypatch):
    def alternating(params, x):
        for i, p in enumerate(params):
            x = (looping, longer_looping)[i % 2](x, p)
        return x.sum(0)

    depth = 16
    args = parameters(depth, 32), np.ones((256, 32), np.float32)
    module = imported(alternating, args, ([DENSE] * depth, P("data")))
    short = rolled(module)
    assert short is not None
    for op, other in short.stand_ins:
        there, here = ([x.name for region in o.regions for x in region.walk()] for o in (op, other))
        assert here == there
    found = total(module)
    monkeypatch.setattr(rolling, "LARGE", 10**9)
    assert found <= 1.02 * total(module)


@pytest.mark.usefixtures("small")
def test_nothing_to_leave_out():
    args = parameters(3), np.ones((16, 8), np.float32)
    assert rolled(imported(lambda p, x: forward(dense, p, x), args, (None, P("data")))) is None


def test_small_programs_are_searched_as_they_are(monkeypatch):
    depth = 10
    args = parameters(depth), np.ones((16, 8), np.float32)
    module = imported(lambda p, x: forward(dense, p, x), args, ([DENSE] * depth, P("data")))
    seen = []
    improve = propagate.Propagate.improve
    monkeypatch.setattr(
        propagate.Propagate,
        "improve",
        lambda self, engine, body, *others: (
            seen.append(len(body.ops)) or improve(self, engine, body, *others)
        ),
    )
    Propagate().assigned(module)
    assert seen == [len(module.main.body.ops)]
    assert isinstance(Propagate().assigned(module)[0], Engine)


def test_a_layer_that_stands_for_others_follows_itself(monkeypatch):
    """Also where it differs from those at the ends of the row."""
    mesh = spmd.create_mesh({"data": 4, "model": 2}, abstract=True)
    module = cost.priced(passes.imported(*passes.train_step(5), mesh), None)
    for prepare in PREPARE:
        module = prepare(module)
    assert rolled(module) is not None
    found = total(module)
    monkeypatch.setattr(rolling, "LARGE", 10**9)
    assert found <= 1.01 * total(module)


@pytest.mark.parametrize("model", [None, "model"])
def test_an_unrolled_lstm_sends_what_its_loop_sends(model):
    """Its weights are gathered once, and their gradients reduced once."""
    sizes, steps = {"data": 2, "model": 4}, 40
    sent = []
    for unroll in (True, False):
        stages = compile_module(deep.imported(deep.recurrent(steps, model, unroll), sizes))
        assert (len(stages["import"].main.body.ops) > rolling.LARGE) is unroll
        found = collectives(stages["optimize"])
        sent.append(sum(c.bytes_per_device * c.trips for c in found))
    assert sent[0] <= 1.01 * sent[1]
