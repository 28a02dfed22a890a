"""No program sends more than plain propagation does, unless that would be far dearer."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.passes import propagate
from spmd_compiler.passes.cost import with_lighter_work
from spmd_compiler.passes.engine import Engine
from spmd_compiler.passes.pipeline import compile_module
from spmd_compiler.passes.scanned_args import scanned_args

MESH = spmd.create_mesh({"data": 3, "more": 2}, abstract=True)
WEIGHTS = jax.ShapeDtypeStruct((384, 768), np.float32)
BATCHES = jax.ShapeDtypeStruct((3, 384, 384), np.float32)
GATHERED = BATCHES.size * 4 * 2 / 3


def gradient(w, xs):
    """Over microbatches that lie on different devices."""

    def body(g, x):
        return g + jax.grad(lambda w: (jax.nn.relu(x @ w) ** 2).mean())(w), None

    return lax.scan(body, jnp.zeros_like(w), xs)[0]


def accumulated(**options):
    step = spmd.spmd_jit(
        gradient, mesh=MESH, in_layouts=(P(), P("data")), out_layouts=P(), options=spmd.Options(**options)
    )
    return step.lower(WEIGHTS, BATCHES)


def prepared(lowered):
    """What `propagate` gets."""
    results = {}
    module = ir.parse(lowered.as_text("import"))
    compile_module(module, callback=lambda done, result: results.setdefault(done.name, result))
    return results["transposed_products"]


def test_it_sends_what_gathering_first_does(monkeypatch):
    lowered = accumulated()
    assert lowered.comm_bytes() == GATHERED
    assert "plain propagation" in lowered.explain()
    monkeypatch.setattr(propagate, "DEARER", 1.0)
    shared = accumulated()
    assert shared.comm_bytes() > GATHERED
    assert "plain propagation" not in shared.explain()
    assert "plain propagation" not in accumulated(hardware="tpu-v5p").explain()


def test_an_adopted_assignment_has_this_engine_s_prices():
    module = prepared(accumulated())
    engine, _ = propagate.Propagate().assigned(module)
    cost = engine.total()
    lighter, _ = propagate.Propagate().assigned(with_lighter_work(module, 1 / 16))
    assert lighter.total() < cost
    engine.adopt(lighter.state())
    assert engine.total() > cost
    assert engine.traffic.sent(engine) == pytest.approx(lighter.traffic.sent(lighter))


@pytest.mark.parametrize(
    "spec, seen", [(P("data"), "{-,-,-}"), (P("data", "more"), "{-,more,-}"), (P(None, "data"), None)]
)
def test_arguments_that_are_scanned(spec, seen):
    lowered = spmd.spmd_jit(gradient, mesh=MESH, in_layouts=(P(), spec)).lower(WEIGHTS, BATCHES)
    module = prepared(lowered)
    found = scanned_args(Engine(module), module.main.body)
    assert [str(x) for x in found.values()] == ([seen] if seen else [])
    assert all(value.type.shape == BATCHES.shape for value in found)
