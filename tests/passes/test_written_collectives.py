"""Collectives that a program has itself, in `jax.shard_map`: counted, merged and right, on meshes of three axes too."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.ir import Block, Function, Module, Op, Value
from spmd_compiler.ir.types import TensorType
from spmd_compiler.passes.report import collectives
from spmd_compiler.passes.written_collectives import CAUSE

MESH = spmd.create_mesh([("a", 2), ("b", 2), ("c", 2)])
ALL = ("a", "b", "c")
X = np.random.RandomState(0).randn(64, 16).astype(np.float32)  # 8 rows of 16 on each device: 512 bytes


def mapped(fun, out=None, mesh=MESH):
    rows = P(mesh.axis_names)
    specs = {"in_specs": rows, "out_specs": rows if out is None else out}
    return jax.shard_map(fun, mesh=mesh.to_jax(), **specs, check_vma=False)


def lowered(fun, *args, mesh=MESH, options=None):
    """As `jax.jit` runs it, and as it is partitioned."""
    step = spmd.spmd_jit(fun, mesh=mesh, in_layouts=(P(mesh.axis_names),) * len(args), options=options)
    for ours, wanted in zip(jax.tree.leaves(step(*args)), jax.tree.leaves(jax.jit(fun)(*args)), strict=True):
        np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)
    return step.lower(*args)


def told(low):
    return [(c.kind, c.axes, c.group_size, c.bytes_per_device, c.trips) for c in low.collectives()]


@pytest.mark.parametrize(
    "axes", [("a",), ("b",), ("c",), ("a", "c"), ("c", "a"), ("b", "a"), ALL], ids="".join
)
@pytest.mark.parametrize(
    "kind, call, share",
    [
        ("all_reduce", lax.psum, 2),
        ("all_reduce", lax.pmax, 2),
        ("reduce_scatter", lambda x, axes: lax.psum_scatter(x, axes, scatter_dimension=1, tiled=True), 1),
        ("all_to_all", lambda x, axes: lax.all_to_all(x, axes, 0, 1, tiled=True), 1),
        ("all_gather", lambda x, axes: lax.all_gather(x, axes, axis=1, tiled=True), None),
    ],
    ids=["psum", "pmax", "psum_scatter", "all_to_all", "all_gather"],
)
def test_groups_are_those_of_axes(axes, kind, call, share):
    n = 2 ** len(axes)
    low = lowered(mapped(lambda x: call(x, axes)), X)
    ((found, where, size, sent, trips),) = told(low)
    assert (found, size, trips) == (kind, n, 1)
    assert where == (tuple(sorted(axes)) if kind == "all_reduce" else axes)
    assert sent == 512 * (n - 1 if share is None else share * (n - 1) / n)
    assert low.comm_bytes() == sent
    assert [c.cause for c in low.collectives()] == [CAUSE]
    assert "no collectives" not in low.explain()


@st.composite
def permutes(draw):
    """(axes, pairs): some positions on the axes send to others."""
    axes = tuple(sorted(draw(st.permutations(ALL))[: draw(st.integers(1, 3))]))  # as JAX wants them
    places = range(2 ** len(axes))
    senders = draw(st.lists(st.sampled_from(places), min_size=1, unique=True))
    receivers = draw(st.permutations(places))[: len(senders)]
    return axes, list(zip(senders, receivers, strict=True))


@settings(deadline=None, max_examples=25)
@given(permutes())
def test_permutes(permute):
    axes, pairs = permute
    low = lowered(mapped(lambda x: lax.ppermute(x, axes, pairs)), X)
    moves = any(a != b for a, b in pairs)
    assert low.comm_bytes() == (512 if moves else 0)
    assert all(set(c.axes) <= set(axes) for c in low.collectives())


LINE = spmd.create_mesh([("d", 8)])


@pytest.mark.parametrize(
    "groups, axes",
    [
        ([[0, 1], [2, 3], [4, 5], [6, 7]], ("d:(4)2",)),
        ([[0, 4], [1, 5], [2, 6], [3, 7]], ("d:(1)2",)),
        ([[0, 1, 4, 5], [2, 3, 6, 7]], ("d:(1)2", "d:(4)2")),
        ([[0, 7], [1, 2], [3, 4], [5, 6]], ("d",)),  # of no digits: they stay as they are
    ],
)
def test_groups_within_an_axis(groups, axes):
    n = len(groups[0])
    low = lowered(mapped(lambda x: lax.psum(x, "d", axis_index_groups=groups), mesh=LINE), X, mesh=LINE)
    assert told(low) == [("all_reduce", axes, n, 512 * 2 * (n - 1) / n, 1)]
    named = [op for op in low.stages["optimize"].walk() if op.name == "all_reduce"]
    assert ["axes" in op.attrs for op in named] == [axes != ("d",)]


@pytest.mark.parametrize("manual", [("a",), ("b", "c"), ALL], ids="".join)
def test_positions_are_those_on_axes(manual):
    def fun(x):
        within = jax.shard_map(
            lambda x: (
                x + sum(10**i * lax.axis_index(a) for i, a in enumerate(manual)) + lax.axis_index(manual)
            ),
            mesh=MESH.to_jax(),
            in_specs=P(manual),
            out_specs=P(manual),
            axis_names=set(manual),
        )
        return within(x)

    low = lowered(fun, X)
    ops = list(low.stages["optimize"].walk())
    assert {op.attrs["axes"] for op in ops if op.name == "axis_index"} == {(a,) for a in manual}
    assert not any(op.name == "partition_id" for op in ops)


ODD = [[0, 3], [1, 2], [4, 7], [5, 6]]


@pytest.mark.parametrize(
    "options",
    [spmd.Options(memory_limit=5000), spmd.Options(hardware="tpu-v5p", collective_matmul=True)],
    ids=["memory", "rings"],
)
def test_groups_of_no_axes_stay_as_they_are(options):
    def fun(x):
        within = {"axis_index_groups": ODD, "tiled": True}
        wide = lax.all_gather(x, "d", axis=1, **within)
        sums = lax.psum_scatter(wide @ wide.T, "d", scatter_dimension=1, **within)
        return (
            sums
            + lax.all_to_all(x[:, :4], "d", 0, 1, **within).sum()
            + lax.psum(x > 0, "d", axis_index_groups=ODD)[:, :4]
        )

    low = lowered(mapped(fun, mesh=LINE), X, mesh=LINE, options=options)
    assert sorted((kind, axes, n) for kind, axes, n, *_ in told(low)) == [
        ("all_gather", ("d",), 2),
        ("all_reduce", ("d",), 2),
        ("all_to_all", ("d",), 2),
        ("reduce_scatter", ("d",), 2),
    ]
    assert low.cost("tpu-v5p").comm_seconds > 0


def test_as_other_collectives_they_are_merged_and_counted_by_trips():
    def fun(x):
        def body(carry, _):
            return carry + lax.pmax(carry.max(), "b"), None

        first = lax.psum(x, "a") + lax.psum(x, "a")  # XLA would do that twice
        return lax.scan(body, first, None, length=5)[0], lax.psum(x[:1], "c"), lax.psum(x[1:2], "c")

    low = lowered(mapped(fun), X)
    assert sorted(told(low)) == [
        ("all_reduce", ("a",), 2, 512.0, 1),
        ("all_reduce", ("b",), 2, 4.0, 5),
        ("all_reduce", ("c",), 2, 128.0, 1),
    ]


PAIRS, FOURS = [[0, 1], [2, 3], [4, 5], [6, 7]], [[0, 1, 2, 3], [4, 5, 6, 7]]
FAR, EVERY_OTHER = [[0, 4], [1, 5], [2, 6], [3, 7]], [[0, 2, 4, 6], [1, 3, 5, 7]]


@pytest.mark.parametrize("first", [None, PAIRS, FOURS, FAR, EVERY_OTHER])
@pytest.mark.parametrize("second", [None, PAIRS, FOURS, FAR, EVERY_OTHER])
@pytest.mark.parametrize("kind", ["psum", "all_gather"])
def test_groups_of_groups_that_overlap(kind, first, second):
    """Sums of sums are one over other digits of the devices' numbers only."""

    def fun(x):
        for groups in (first, second):
            if kind == "psum":
                x = lax.psum(x, "d", axis_index_groups=groups)
            else:
                x = lax.all_gather(x, "d", axis=1, tiled=True, axis_index_groups=groups)
        return x

    lowered(mapped(fun, mesh=LINE), X, mesh=LINE)


def test_what_a_loop_repeats_runs_once():
    def fun(x):
        def body(carry, _):
            return carry + lax.psum(x * 2, "a") + lax.pmax(carry, "b"), lax.all_gather(
                lax.psum(x * 2, "a")[0], "c"
            )

        return lax.scan(body, lax.psum(x * 2, "a"), None, length=4)

    low = lowered(mapped(fun, out=(P(ALL), P(None, None, ALL))), X)
    assert sorted(told(low)) == [
        ("all_gather", ("c",), 2, 64, 1),
        ("all_reduce", ("a",), 2, 512.0, 1),
        ("all_reduce", ("b",), 2, 512.0, 4),
    ]


def test_sums_of_sums_are_one():
    low = lowered(mapped(lambda x: lax.psum(lax.psum(lax.psum(x, "c"), "a") * 2, "b")), X)
    assert told(low) == [("all_reduce", ("a", "c"), 4, 768.0, 1), ("all_reduce", ("b",), 2, 512.0, 1)]


def test_groups_that_meet_apart():
    """Only the devices that take a branch meet in it."""

    def fun(x):
        here = lax.axis_index("a") == 0
        return lax.cond(here, lambda x: lax.psum(x, ("b", "c")), lambda x: lax.pmax(x, "b"), x)

    low = lowered(mapped(fun), X)
    assert sorted(axes for _, axes, *_ in told(low)) == [("b",), ("b", "c")]


def test_axes_of_one_device_send_nothing():
    mesh = spmd.create_mesh([("a", 8), ("b", 1)])
    low = lowered(mapped(lambda x: lax.psum(x, "b"), mesh=mesh), X, mesh=mesh)
    assert told(low) == []
    assert low.cost("h100-nvlink").comm_seconds == 0


def test_their_time_is_estimated():
    low = lowered(mapped(lambda x: lax.all_gather(x, ALL)), X)
    cost = low.cost("h100-nvlink")
    assert cost.comm_bytes == {("all_gather", ALL): 512 * 7}
    assert cost.comm_seconds > 0


def test_beside_the_compilers():
    """A gradient through a manual region: the region's sum, and that over the replicas outside of it."""
    w = np.random.RandomState(1).randn(16, 8).astype(np.float32)

    def loss(w, x):
        return mapped(lambda x: lax.pmean((x**2).sum(), ALL), out=P())(x @ w @ w.T) / X.size

    fun = jax.value_and_grad(loss)
    step = spmd.spmd_jit(fun, mesh=MESH, in_layouts=(P(), P(ALL)))
    value, grad = step(w, X)
    wanted, wanted_grad = jax.jit(fun)(w, X)
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    np.testing.assert_allclose(grad, wanted_grad, rtol=1e-4, atol=1e-5)
    low = step.lower(w, X)
    causes = [c.cause for c in low.collectives()]
    assert low.comm_bytes() == sum(math.prod((c.bytes_per_device, c.trips)) for c in low.collectives())
    assert any(CAUSE in x for x in causes) and any(CAUSE not in x for x in causes)


REGION = """
  module @m attributes {mhlo.num_partitions = 8 : i32} {
    sdy.mesh @mesh = <["a"=2, "b"=2, "c"=2]>
    func.func @main(%0: tensor<64x16xf32>) -> tensor<64x16xf32> {
      %1 = sdy.manual_computation(%0) in_shardings=[<@mesh, [{"a", "b", "c"}, {}]>]
          out_shardings=[<@mesh, [{"a", "b", "c"}, {}]>] manual_axes={"a", "b", "c"} (%2: tensor<8x16xf32>) {
        %3 = "stablehlo.all_reduce"(%2) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
            replica_groups = GROUPS}> ({
        ^bb0(%4: tensor<f32>, %5: tensor<f32>):
          %6 = stablehlo.add %4, %5 : tensor<f32>
          stablehlo.return %6 : tensor<f32>
        }) : (tensor<8x16xf32>) -> tensor<8x16xf32>
        %7 = "stablehlo.collective_permute"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 1>,
            source_target_pairs = dense<> : tensor<0x2xi64>}> : (tensor<8x16xf32>) -> tensor<8x16xf32>
        %8 = stablehlo.add %3, %7 : tensor<8x16xf32>
        sdy.return %8 : tensor<8x16xf32>
      } : (tensor<64x16xf32>) -> tensor<64x16xf32>
      return %1 : tensor<64x16xf32>
    }
  }
"""
BY_AXES = "#stablehlo.replica_group_mesh_axes<mesh = {}, axes = [{}]>"
OWN_MESH = '#stablehlo.mesh<axes = [#stablehlo.mesh_axis<name = "x", size = 4>, #stablehlo.mesh_axis<name = "y", size = 2>]>'


@pytest.mark.parametrize(
    "groups, axes",
    [
        ("dense<> : tensor<0x0xi64>", ALL),
        ("dense<[[0, 2], [1, 3], [4, 6], [5, 7]]> : tensor<4x2xi64>", ("b",)),
        (
            BY_AXES.format("@mesh", '#stablehlo.axis_ref<name = "c">, #stablehlo.axis_ref<name = "a">'),
            ("a", "c"),
        ),
        (BY_AXES.format(OWN_MESH, '#stablehlo.axis_ref<name = "x", sub_axis_info = (1)2>'), ("a",)),
        (BY_AXES.format(OWN_MESH, '#stablehlo.axis_ref<name = "x">'), ("a", "b")),
    ],
)
def test_groups_in_every_form(groups, axes):
    """A permute without pairs sends nothing."""
    n = 2 ** len(axes)
    low = spmd.from_stablehlo(REGION.replace("GROUPS", groups))
    assert told(low) == [("all_reduce", axes, n, 512 * 2 * (n - 1) / n, 1)]


@pytest.mark.parametrize("axes", ["a", ("a", "c"), ALL], ids="".join)
def test_ragged_exchanges_are_told(axes):
    """Their sizes are data: they count as even ones."""
    n = 2 ** len(axes)

    def exchange(x):
        one, me = jnp.ones(n, jnp.int32), jnp.full(n, lax.axis_index(axes), jnp.int32)
        return lax.ragged_all_to_all(x, x * 0, jnp.arange(n), one, me, one, axis_name=axes)

    step = spmd.spmd_jit(mapped(exchange), mesh=MESH, in_layouts=P(ALL))
    low = step.lower(X)
    assert told(low) == [("ragged_all_to_all", tuple(axes), n, 512 * (n - 1) / n, 1)]
    assert "ragged_all_to_all over" in low.explain()
    assert low.cost("tpu-v5p").comm_seconds > 0


def test_broadcasts_are_told():
    """As `jax.lax.pbroadcast` writes them, which JAX lowers for GPUs and TPUs alone."""
    x, y = (Value(TensorType((8, 16), "f32")) for _ in range(2))
    op = Op("collective_broadcast", [x], [y], {"replica_groups": ((0, 1, 4, 5), (2, 3, 6, 7))})
    module = Module(MESH, {"main": Function("main", Block([x], [op], [y]))})
    (found,) = collectives(module)
    assert (found.kind, found.axes, found.group_size) == ("collective_broadcast", ("a", "c"), 4)
    assert found.bytes_per_device == 512
