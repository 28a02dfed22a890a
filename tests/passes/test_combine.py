"""Collectives that are packed together stay behind what they need."""

from spmd_compiler import ir
from spmd_compiler.ir.verify import verify
from spmd_compiler.passes.combine import BUCKET, bucket_size, combine_collectives
from spmd_compiler.passes.hardware import PRESETS

CHAINS = """mesh {a=2, b=2}
func @main(%x: f32[4] {-}, %y: f32[8] {-}, %z: f32[2] {-}) -> (f32[4] {-}, f32[8] {-}, f32[2] {-}) {
  %u: f32[4] = all_reduce(%x) axes=["b"] kind="sum"
  %0: f32[4] = all_reduce(%x) axes=["a"] kind="sum"
  %w: f32[2] = negate(%z)
  %1: f32[4] = all_reduce(%0) axes=["b"] kind="sum"
  %2: f32[8] = all_reduce(%y) axes=["b"] kind="sum"
  %3: f32[2] = all_reduce(%w) axes=["a"] kind="sum"
  %4: f32[4] = add(%1, %u)
  return %4, %2, %3
}
"""


def test_a_collective_of_a_collective():
    module = ir.parse(CHAINS)
    combine_collectives(module.main.body, module.mesh)
    verify(module)
    kept = [op.attrs["axes"] for op in module.walk() if op.name == "all_reduce"]
    assert kept == [("a",), ("b",)]


IN_TURN = """mesh {a=2, b=2}
func @main(%x: f32[4] {-}, %y: f32[8] {-}) -> (f32[2] {-}, f32[4] {-}) {
  %0: f32[2] = reduce_scatter(%x) axes=["a"] dim=0 kind="sum"
  %1: f32[2] = all_reduce(%0) axes=["b"] kind="sum"
  %2: f32[8] = negate(%y)
  %3: f32[4] = reduce_scatter(%2) axes=["a"] dim=0 kind="sum"
  %4: f32[4] = all_reduce(%3) axes=["b"] kind="sum"
  return %1, %4
}
"""


def test_what_several_waited_for_is_combined_too():
    module = ir.parse(IN_TURN)
    combine_collectives(module.main.body, module.mesh)
    verify(module)
    assert [op.name for op in module.walk() if "axes" in op.attrs] == ["reduce_scatter", "all_reduce"]


FOLLOWED = """mesh {a=2}
func @main(%x: f32[4] {-}, %y: f32[8] {-}) -> (f32[4] {-}, f32[8] {-}) {
  %0: f32[4] = all_reduce(%x) axes=["a"] kind="sum"
  %1: f32[4] = negate(%0)
  %2: f32[4] = exponential(%1)
  %3: f32[8] = all_reduce(%y) axes=["a"] kind="sum"
  return %2, %3
}
"""


def test_small_ops_behind_a_collective_wait():
    module = ir.parse(FOLLOWED)
    combine_collectives(module.main.body, module.mesh)
    verify(module)
    names = [op.name for op in module.walk()]
    assert names.count("all_reduce") == 1
    assert names.index("all_reduce") < names.index("negate") < names.index("exponential")


LARGE = """mesh {a=2}
func @main(%x: f32[256,256] {-,-}, %y: f32[512,128] {-,-}, %z: f32[4] {-}) -> (f32[256,256] {-,-}, f32[512,128] {-,-}, f32[4] {-}) {
  %0: f32[256,256] = all_reduce(%x) axes=["a"] kind="sum"
  %1: f32[512,128] = all_reduce(%y) axes=["a"] kind="sum"
  %2: f32[512,128] = negate(%1)
  %3: f32[4] = all_reduce(%z) axes=["a"] kind="sum"
  %4: f32[256,256] = all_reduce(%x) axes=["a"] kind="max"
  %5: f32[256,256] = add(%0, %4)
  return %5, %2, %3
}
"""


def test_large_all_reduces_become_one_of_several_operands():
    module = ir.parse(LARGE)
    combine_collectives(module.main.body, module.mesh)
    verify(module)
    reduces = [(len(op.operands), op.attrs["kind"]) for op in module.walk() if op.name == "all_reduce"]
    assert sorted(reduces) == [(1, "max"), (3, "sum")]
    assert not any(op.name == "concatenate" for op in module.walk())
    assert str(ir.parse(str(module))) == str(module)


def test_buckets_of_all_reduces():
    module = ir.parse(LARGE)
    combine_collectives(module.main.body, module.mesh, bucket=300_000)
    verify(module)
    sums = [len(op.operands) for op in module.walk() if op.name == "all_reduce" and op.attrs["kind"] == "sum"]
    assert sorted(sums) == [1, 2]


CAUSES = """mesh {a=2}
func @main(%x: f32[256,256] {-,-}, %y: f32[8] {-}, %z: f32[4] {-}) -> (f32[256,256] {-,-}, f32[8] {-}, f32[4] {-}) {
  %0: f32[8] = all_reduce(%y) axes=["a"] kind="sum" cause="add needs it"
  %1: f32[4] = all_reduce(%z) axes=["a"] kind="sum" cause="the result leaves"
  %2: f32[256,256] = all_reduce(%x) axes=["a"] kind="sum" cause="the result leaves"
  return %2, %0, %1
}
"""


def test_the_cause_counts_all():
    module = ir.parse(CAUSES)
    combine_collectives(module.main.body, module.mesh)
    (reduce,) = (op for op in module.walk() if op.name == "all_reduce")
    assert len(reduce.operands) == 2  # the small ones are packed
    assert reduce.attrs["cause"] in ("3 combined; add needs it", "3 combined; the result leaves")


def test_buckets_are_small_where_sending_can_be_hidden():
    assert bucket_size(None) == bucket_size(PRESETS["cpu"]) == BUCKET
    assert bucket_size(PRESETS["tpu-v5p"]) < bucket_size(PRESETS["h100-nvlink"]) < BUCKET
