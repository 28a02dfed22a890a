"""Collectives that go together: they stay behind what they need, and give what each gave."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spmd_compiler import ir
from spmd_compiler.ir.types import numpy_dtype
from spmd_compiler.ir.verify import verify
from spmd_compiler.passes.emit.builder import Builder
from spmd_compiler.passes.hardware import PRESETS
from spmd_compiler.passes.optimizations.combine import BUCKET, bucket_sizes, combine_collectives
from spmd_compiler.passes.optimizations.packing import COPIED
from spmd_compiler.passes.optimizations.split_reductions import split_reductions
from spmd_compiler.tools.interpret import run_devices

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
    assert bucket_sizes(None, None) == bucket_sizes(PRESETS["cpu"], 80e9) == {BUCKET}
    tpu, gpu = (bucket_sizes(PRESETS[name], None) for name in ("tpu-v5p", "h100-nvlink"))
    assert min(tpu) < min(gpu) < max(tpu) == max(gpu) == BUCKET


def test_buckets_are_small_where_memory_is():
    assert bucket_sizes(None, 64e6) == {1_000_000}


GATHERS = """mesh {a=2}
func @main(%x: f32[16,256] {-,-}, %y: f32[16,256] {-,-}, %z: f32[16,256] {-,-}) -> (f32[32,256] {-,-}, f32[32,256] {-,-}, f32[32,256] {-,-}) {
  %0: f32[32,256] = all_gather(%z) axes=["a"] dim=0
  %1: f32[32,256] = all_gather(%x) axes=["a"] dim=0
  %2: f32[32,256] = all_gather(%y) axes=["a"] dim=0
  %3: f32[32,256] = exponential(%1)
  %4: f32[32,256] = negate(%2)
  return %3, %4, %0
}
"""


def test_what_is_used_first_goes_first():
    module = ir.parse(GATHERS)
    combine_collectives(module.main.body, module.mesh, bucket=70_000)
    verify(module)
    first, second = (op for op in module.walk() if op.name == "all_gather")
    assert first.operands[0].type.shape == (1, 2 * 16 * 256)
    assert second.operands[0] is module.main.body.args[2]


MIXED = """mesh {a=2, b=3}
func @main(%x: f32[6,4] {-,-}, %y: f32[2,3,12] {-,-,-}, %z: f32[6,6] {-,-}) -> (f32[3,8] {-,-}, f32[6,3,4] {-,-,-}, f32[3,12] {-,-}, f32[6,4] {-,-}, f32[2,3,12] {-,-,-}, f32[6,6] {-,-}, f32[6,4] {-,-}) {
  %0: f32[3,8] = all_to_all(%x) axes=["a"] split_dim=0 concat_dim=1
  %1: f32[6,3,4] = all_to_all(%y) axes=["b"] split_dim=2 concat_dim=0
  %2: f32[3,12] = all_to_all(%z) axes=["a"] split_dim=0 concat_dim=1
  %3: f32[6,4] = collective_permute(%x) axes=["b"] shift=1 wrap=true
  %4: f32[2,3,12] = collective_permute(%y) axes=["b"] shift=1 wrap=true
  %5: f32[6,6] = collective_permute(%z) axes=["b"] shift=1 wrap=false
  %6: f32[6,4] = collective_permute(%x) axes=["a", "b"] target_axes=["b", "a"]
  return %0, %1, %2, %3, %4, %5, %6
}
"""


def test_exchanges_and_permutes_that_go_the_same_way():
    module, packed = ir.parse(MIXED), ir.parse(MIXED)
    combine_collectives(packed.main.body, packed.mesh)
    verify(packed)
    names = [op.name for op in packed.walk() if "axes" in op.attrs]
    assert names.count("all_to_all") == 2 and names.count("collective_permute") == 3
    _same_results(module, packed)


EDGES = """mesh {a=2}
func @main(%x: f32[256,128] {-,-}, %y: f32[256,128] {-,-}) -> (f32[256,256] {-,-}) {
  %0: f32[1,128] = slice(%x) start_indices=[255,0] limit_indices=[256,128] strides=[1,1]
  %1: f32[1,128] = collective_permute(%0) axes=["a"] shift=1 wrap=false
  %2: f32[257,128] = concatenate(%1, %x) dimension=0
  %3: f32[256,128] = slice(%2) start_indices=[0,0] limit_indices=[256,128] strides=[1,1]
  %4: f32[1,128] = slice(%y) start_indices=[255,0] limit_indices=[256,128] strides=[1,1]
  %5: f32[1,128] = collective_permute(%4) axes=["a"] shift=1 wrap=false
  %6: f32[257,128] = concatenate(%5, %y) dimension=0
  %7: f32[256,128] = slice(%6) start_indices=[0,0] limit_indices=[256,128] strides=[1,1]
  %8: f32[256,256] = concatenate(%3, %7) dimension=1
  return %8
}
"""


def test_little_of_much_is_cut_off_early():
    """The edge of a large array need not wait until another one's has come."""
    module, packed = ir.parse(EDGES), ir.parse(EDGES)
    combine_collectives(packed.main.body, packed.mesh)
    verify(packed)
    assert [op.name for op in packed.walk()].count("collective_permute") == 1
    _same_results(module, packed)


LOSS = """mesh {data=2, model=4}
func @main(%x: f32[64,64] {-,-}, %l: f32[] {}) -> (f32[64,64] {-,-}, f32[] {}) {
  %0: f32[] = negate(%l)
  %1: f32[64,64] = all_reduce(%x) axes=["model"] kind="sum"
  %2: f32[64,64] = exponential(%1)
  %3: f32[64,64] = all_reduce(%2) axes=["data"] kind="sum"
  %4: f32[] = all_reduce(%0) axes=["data", "model"] kind="sum"
  return %3, %4
}
"""


EARLY = """mesh {data=2, model=4}
func @main(%x: f32[64,64] {-,-}, %l: f32[] {}) -> (f32[64,64] {-,-}, f32[] {}) {
  %0: f32[] = all_reduce(%l) axes=["data", "model"] kind="sum"
  %1: f32[] = multiply(%0, %l)
  %2: f32[64,64] = all_reduce(%x) axes=["model"] kind="sum"
  %3: f32[64,64] = exponential(%2)
  %4: f32[64,64] = all_reduce(%3) axes=["data"] kind="sum"
  return %4, %1
}
"""


@pytest.mark.parametrize("text", [LOSS, EARLY])
def test_halves_of_a_small_reduction_go_with_others(text):
    module, packed = ir.parse(text), ir.parse(text)
    split_reductions(packed.main.body, packed.mesh, BUCKET)
    combine_collectives(packed.main.body, packed.mesh)
    verify(packed)
    assert [op.attrs["axes"] for op in packed.walk() if op.name == "all_reduce"] == [("model",), ("data",)]
    _same_results(module, packed)


def test_reductions_that_go_together_are_not_tried_one_by_one(monkeypatch):
    """As the gradients of small parameters in a deep network: combining the whole program for each would take minutes."""
    text = LOSS.replace(
        '  %4: f32[] = all_reduce(%0) axes=["data", "model"] kind="sum"',
        "\n".join(f'  %{i}: f32[] = all_reduce(%0) axes=["data", "model"] kind="sum"' for i in range(4, 40)),
    )
    module, tried = ir.parse(text.replace("return %3, %4", "return %3, %39")), list[ir.Block]()
    monkeypatch.setattr(
        "spmd_compiler.passes.optimizations.split_reductions.combine_reductions",
        lambda block, *_: tried.append(block),
    )
    split_reductions(module.main.body, module.mesh, BUCKET)
    assert not tried


def test_a_reduction_whose_halves_would_go_alone_stays():
    text = LOSS.replace(
        '%3: f32[64,64] = all_reduce(%2) axes=["data"]', '%3: f32[64,64] = all_reduce(%2) axes=["model"]'
    )
    module = ir.parse(text)
    split_reductions(module.main.body, module.mesh, BUCKET)
    assert str(module) == str(ir.parse(text))


def _same_results(module, packed):
    rng = np.random.default_rng(0)
    devices = range(module.mesh.size)
    args = [
        [rng.integers(-9, 9, v.type.shape).astype(numpy_dtype(v.type.dtype)) for _ in devices]
        for v in module.main.body.args
    ]
    for want, got in zip(run_devices(module, args), run_devices(packed, args), strict=True):
        np.testing.assert_array_equal(got, want)


TYPES = ("f32", "f32", "i32", "u32", "f16", "i16", "f64", "c64")
KINDS = ("all_gather", "all_reduce", "shift", "permute", "all_to_all", "reduce_scatter")


@given(st.data())
def test_packed_collectives_give_what_each_gave(data):
    mesh = ir.Mesh(
        data.draw(st.sampled_from([[("a", 2)], [("a", 2), ("b", 3)], [("a", 4), ("b", 1), ("c", 2)]]))
    )
    b = Builder(mesh, ir.Block([], [], []))
    for _ in range(data.draw(st.integers(2, 4))):
        shape = tuple(24 * data.draw(st.integers(0, 1)) or 1 for _ in range(data.draw(st.integers(1, 3))))
        b.block.args.append(ir.Value(ir.TensorType(shape, data.draw(st.sampled_from(TYPES)))))
    values = list(b.block.args)
    for _ in range(data.draw(st.integers(2, 6))):
        value = data.draw(st.sampled_from(values))
        axes = tuple(data.draw(st.permutations(mesh.axis_names)))[: data.draw(st.integers(1, 2))]
        dims = st.integers(0, value.type.rank - 1)
        long = [d for d, n in enumerate(value.type.shape) if n % mesh.axes_size(axes) == 0]
        kind = data.draw(st.sampled_from(KINDS if long else KINDS[:4]))
        if kind == "all_to_all":
            new = b.all_to_all(value, axes, data.draw(st.sampled_from(long)), data.draw(dims))
        elif kind == "reduce_scatter":
            new = b.reduce_scatter(value, axes, data.draw(st.sampled_from(long)), "sum")
        elif kind == "all_gather":
            new = b.all_gather(value, axes, data.draw(dims))
        elif kind == "all_reduce":
            reductions = ["sum"] if value.type.dtype == "c64" else ["sum", "max"]
            new = b.all_reduce(value, axes, data.draw(st.sampled_from(reductions)))
        elif kind == "shift":
            new = b.shift(value, axes, data.draw(st.integers(0, 2)), data.draw(st.booleans()))
        else:
            new = b.permute(value, axes, tuple(data.draw(st.permutations(axes))))
        if new.type.size < 30_000:
            values.append(new)
    b.block.returns = values
    module = ir.Module(mesh, {"main": ir.Function("main", b.block)})
    packed = ir.parse(str(module))
    split_reductions(packed.main.body, mesh, BUCKET)
    combine_collectives(packed.main.body, mesh)
    verify(packed)
    _same_results(module, packed)


CHAIN = """mesh {a=4, b=2}
func @main(%x: f32[256,256] {a,b}, %y: f32[256,64] {b,a}, %z: f32[64,512] {a,b}) -> (f32[256,512] {a,b}) {
  %0: f32[256,256] = all_gather(%y) axes=["a"] dim=1
  %1: f32[256,256] = dot_general(%x, %0) contract=[1]x[0] batch=[]x[]
  %2: f32[256,256] = all_reduce(%1) axes=["b"] kind="sum"
  %3: f32[256,512] = all_gather(%z) axes=["a"] dim=0
  %4: f32[256,512] = dot_general(%2, %3) contract=[1]x[0] batch=[]x[]
  return %4
}
"""
WIDER = (
    CHAIN.replace("(%x:", "(%v: f32[1024,8] {-,-}, %x:")
    .replace("-> (", "-> (f32[1024,1024] {-,-}, ")
    .replace("return", "%5: f32[1024,1024] = dot_general(%v, %v) contract=[1]x[1] batch=[]x[]\n  return %5,")
)


@pytest.mark.parametrize("text, copied, count", [(CHAIN, COPIED, 1), (CHAIN, BUCKET, 2), (WIDER, BUCKET, 1)])
def test_gathers_are_packed_where_there_is_room(text, copied, count):
    """In one buffer the second one's blocks lie there, and whole, while the first product runs; as operands of one gather only
    whole. What takes more elsewhere makes room."""
    module = ir.parse(text)
    combine_collectives(module.main.body, module.mesh, copied=copied)
    verify(module)
    assert [op.name for op in module.walk()].count("all_gather") == count


def test_what_is_small_is_packed_beside_larger_operands():
    module = ir.parse(
        """mesh {a=2}
func @main(%x: f32[64,32] {-,-}, %y: f32[8] {-}, %z: f32[4] {-}) -> (f32[64,32] {-,-}, f32[8] {-}, f32[4] {-}) {
  %0: f32[64,32] = all_reduce(%x) axes=["a"] kind="sum"
  %1: f32[8] = all_reduce(%y) axes=["a"] kind="sum"
  %2: f32[4] = all_reduce(%z) axes=["a"] kind="sum"
  return %0, %1, %2
}
"""
    )
    packed = ir.parse(str(module))
    combine_collectives(packed.main.body, module.mesh)
    verify(packed)
    (reduce,) = [op for op in packed.walk() if op.name == "all_reduce"]
    assert [v.type.shape for v in reduce.operands] == [(64, 32), (12,)]
    _same_results(module, packed)


FOUND = """mesh {a=2}
func @main(%x: f32[8] {a}, %y: i32[8] {a}, %z: f64[8] {a}) -> (f32[16] {-}, i32[16] {-}, f64[16] {-}) {
  %0: f32[16] = all_gather(%x) axes=["a"] dim=0
  %1: i32[16] = all_gather(%y) axes=["a"] dim=0
  %2: f64[16] = all_gather(%z) axes=["a"] dim=0
  return %0, %1, %2
}
"""


def test_what_moves_goes_together_as_bits():
    """Numbers and where they were found, as of an argmax; not what has another size, nor what is added up."""
    module = ir.parse(FOUND)
    packed = ir.parse(FOUND)
    combine_collectives(packed.main.body, module.mesh)
    verify(packed)
    sent = [op.operands[0].type.dtype for op in packed.walk() if op.name == "all_gather"]
    assert sorted(sent) == ["f64", "u32"]
    _same_results(module, packed)


@pytest.mark.parametrize("rows, count", [(256, 2), (32768, 1)])
def test_reduce_scatters_go_together_where_there_is_room(rows, count):
    """In one buffer both operands lie twice; an argument that takes far more makes room."""
    module = ir.parse(
        f"""mesh {{a=4}}
func @main(%v: f32[{rows},512] {{-,-}}, %x: f32[256,64] {{-,-}}, %y: f32[64,512] {{-,-}}, %z: f32[64,512] {{-,-}}) -> (f32[64,512] {{a,-}}, f32[64,512] {{a,-}}) {{
  %0: f32[256,512] = dot_general(%x, %y) contract=[1]x[0] batch=[]x[]
  %1: f32[64,512] = reduce_scatter(%0) axes=["a"] dim=0 kind="sum"
  %2: f32[256,512] = dot_general(%x, %z) contract=[1]x[0] batch=[]x[]
  %3: f32[64,512] = reduce_scatter(%2) axes=["a"] dim=0 kind="sum"
  return %1, %3
}}
"""
    )
    combine_collectives(module.main.body, module.mesh)
    verify(module)
    assert [op.name for op in module.walk()].count("reduce_scatter") == count
