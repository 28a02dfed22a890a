"""Hardware models: from files, in estimates, and in the search."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.passes.hardware import PRESETS
from spmd_compiler.passes.timeline import timeline
from tests.variants import lowered

MESH = spmd.create_mesh({"a": 4, "b": 2}, abstract=True)
SLOW_A = spmd.Hardware("slow a", {"default": 1e13}, 1e12, 1e11, 1e-9, 8e9, {"a": (1e8, 1e-9)})
FILE = """
memory_bandwidth = 1e12
link_bandwidth = 1e11
link_latency = 1e-9
memory = 8e9
[flops]
default = 1e13
[axes]
a = {bandwidth = 1e8, latency = 1e-9}
"""


def f32(*shape):
    return np.zeros(shape, np.float32)


def lower(function, *args, layouts, hardware=None):
    options = spmd.Options(hardware=hardware)
    return spmd.spmd_jit(function, mesh=MESH, in_layouts=layouts, options=options).lower(*args)


def test_from_toml(tmp_path):
    path = tmp_path / "slow a.toml"
    path.write_text(FILE)
    assert spmd.Hardware.from_toml(path) == SLOW_A
    lowered = lower(lambda x: x.sum(), f32(8, 8), layouts=P("a"))
    assert lowered.cost(str(path)) == lowered.cost(SLOW_A)


@pytest.mark.parametrize(
    "text",
    [
        "memory = 8e9",
        "memory = 'much'",
        "[flops]\nf32 = 1e12",
        "[flops]\ndefault = 1\n[axes]\na = 3",
        "=",
        FILE.replace("memory", "asynchronous = 1\nmemory", 1),
    ],
)
def test_a_file_that_is_none(tmp_path, text):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(spmd.ArgumentError, match=r"wrong.toml is no hardware model"):
        spmd.Hardware.from_toml(path)


UNIT = spmd.Hardware(
    "unit", {"default": 1.0}, 1e9, 1e9, 100.0, 8e9
)  # one operation a second, a message in 100

PROGRAM = """
mesh {a=2}
func @main(%x: f32[10], %y: f32[5]) -> (f32[10], f32[10]) {
  %0: f32[10] = all_gather(%y) axes=["a"] dim=0
  %1: f32[10] = add(%x, %x)
  %2: f32[10] = add(%1, %x)
  FIRST
  return %2, %3
}
"""


def test_communication_hides_behind_independent_work():
    module = spmd.ir.parse(PROGRAM.replace("FIRST", "%3: f32[10] = add(%0, %2)"))
    compute, communication, total = timeline(module, UNIT)
    assert (round(compute), round(communication), round(total)) == (30, 100, 110)
    module = spmd.ir.parse(PROGRAM.replace("FIRST", "%3: f32[10] = add(%x, %2)"))
    assert round(timeline(module, UNIT).total) == 100


def test_nothing_hides_where_sending_takes_the_processor():
    module = spmd.ir.parse(PROGRAM.replace("FIRST", "%3: f32[10] = add(%0, %2)"))
    compute, communication, total = timeline(module, replace(UNIT, asynchronous=False))
    assert total == pytest.approx(compute + communication)


def test_loops_count_by_their_trips():
    def f(x):
        return jax.lax.fori_loop(0, 7, lambda _, x: jnp.tanh(x @ x), x)

    lowered = lower(f, f32(64, 64), layouts=P("a"), hardware="cpu")
    cost = lowered.cost()
    assert cost.comm_seconds == sum(
        c.trips * (c.bytes_per_device / 5e9 + 5e-5) for c in lowered.collectives()
    )
    assert cost.compute_seconds > cost.flops["f32"] / 5e10
    assert cost.comm_seconds == pytest.approx(cost.hidden_seconds + cost.exposed_seconds)


def test_the_search_minimises_time():
    """Where messages are dear, few of them: their bytes cost nothing by comparison."""
    dear = spmd.Hardware("dear", {"default": 1e13}, 1e12, 1e11, 1e-3, 8e9)

    def f(x, w, v):
        return jnp.tanh(x @ w) @ v

    args, layouts = (f32(512, 64), f32(64, 512), f32(512, 64)), (P(None, "a"), P("a", "b"), P("b", "a"))
    usual, few = (lower(f, *args, layouts=layouts, hardware=h).cost(dear) for h in (None, dear))
    assert sum(few.messages.values()) <= sum(usual.messages.values())
    assert few.seconds <= usual.seconds


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("dtensor_data_train", "cpu"),
        ("mlp_megatron_train", "h100-nvlink"),
        ("lstm_tp_fwd", "h100-ib"),
        ("gqa_kv4_model4_fwd", "tpu-v5p"),
    ],
)
def test_what_is_compiled_for_a_model_is_not_slower_by_it(name, model):
    """Than what sends least: the search alone, which prices each of the sums that go together, finds slower ones here."""
    found, usual = lowered(name, hardware=model), lowered(name)
    seconds = [timeline(x.stages["optimize"], PRESETS[model]).total for x in (found, usual)]
    assert seconds[0] <= 1.001 * seconds[1]
