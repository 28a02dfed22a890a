"""Relayouts between any two layouts: right, lean, and never larger than the larger end."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.ir.graph import Module
from spmd_compiler.ir.layout import Layout, local_type
from spmd_compiler.ir.mesh import Mesh
from spmd_compiler.ir.types import TensorType
from spmd_compiler.passes.cost import with_room
from spmd_compiler.passes.relayout.bound import least_cost
from spmd_compiler.passes.relayout.planner import plan
from tests.share import examples

MESHES = [
    spmd.create_mesh([("a", 8)]),
    spmd.create_mesh([("a", 4), ("b", 2)]),
    spmd.create_mesh([("a", 2), ("b", 2), ("c", 2)]),
]


@st.composite
def layouts(draw, mesh, rank, partial=False):
    """Each axis on a dim, on none, or (if `partial`) a partial sum."""
    dims: list[list[str]] = [[] for _ in range(rank)]
    sums = {}
    for axis in draw(st.permutations(mesh.axis_names)):
        place = draw(st.integers(-2 if partial else -1, rank - 1))
        if place >= 0:
            dims[place].append(axis)
        elif place == -2:
            sums[axis] = "sum"
    return spmd.Layout([tuple(d) or None for d in dims], mesh, partial=sums)


@st.composite
def cases(draw, sizes):
    mesh = draw(st.sampled_from(MESHES))
    shape = tuple(draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3)))
    chain = [draw(layouts(mesh, len(shape), partial=i == 1)) for i in range(3)]
    return mesh, shape, chain


@examples(60)
@given(cases(sizes=[1, 3, 5, 8, 12]))
def test_values_survive(case):
    """Through any layouts, uneven and partial ones too, and back."""
    mesh, shape, chain = case

    def f(x):
        for layout in chain:
            x = spmd.relayout(x, layout)
        return x

    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    whole = spmd.Layout([None] * len(shape), mesh)
    np.testing.assert_array_equal(spmd.spmd_jit(f, mesh=mesh, out_layouts=whole)(x), x)


@examples(150)
@given(cases(sizes=[8, 16, 32]))
def test_no_step_is_larger_than_the_larger_end(case):
    mesh, shape, (source, _, target) = case
    type = TensorType(shape, "f32")
    source, target = source.ir, target.ir
    bound = max(local_type(type, x, mesh).nbytes for x in (source, target))
    at = source
    for step in plan(type, source, target, mesh).steps:
        assert local_type(type, step.target, mesh).nbytes <= bound, step
        at = step.target
    assert local_type(type, at, mesh) is local_type(type, target, mesh)


@examples(300)
@example(
    (
        MESHES[1],
        (1,),
        [spmd.Layout([None], MESHES[1], partial={"a": "sum"}), spmd.Layout([("a", "b")], MESHES[1])],
    )
)
@given(cases(sizes=[0, 1, 3, 5, 8, 12, 32]))
def test_the_bound_is_below_every_plan(case):
    mesh, shape, chain = case
    type = TensorType(shape, "f32")
    cramped = with_room(Module(Mesh(mesh.shape), {}), 16.0).mesh  # where large blocks are dear
    for source, target, on in itertools.product(chain, chain, (mesh, cramped)):
        least, cost = least_cost(type, source.ir, target.ir, on), plan(type, source.ir, target.ir, on).cost
        assert least <= cost * (1 + 1e-12) + 1e-6


@examples(100)
@example(
    (
        MESHES[2],
        (8, 8, 3),
        [spmd.Layout(dims, MESHES[2]) for dims in ([None, "b", "c"], [("b", "c"), None, "a"], [None] * 3)],
    ),
    16.0,
)
@given(cases(sizes=[3, 8, 32]), st.sampled_from([16.0, 64.0, 1024.0]))
def test_where_large_blocks_are_dear_plans_cost_no_more_for_those_that_are_shared(case, room):
    """What is taken over from a mesh on which they are not costs what a plan made for the prices does, up to part of what is sent:
    which steps make an exchange shows behind the search only, so that of plans of like costs it may be either's."""
    mesh, shape, chain = case
    type, usual = TensorType(shape, "f32"), Mesh(mesh.shape)
    shared, own = (with_room(Module(usual, {}), room).mesh for _ in range(2))
    del own.cache["roomy"]
    for source in chain:
        for target in chain:
            costs = [plan(type, source.ir, target.ir, m).cost for m in (shared, own)]
            sent = plan(type, source.ir, target.ir, shared.cache["roomy"]).cost
            assert costs[0] == pytest.approx(costs[1], abs=sent / 4)


AB = MESHES[1]
KIB = 64 * 64 * 4


@pytest.mark.parametrize(
    ("source", "target", "kinds", "sent"),
    [
        ((("a",), ()), ((), ()), ["all_gather"], KIB * 3 / 4),
        (((), ()), (("a",), ()), [], 0),
        ((("a",), ()), ((), ("a",)), ["all_to_all"], KIB / 4 * 3 / 4),
        ((("a", "b"), ()), (("b", "a"), ()), ["collective_permute"], KIB / 8),
        ((("a", "b"), ()), (("a",), ("b",)), ["all_to_all"], KIB / 8 / 2),
        ((("a",), ("b",)), ((), ("b",)), ["all_gather"], KIB / 2 * 3 / 4),
        ((("a", "b"), ()), ((), ()), ["all_gather"], KIB * 7 / 8),
        ((("a",), ("b",)), (("b",), ("a",)), ["collective_permute"] * 2, KIB / 8),
        ((("a",), ()), (("b",), ()), ["collective_permute", "all_gather"], KIB / 8 + KIB * 3 / 8),
        ((("b",), ()), (("a",), ()), ["collective_permute"], KIB / 4),
    ],
)
def test_plans(source, target, kinds, sent):
    def put(dims):
        return spmd.Layout([d or None for d in dims], AB)

    step = spmd.spmd_jit(lambda x: x + 0, mesh=AB, in_layouts=put(source), out_layouts=put(target))
    lowered = step.lower(jax.ShapeDtypeStruct((64, 64), np.float32))
    found = lowered.collectives()
    assert [c.kind for c in found] == kinds
    assert lowered.comm_bytes() == sent


@pytest.mark.parametrize(
    ("mesh", "source", "target", "kinds"),
    [
        (AB, (("b",), ()), (("a",), ()), ["slice", "collective_permute"]),
        (MESHES[2], (("a",), ("b",)), ((), ("c",)), ["collective_permute", "all_gather"]),
        (MESHES[2], (("a",), ()), (("b", "c"), ()), ["slice", "collective_permute"]),
    ],
)
def test_larger_blocks_move_at_once(mesh, source, target, kinds):
    found = plan(TensorType((64, 64), "f32"), Layout(source), Layout(target), mesh)
    assert [s.kind for s in found.steps] == kinds
    x = np.arange(64 * 64, dtype=np.float32).reshape(64, 64)
    before, after = (spmd.Layout([d or None for d in dims], mesh) for dims in (source, target))
    step = spmd.spmd_jit(lambda x: spmd.relayout(x, after), mesh=mesh, in_layouts=before, out_layouts=after)
    np.testing.assert_array_equal(step(x), x)


@pytest.mark.parametrize(
    ("source", "target", "blocks"),
    [
        (((), ("c", "b", "a")), (("b",), ("a", "c")), 1.5),
        ((("a",), ("c", "b")), ((), ("b", "a")), 2),
        ((("b",), ("a", "c")), (("c", "b", "a"), ()), 1.75),
        ((("b", "c"), ("a",)), ((), ("b",)), 4),
        (((), ("a", "b")), (("a",), ("c", "b")), 1),
        (((), ("a", "b")), (("b", "a", "c"), ()), 1.75),
        ((("a", "b"), ()), ((), ("b", "a")), 1.5),
        ((("c",), ("b", "a")), (("c", "a", "b"), ()), 0.75),
        ((("c", "b", "a"), ()), ((), ("c", "a", "b")), 0.875),
        ((("a", "c", "b"), ()), ((), ("b", "a", "c")), 0.875),
    ],
)
def test_axes_of_a_cube_change_dims(source, target, blocks):
    """No more eighths are sent than XLA's partitioners send; axes that are new are cut first where they save most."""
    mesh, shape = MESHES[2], (64, 64)
    x = np.arange(64 * 64, dtype=np.float32).reshape(shape)
    before, after = (spmd.Layout([d or None for d in dims], mesh) for dims in (source, target))
    step = spmd.spmd_jit(lambda x: spmd.relayout(x, after), mesh=mesh, in_layouts=before, out_layouts=after)
    assert step.lower(x).comm_bytes() <= blocks * x.nbytes / 8
    np.testing.assert_array_equal(step(x), x)


@pytest.mark.parametrize("shape", [(64, 64), (16, 12), (7, 13), (8, 5, 6)])
def test_axes_that_change_dims_in_another_order_do_so_at_once(shape):
    """In one all-to-all: the pieces change places on the devices that send them."""
    x = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    before, after = (
        (P(("a", "b"), "c"), P("c", ("b", "a"))) if len(shape) == 3 else (P(("a", "b")), P(None, ("b", "a")))
    )
    f = spmd.spmd_jit(lambda x: spmd.relayout(spmd.relayout(x, before) + 1, after) * 2, mesh=MESHES[2])
    np.testing.assert_array_equal(f(x), (x + 1) * 2)
    if shape[0] == 64:
        kinds = [c.kind for c in f.lower(x).collectives()]
        assert kinds == ["all_to_all"]


@pytest.mark.parametrize(
    ("source", "target", "kinds"),
    [(("a", "b"), ("a",), ["all_gather", "reblock"]), (("a",), ("a", "b"), ["reblock", "slice"])],
)
def test_blocks_of_another_size_come_from_neighbours(source, target, kinds):
    """60 rows are 8 blocks of 8 and 4 blocks of 15: of two of the former at most 3 rows lie elsewhere."""
    type, ends = TensorType((60, 64), "f32"), (Layout((source, ())), Layout((target, ())))
    assert [s.kind for s in plan(type, *ends, AB).steps] == kinds
    x = np.arange(60 * 64, dtype=np.float32).reshape(60, 64)
    chain = [spmd.Layout([axes, None], AB) for axes in (source, target)]
    whole = spmd.Layout([None, None], AB)

    def f(x):
        for layout in chain:
            x = spmd.relayout(x + 1, layout)
        return x

    step = spmd.spmd_jit(f, mesh=AB, in_layouts=whole, out_layouts=whole)
    np.testing.assert_array_equal(step(x), x + 2)
    sent = [c.bytes_per_device for c in step.lower(x).collectives() if c.kind == "collective_permute"]
    assert sent == [3 * 64 * 4]


@pytest.mark.parametrize(("a", "b"), [(4, 16), (16, 4), (2, 32)])
def test_axes_of_different_sizes_that_trade_places(a, b):
    """A permute of the block and an all-to-all over what one axis is larger by, also where that is cut into many primes."""
    mesh = spmd.create_mesh([("a", a), ("b", b)], abstract=True)
    source, target = Layout((("b",), ("a",))), Layout((("a",), ("b",)))
    for ends in ((source, target), (target, source)):
        steps = plan(TensorType((128, 128), "f32"), *ends, mesh).steps
        assert sorted(s.kind for s in steps) == ["all_to_all", "collective_permute"]


def test_partials_are_scattered_where_the_sum_is_wanted_in_shards():
    def kinds(target):
        type = TensorType((64, 64), "f32")
        source = Layout(((), ()), (("a", "sum"),))
        return [s.kind for s in plan(type, source, target, AB).steps]

    assert kinds(Layout(((), ()))) == ["all_reduce"]
    assert kinds(Layout((("a",), ()))) == ["reduce_scatter"]
    assert kinds(Layout((("b", "a"), ()))) == ["slice", "reduce_scatter"]


@pytest.mark.parametrize("shape", [(64, 64), (64, 60), (61, 64, 3)])
@pytest.mark.parametrize("swapped", [("b", "a"), (("b", "a"), None), (None, ("b", "a"))])
def test_axes_that_trade_places(shape, swapped):
    """In one exchange where it is even, and right in any case."""
    free = [None] * (len(shape) - 2)
    source, target = spmd.Layout(["a", "b", *free], AB), spmd.Layout([*swapped, *free], AB)
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 1
    whole = spmd.Layout([None] * len(shape), AB)
    step = spmd.spmd_jit(
        lambda x: spmd.relayout(spmd.relayout(x, source), target), mesh=AB, out_layouts=whole
    )
    np.testing.assert_array_equal(step(x), x)


@examples(100)
@given(cases(sizes=[1, 5, 8, 32]), st.permutations("abc"))
def test_axes_of_one_size_are_alike(case, names):
    """Under other names a relayout costs the same: it is the same plan, and what is reduced together later is over axes in one order."""
    _, shape, chain = case
    mesh, other = Mesh(dict.fromkeys("abc", 2)), dict(zip("abc", names, strict=True))
    type = TensorType(shape, "f32")
    for source in chain:
        for target in chain:
            found = plan(type, source.ir, target.ir, mesh)
            named = plan(type, source.ir.renamed(other), target.ir.renamed(other), mesh)
            assert named.cost == pytest.approx(found.cost)
            summed = [s.axes for s in named.steps if s.kind == "all_reduce"]
            assert summed == [tuple(sorted(axes)) for axes in summed]


@pytest.mark.parametrize("names", list(itertools.permutations("abc")))
def test_an_exchange_is_found_whatever_the_axes_are_called(names):
    a, b, c = names
    source, target = Layout(((c, a), (b,))), Layout(((b,), (c, a)))
    steps = plan(TensorType((512, 512), "f32"), source, target, Mesh(dict.fromkeys("abc", 2))).steps
    assert [s.kind for s in steps] == ["exchange"]
