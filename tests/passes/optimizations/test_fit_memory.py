"""Programs that need more memory than there is."""

import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from benchmarks.memory import SPECS, layer, scanned, train
from spmd_compiler.ir.graph import Module
from spmd_compiler.passes.estimate import peak_bytes
from spmd_compiler.passes.hardware import PRESETS
from spmd_compiler.passes.optimize import Optimize
from spmd_compiler.passes.search import plain_bounds
from spmd_compiler.tools.fuzz.check import on_devices

LAYERS, WIDTH, HIDDEN, BATCH = 4, 256, 1024, 4096
WEIGHT = LAYERS * WIDTH * HIDDEN * 4


@pytest.fixture(autouse=True)
def without_bounds(monkeypatch):
    """What is bounded by plain propagation takes so little memory that there is little left to save."""
    monkeypatch.setattr(plain_bounds, "NO_MORE", plain_bounds.NO_MORE._replace(held=np.inf))


def unrolled(ps, x):
    for i in range(LAYERS):
        x, _ = layer(x, jax.tree.map(lambda w, i=i: w[i], ps))
    return (x**2).mean()


def arguments():
    rng = np.random.default_rng(0)
    up = rng.normal(0, 0.1, (LAYERS, WIDTH, HIDDEN)).astype(np.float32)
    down = rng.normal(0, 0.1, (LAYERS, HIDDEN, WIDTH)).astype(np.float32)
    return {"down": down, "up": up}, rng.normal(size=(BATCH, WIDTH)).astype(np.float32)


def lowered(loss, devices=8, **options):
    mesh = spmd.create_mesh([("fsdp", devices)], abstract=devices > jax.device_count())
    layouts = {"in_layouts": (SPECS, P("fsdp")), "out_layouts": (SPECS, P())}
    return spmd.spmd_jit(train(loss), mesh=mesh, options=spmd.Options(**options), **layouts).lower(
        *arguments()
    )


def tight(low) -> Module:
    return Optimize(memory=0)(low.stages["expand"])


def kinds(block):
    return [op.name for op in block.ops]


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 virtual devices")
@pytest.mark.parametrize(("loss", "share"), [(scanned, 0.8), (scanned, 0.6), (unrolled, 0.95)])
def test_keeps_to_the_limit(loss, share):
    limit = lowered(loss).memory().peak * share
    low = lowered(loss, memory_limit=limit)
    assert low.memory().peak <= limit
    found, wanted = low.compile()(*arguments()), jax.jit(train(loss))(*arguments())
    for got, want in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)


def test_a_loop_over_layers_holds_one_at_a_time():
    """ZeRO-3: each weight is gathered in both loops, and its gradient scattered in the second: three times its bytes."""
    free = lowered(scanned)
    assert kinds(free.stages["optimize"].main.body).count("all_gather") == 2
    module = tight(free)
    forward, backward = (op.regions[1] for op in module.main.body.ops if op.name == "while")
    assert "all_gather" not in kinds(module.main.body)
    assert kinds(forward).count("all_gather") == kinds(backward).count("all_gather") == 2
    assert kinds(backward).count("reduce_scatter") == 2
    assert peak_bytes(module.main.body, set()) < free.memory().peak - 3 * WEIGHT
    sent = sum(c.bytes_per_device * c.trips for c in lowered(scanned, hardware=small(0.55)).collectives())
    assert sent == pytest.approx(2 * 3 * WEIGHT * 7 / 8, rel=1e-3)


def small(share):
    """A model of hardware whose memory is a share of what the program takes."""
    peak = lowered(scanned, hardware="h100-nvlink").memory().peak
    return replace(PRESETS["h100-nvlink"], memory=peak * share)


def test_what_is_used_twice_is_gathered_twice():
    """Forward and backward share the gathered weights, unless memory says no."""
    free = lowered(unrolled)
    count = kinds(free.stages["optimize"].main.body).count("all_gather")
    module = tight(free)
    gathers = [op for op in module.main.body.ops if op.name == "all_gather"]
    assert len(gathers) > count
    assert any(op.attrs["cause"].startswith("to save memory; ") for op in gathers)
    assert peak_bytes(module.main.body, set()) < free.memory().peak


def test_a_program_that_fits_stays_as_it_is():
    assert str(lowered(scanned, memory_limit=1e9).stages["optimize"]) == str(
        lowered(scanned).stages["optimize"]
    )


def test_hardware_has_a_limit():
    low = lowered(scanned, hardware=small(0.7))
    assert any("to save memory" in c.cause for c in low.collectives())
    assert low.memory().peak <= small(0.7).memory


def test_a_limit_that_cannot_be_kept():
    with pytest.raises(spmd.UnsupportedError, match="more than the memory_limit of 1,000; shard more"):
        _ = lowered(scanned, memory_limit=1e3).stages


@pytest.mark.parametrize("name", ["case", "nested"])
def test_inside_of_branches_and_loops(name):
    """Where the most is live inside, what is inside changes."""

    def inner(w, x):
        return jax.lax.scan(lambda h, u: (jnp.tanh(h @ u), None), x, w)[0]

    def nested(w, x):
        return jax.lax.fori_loop(0, 2, lambda i, h: inner(w * (1.0 + i), h), x)

    def case(w, x):
        return jax.lax.cond(x.sum() > 0, lambda: inner(w, x), lambda: x)

    function = nested if name == "nested" else case
    rng = np.random.default_rng(1)
    w, x = rng.normal(0, 0.2, (4, 64, 64)).astype(np.float32), rng.normal(size=(256, 64)).astype(np.float32)
    mesh = spmd.create_mesh([("a", 4)], abstract=True)
    low = spmd.spmd_jit(function, mesh=mesh, in_layouts=(P(None, "a"), P("a"))).lower(w, x)
    module = tight(low)
    assert peak_bytes(module.main.body, set()) <= low.memory().peak
    (got,) = on_devices({**low.stages, "optimize": module}, (w, x))
    np.testing.assert_allclose(got, function(w, x), rtol=1e-4, atol=1e-5)


def recurrent(w, x, h):
    """Its weights, gathered once, are less than what the devices tell each other in every step without."""
    return jax.lax.scan(lambda h, x: (jnp.tanh(x + h @ w), None), h, x)[0]


def recurrent_lowered(**options):
    mesh = spmd.create_mesh([("model", 8)])
    args = [np.random.default_rng(0).normal(0, 0.1, s).astype(np.float32) for s in RECURRENT]
    layouts = (P(None, "model"), P(None, None, "model"), P(None, "model"))
    step = spmd.spmd_jit(recurrent, mesh=mesh, in_layouts=layouts, options=spmd.Options(**options))
    return step.lower(*args), args


RECURRENT = ((256, 256), (16, 32, 256), (32, 256))


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 virtual devices")
@pytest.mark.parametrize("search", ["default", "ilp"])
def test_other_layouts_where_gathering_later_is_not_enough(search):
    free, args = recurrent_lowered()
    whole = free.memory().peak
    assert whole > RECURRENT[0][0] * RECURRENT[0][1] * 4 and "to fit into memory" not in free.explain()
    low, _ = recurrent_lowered(memory_limit=0.6 * whole, search=search)
    assert low.memory().peak <= 0.6 * whole and low.comm_bytes() > free.comm_bytes()
    assert "note: to fit into memory: values in blocks of at most" in low.explain()
    assert ("note: exact search" in low.explain()) == (search == "ilp")
    np.testing.assert_allclose(low.compile()(*args), jax.jit(recurrent)(*args), rtol=1e-4, atol=1e-5)
    model = replace(PRESETS["h100-nvlink"], memory=0.8 * whole)
    assert recurrent_lowered(hardware=model, search=search)[0].memory().peak <= 0.8 * whole


def test_the_least_that_was_found():
    """Where nothing fits, the error says how much it would take; devices that have less run what sends least."""
    free, _ = recurrent_lowered()
    with pytest.raises(spmd.UnsupportedError, match=r"takes ([\d,]+) bytes on each device") as error:
        _ = recurrent_lowered(memory_limit=1e3)[0].stages
    least = int(re.search(r"takes ([\d,]+)", str(error.value))[1].replace(",", ""))
    assert least < 0.6 * free.memory().peak
    assert recurrent_lowered(memory_limit=least)[0].memory().peak <= least
    model = replace(PRESETS["h100-nvlink"], memory=1e3)
    assert "to fit into memory" not in recurrent_lowered(hardware=model)[0].explain()
