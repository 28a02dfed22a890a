"""Whether XLA for CPUs cuts kernels among threads."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import xla_threads

MESH = spmd.create_mesh({"a": 8})
FUSION = """%f = {shape} fusion(%p), kind=kLoop, backend_config={{"outer_dimension_partitions":[{cuts}]}}"""


def weighted_mean(*xs):
    top = weights = 0
    for x in xs:
        weight = jnp.exp(-((x - xs[0]) ** 2))
        top, weights = top + weight * x, weights + weight
    return top / weights


def dear(rows):
    """A kernel that is worth many threads, of so many rows on each device."""
    xs = [np.random.default_rng(i).random((8 * rows, 8), dtype=np.float32) for i in range(25)]
    program = spmd.spmd_jit(weighted_mean, mesh=MESH, in_layouts=(P("a"),) * 25)
    return xs, program.lower(*xs)


@pytest.mark.parametrize("cores, cuts", [(8, False), (15, False), (16, True)])
def test_kernels_are_cut_where_devices_leave_cores_idle(cores, cuts, monkeypatch):
    monkeypatch.setattr(xla_threads, "cores", lambda: cores)
    monkeypatch.setattr(xla_threads, "MISCOUNTS", False)
    _, lowered = dear(512)
    assert ("outer_dimension_partitions" in lowered.compile().as_text()) == cuts


def test_users_say_otherwise(monkeypatch):
    monkeypatch.setattr(xla_threads, "cores", lambda: 2)
    _, lowered = dear(512)
    assert "outer_dimension_partitions" in lowered.compile({xla_threads.DISABLED: ""}).as_text()


@pytest.mark.parametrize(
    "shape, cuts, empty",
    [
        ("f32[31,192]{1,0}", '"8","8"', True),  # 744 tiles, 12 each: 62 pieces
        ("f32[32,192]{1,0}", '"8","8"', False),
        ("f32[30,1024]{1,0}", '"8","8"', False),
        ("f32[100,24]{1,0}", '"29"', True),
        ("f32[225,8]{1,0}", '"16"', True),
        ("(f32[31,192]{1,0}, f32[31,192]{1,0})", '"8","8"', True),
        ("bf16[192,31]{1,0}", '"61"', True),
        ("f32[997]{0}", '"12"', False),
    ],
)
def test_pieces_that_hold_no_tile(shape, cuts, empty):
    assert xla_threads.has_empty_pieces(FUSION.format(shape=shape, cuts=cuts)) == empty


@pytest.mark.parametrize("rows", [209, 225])
def test_no_kernel_runs_past_the_end(rows, monkeypatch):
    """On 16 threads: with JAX 0.12 one kernel more than holds its rows would write before its result, or behind it."""
    monkeypatch.setattr(xla_threads, "cores", lambda: 1000)
    monkeypatch.setattr(xla_threads, "MISCOUNTS", True)
    xs, lowered = dear(rows)
    compiled = lowered.compile()
    assert not xla_threads.has_empty_pieces(compiled.as_text())
    np.testing.assert_allclose(compiled(*xs), jax.device_get(weighted_mean(*xs)), rtol=1e-5)


def test_nobody_looks_for_pieces_where_none_are_cut(monkeypatch):
    monkeypatch.setattr(xla_threads, "cores", lambda: 2)
    monkeypatch.setattr(xla_threads, "overruns", lambda loaded: pytest.fail("looked"))
    _, lowered = dear(8)
    lowered.compile()
