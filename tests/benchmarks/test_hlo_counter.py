"""The counter of collectives, on programs whose traffic is known and on every syntax of replica groups."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from benchmarks.hlo import analyze, group_axes, parse_groups, report

AXES = [("a", 4), ("b", 2)]
SPEC = P("a", "b")
BLOCK = 16 * 32 * 4  # bytes of a device's f32[16,32]


@pytest.fixture(scope="module")
def mesh() -> Mesh:
    if len(jax.devices()) < 8:
        pytest.skip("needs 8 devices")
    return Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("a", "b"))


def count(mesh, f, out=SPEC, dtype=np.float32, spec=SPEC):
    mapped = jax.jit(jax.shard_map(f, mesh=mesh, in_specs=spec, out_specs=out, check_vma=False))
    x = jax.device_put(np.ones((64, 64), dtype), NamedSharding(mesh, spec))
    return report(mapped.lower(x).compile(), mesh=AXES)


def kinds(counted):
    return {k: (v["count"], v["executed"], v["bytes"]) for k, v in counted["by_kind"].items()}


SWAP = [(0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("f", "out", "want"),
    [
        (lambda v: lax.psum(v, "a"), P(None, "b"), {"all-reduce": (1, 1, 2 * 3 / 4 * BLOCK)}),
        (lambda v: lax.psum(v, ("a", "b")), P(), {"all-reduce": (1, 1, 2 * 7 / 8 * BLOCK)}),
        (
            lambda v: lax.all_gather(v, "b", tiled=True, axis=1),
            P("a", None),
            {"all-gather": (1, 1, BLOCK)},
        ),
        (lambda v: lax.psum_scatter(v, "a", tiled=True), SPEC, {"reduce-scatter": (1, 1, 3 / 4 * BLOCK)}),
        (lambda v: lax.all_to_all(v, "a", 1, 0, tiled=True), P("a"), {"all-to-all": (1, 1, 3 / 4 * BLOCK)}),
        (lambda v: lax.ppermute(v, "b", SWAP), SPEC, {"collective-permute": (1, 1, BLOCK)}),
    ],
)
def test_bytes_of_each_kind(mesh, f, out, want):
    assert kinds(count(mesh, f, out)) == want


def test_axes_and_average_of_a_shift(mesh):
    assert count(mesh, lambda v: lax.psum(v, "a"), P(None, "b"))["ops"][0]["axes"] == ("a",)
    shifted = count(mesh, lambda v: lax.ppermute(v, "a", [(0, 1), (1, 2), (2, 3)]))
    assert shifted["bytes"] == BLOCK
    assert shifted["bytes_avg"] == BLOCK * 6 / 8


def test_one_byte_elements(mesh):
    gathered = count(mesh, lambda v: lax.all_gather(v, "a", tiled=True), P(None, "b"), np.uint8)
    assert kinds(gathered) == {"all-gather": (1, 1, 3 * BLOCK / 4)}


def test_loops_multiply(mesh):
    def summed(v):
        return lax.scan(lambda c, t: (lax.psum(c * t, "a") / 4, None), v, jnp.arange(7.0))[0]

    counted = count(mesh, summed)
    assert kinds(counted) == {"all-reduce": (1, 7, 7 * 2 * 3 / 4 * BLOCK)}
    assert counted["loop_bytes"] == counted["bytes"]

    def nested(v):
        def outer(c, t):
            return lax.fori_loop(0, 5, lambda i, d: lax.ppermute(jnp.sin(d), "b", SWAP), c), None

        return lax.scan(outer, v, jnp.arange(3.0))[0]

    assert kinds(count(mesh, nested)) == {"collective-permute": (1, 15, 15.0 * BLOCK)}


def test_a_loop_of_unknown_length_counts_once_and_is_listed(mesh):
    def f(v):
        return lax.while_loop(
            lambda c: jnp.max(c[0]) < 100.0, lambda c: (lax.psum(c[0], "a"), c[1] + 1), (v, 0)
        )[0]

    counted = count(mesh, f)
    assert kinds(counted) == {"all-reduce": (1, 1, 2 * 3 / 4 * BLOCK)}
    assert len(counted["unknown_trips"]) == 1


def test_the_busier_branch_counts(mesh):
    def f(v):
        return lax.cond(
            lax.psum(v.sum(), ("a", "b")) > 3,
            lambda u: lax.psum(u, "a"),
            lambda u: lax.ppermute(u, "b", SWAP),
            v,
        )

    assert kinds(count(mesh, f)) == {"all-reduce": (2, 2, 2 * 7 / 8 * 4 + 2 * 3 / 4 * BLOCK)}


def test_combined_all_reduce(mesh):
    counted = count(mesh, lambda v: lax.psum((v, v[:4], v[:, :3] * 2), "a"), (SPEC, SPEC, SPEC))
    assert counted["bytes"] == 2 * 3 / 4 * (BLOCK + 4 * 32 * 4 + 16 * 3 * 4)


def test_flops_in_a_loop(mesh):
    def f(v):
        return lax.scan(lambda c, t: (jnp.tanh(c @ jnp.full((32, 32), t)), None), v, jnp.arange(6.0))[0]

    counted = count(mesh, f)
    assert counted["dot_flops"] == 6 * 2 * 16 * 32 * 32
    assert counted["count"] == 0


def test_reduce_scatter_credit(mesh):
    def sliced(y):
        return lax.dynamic_slice_in_dim(y, lax.axis_index("a") * 4, 4, 0)

    only = count(mesh, lambda v: sliced(lax.psum(v, "a")) * 2)
    assert (only["bytes"], only["rs_bytes"]) == (2 * 3 / 4 * BLOCK, 3 / 4 * BLOCK)

    def also_summed(v):
        y = lax.psum(v, "a")
        return sliced(y) * y.sum()

    assert count(mesh, also_summed)["rs_bytes"] == 2 * 3 / 4 * BLOCK


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("replica_groups={{0,2,4,6},{1,3,5,7}}, x=1", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("replica_groups={}, x=1", [list(range(8))]),
        ("replica_groups=[2,4]<=[8], x=1", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("replica_groups=[2,4]<=[4,2]T(1,0), x", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("replica_groups=[4,2]<=[2,2,2]T(0,2,1), x", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ("replica_groups=mesh['a'=4,'b'=2] {'a'}, y", [[0, 2, 4, 6], [1, 3, 5, 7]]),
        ("replica_groups=mesh['a'=4,'b'=2] {'a','b'}, y", [list(range(8))]),
        ("replica_groups=mesh[a=4,b=2] {a:(1)2}, y", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        ("replica_groups=mesh['a'=4,'b'=2] {'a':(2)2}, y", [[0, 2], [1, 3], [4, 6], [5, 7]]),
        (
            "replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}, y",
            [[0, 4], [1, 5], [2, 6], [3, 7]],
        ),
        ("x=1", [list(range(8))]),
    ],
)
def test_syntaxes_of_groups(text, want):
    assert sorted(parse_groups(text, 8)) == want


def test_axes_of_groups():
    mesh = [("x", 2), ("y", 2), ("z", 2)]
    assert group_axes([[0, 2], [1, 3], [4, 6], [5, 7]], mesh) == ("y",)
    assert group_axes([[0, 3], [1, 2], [4, 6], [5, 7]], mesh) is None


def test_unknown_groups_are_an_error():
    with pytest.raises(ValueError, match="not understood"):
        parse_groups("replica_groups=?, x=1", 8)


GPU = """
HloModule m, is_scheduled=true, num_partitions=8

add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT r = f32[] add(a, b) }

%add.1 (x: f32[], y: f32[]) -> f32[] {
  %x = f32[] parameter(0)
  %y = f32[] parameter(1)
  ROOT %s = f32[] add(%x, %y)
}

%async_rs (p0: f32[1024]) -> f32[256] {
  %p0 = f32[1024]{0} parameter(0)
  ROOT %rs.1 = f32[256]{0} reduce-scatter(%p0), replica_groups=[2,4]<=[8], dimensions={0}, to_apply=%add.1
}

%body (t: (s32[], f32[1024])) -> (s32[], f32[1024]) {
  %t = (s32[], f32[1024]{0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %v = f32[1024]{0} get-tuple-element(%t), index=1
  %one = s32[] constant(2)
  %i2 = s32[] add(%i, %one)
  %ars = f32[1024]{0} all-reduce-start(%v), channel_id=3, replica_groups={{0,1},{2,3},{4,5},{6,7}}, to_apply=%add.1
  %ard = f32[1024]{0} all-reduce-done(%ars)
  ROOT %tt = (s32[], f32[1024]{0}) tuple(%i2, %ard)
}

%cond (t: (s32[], f32[1024])) -> pred[] {
  %t = (s32[], f32[1024]{0}) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %n = s32[] constant(10)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (p: f32[1024], q: bf16[2,8]) -> f32[1024] {
  %p = f32[1024]{0} parameter(0)
  %q = bf16[2,8]{1,0} parameter(1)
  %z = s32[] constant(1)
  %ag = ((f32[1024]{0}, bf16[2,8]{1,0}), (f32[4096]{0}, bf16[8,8]{1,0})) all-gather-start(%p, %q), channel_id=1, replica_groups=[2,4]<=[8], dimensions={0}
  %agd = (f32[4096]{0}, bf16[8,8]{1,0}) all-gather-done(%ag)
  %rs = ((f32[1024]{0}), f32[256]{0}, u32[]) async-start(%p), calls=%async_rs
  %rsd = f32[256]{0} async-done(%rs)
  %cp = (f32[1024]{0}, f32[1024]{0}, u32[], u32[]) collective-permute-start(%p), channel_id=2, source_target_pairs={{0,1},{1,2},{2,0}}
  %cpd = f32[1024]{0} collective-permute-done(%cp)
  %init = (s32[], f32[1024]{0}) tuple(%z, %cpd)
  %w = (s32[], f32[1024]{0}) while(%init), condition=%cond, body=%body
  ROOT %o = f32[1024]{0} get-tuple-element(%w), index=1
}
"""


def test_asynchronous_collectives_and_a_derived_trip_count():
    counted = analyze(GPU)
    assert kinds(counted) == {
        "all-gather": (1, 1, 3 * (4096 + 32)),
        "reduce-scatter": (1, 1, 3 / 4 * 4096),
        "collective-permute": (1, 1, 4096),
        "all-reduce": (1, 5, 5 * 4096.0),
    }
    assert counted["unknown_trips"] == []


TPU = """
HloModule m, is_scheduled=true, num_partitions=4

add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT r = f32[] add(a, b) }

%all-reduce-scatter (input: f32[1024]) -> f32[256] {
  %input = f32[1024]{0} parameter(0)
  %all-reduce.1 = f32[1024]{0} all-reduce(%input), channel_id=1, replica_groups={{0,1,2,3}}, to_apply=%add
  %partition-id.7 = u32[] partition-id()
  %constant.1 = u32[] constant(256)
  %multiply.1 = u32[] multiply(%partition-id.7, %constant.1)
  ROOT %dynamic-slice.1 = f32[256]{0} dynamic-slice(%all-reduce.1, %multiply.1), dynamic_slice_sizes={256}
}

ENTRY %main (p: f32[1024]) -> f32[256] {
  %p = f32[1024]{0} parameter(0)
  ROOT %fusion.4 = f32[256]{0} fusion(%p), kind=kCustom, calls=%all-reduce-scatter
}
"""


def test_a_reduce_scatter_of_tpus_counts_as_one():
    assert kinds(analyze(TPU)) == {"reduce-scatter": (1, 1, 3 / 4 * 4096)}
