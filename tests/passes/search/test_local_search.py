"""Moves after the dynamic programming: what each finds that the decisions of one axis at a time don't."""

import gc
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.ir.layout import Layout
from spmd_compiler.passes import propagate
from spmd_compiler.passes.pipeline import compile_module
from spmd_compiler.passes.propagate import Propagate
from spmd_compiler.passes.report import collectives
from spmd_compiler.passes.search import exact
from spmd_compiler.passes.search.joint_moves import joint_moves
from spmd_compiler.passes.search.region_moves import region_moves
from spmd_compiler.passes.search.regions import Around, cleared, drawn, exchanged, moved
from spmd_compiler.passes.search.traffic import Traffic
from spmd_compiler.tools.fuzz.generate import program
from tests.variants import lowered

MESH = spmd.create_mesh({"a": 2, "b": 4})


def zeros(*shape):
    return jax.ShapeDtypeStruct(shape, np.float32)


def stage(function, args, layouts):
    step = spmd.spmd_jit(function, mesh=MESH, in_layouts=layouts)
    return ir.parse(step.lower(*args).as_text("import"))


def imported(*case):
    return prepared(stage(*case))


def prepared(module):
    """What `propagate` gets."""
    results = {}
    compile_module(module, callback=lambda done, result: results.setdefault(done.name, result))
    return results["merge_moves"]


def without_moves(module, monkeypatch):
    """The assignment that the dynamic programming finds alone."""
    with monkeypatch.context() as patch:
        patch.setattr(propagate, "local_search", lambda engine, body: None)
        return Propagate().assigned(module)[0]


def gained(engine, moves):
    """The part of the program's cost that moves save, which is what they say."""
    before = engine.total()
    gain = moves(engine)
    assert engine.total() == pytest.approx(before - gain)
    return gain / before


def lookup(table, ids):
    return table[ids]


def normalised(x, kernels):
    """Convolutions with batch normalisation between: the statistics have many users."""
    for kernel, stride in zip(kernels, (1, 4, 1), strict=True):
        x = lax.conv_general_dilated(
            x, kernel, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )
        mean = x.mean((0, 1, 2))
        x = jnp.maximum((x - mean) * lax.rsqrt(((x - mean) ** 2).mean((0, 1, 2)) + 1e-5), 0)
    return x.mean((1, 2))


def power(matrix, x):
    def step(_, x):
        y = matrix @ x
        return y / jnp.linalg.norm(y)

    return lax.fori_loop(0, 10, step, x)


def small_update(x, w, v):
    """Activations so small that computing them everywhere costs less than summing up over the batch."""
    h = jnp.maximum(x @ w, 0)
    h = (h - h.mean(0)) * lax.rsqrt(((h - h.mean(0)) ** 2).mean(0) + 1e-5)
    return w - 0.1 * jax.grad(lambda w: ((jnp.maximum(x @ w, 0) - h) @ v).var())(w)


LOOKUP = lookup, (zeros(4096, 256), jax.ShapeDtypeStruct((16, 128), np.int32)), (P("b"), P("a"))
KERNELS = [zeros(3, 3, 3, 32), zeros(3, 3, 32, 32), zeros(3, 3, 32, 32)]
CONVOLUTIONS = normalised, (zeros(16, 24, 24, 3), KERNELS), (P("a", "b"), P())
POWER = power, (zeros(1024, 1024), zeros(1024)), (P("b"), P("b"))
UPDATE = small_update, (zeros(64, 1200), zeros(1200, 48), zeros(48, 2)), (P("b"), P(), P())


def test_what_is_cut_is_made_in_parts():
    """Also where it is a hundredth of all work: the momenta of chains of Hamiltonian Monte Carlo."""
    text = lowered("hmc_chains", 0).as_text()
    assert "f32[16,64] = chlo.erf_inv" in text


def test_both_axes_of_a_lookup_move_onto_its_features_together(monkeypatch):
    """Moving one of them alone costs as much as it saves."""
    module = imported(*LOOKUP)
    engine = without_moves(module, monkeypatch)
    assert gained(engine, joint_moves) > 0.1
    exact.solve(engine, module.main.body, 20)
    assert Propagate().assigned(module)[0].total() == pytest.approx(engine.total(), rel=1e-3)


def test_the_moved_lookup_is_right():
    table, ids = np.random.RandomState(0).randn(4096, 256), np.arange(2048).reshape(16, 128)
    args = table.astype(np.float32), ids.astype(np.int32)
    step = spmd.spmd_jit(lookup, mesh=MESH, in_layouts=LOOKUP[2])
    np.testing.assert_array_equal(step(*args), lookup(*args))


def test_nothing_moves_where_nothing_is_sent(monkeypatch):
    module = imported(lambda x, w: x @ w, (zeros(8, 8), zeros(8, 8)), (P("a"), P(None, "b")))
    engine = without_moves(module, monkeypatch)
    choices = dict(engine.choices)
    assert joint_moves(engine) == region_moves(engine) == 0
    assert engine.choices == choices


@pytest.mark.parametrize("case", [CONVOLUTIONS, UPDATE], ids=["convolutions", "update"])
def test_regions_move_together(case, monkeypatch):
    module = imported(*case)
    engine = without_moves(module, monkeypatch)
    assert gained(engine, region_moves) > 0.001
    exact.solve(engine, module.main.body, 20)
    assert Propagate().assigned(module)[0].total() <= 1.02 * engine.total()


def test_a_search_leaves_no_cycles_to_collect(monkeypatch):
    """While programs are compiled nothing looks for cycles: what they hold would stay until much later."""
    module = imported(*CONVOLUTIONS)
    engine = without_moves(module, monkeypatch)
    assert region_moves(engine) > 0
    left = weakref.ref(engine)
    gc.disable()
    try:
        del engine
        assert left() is None
    finally:
        gc.enable()


def test_few_bytes_come_before_few_messages(monkeypatch):
    """Normalising everywhere would spare the messages of the norm in each iteration."""
    module = imported(*POWER)
    engine = without_moves(module, monkeypatch)
    traffic = Traffic(engine.mesh, engine.book)
    sent = traffic.sent(engine)
    assert region_moves(engine) > 0
    assert traffic.sent(engine) > sent
    assert traffic.sent(Propagate().assigned(module)[0]) == sent


def test_traffic_is_what_the_program_sends():
    module = stage(lambda x, w: jnp.tanh(x @ w).sum(0), (zeros(64, 32), zeros(32, 64)), (P("a", "b"), P("b")))
    stages = compile_module(module)
    engine, _ = Propagate().assigned(prepared(module))
    found = collectives(stages["optimize"])
    sent = sum(c.bytes_per_device * c.trips for c in found)
    assert sent > 0
    assert sent <= Traffic(engine.mesh, engine.book).sent(engine) <= sent + 4 * len(found)


def test_the_region_of_a_dim():
    """What goes with the rows of x moves; the product, which sums over its columns, does without the axis."""
    module = imported(lambda x, w: jnp.tanh(x + 1) @ w, (zeros(8, 16), zeros(16, 32)), (P(None, "b"), P("b")))
    engine, _ = Propagate(sweeps=0).assigned(module)
    x, w = module.main.body.args
    region = moved(Around(engine), x, "b", 0, True, 100)
    dot = next(op for op in region if op.name == "dot_general")
    assert {op.name for op in region} >= {"add", "tanh", "dot_general"}
    assert [str(x) for x in region[dot].demands] == ["{b,-}", "{-,-}"]
    columns = moved(Around(engine), w, "b", 1, True, 100)
    assert [str(x) for x in columns[dot].demands] == ["{-,-}", "{-,b}"]
    assert all("b" not in x.axes for op, way in columns.items() if op is not dot for x in way.results)


def test_the_region_of_partial_sums():
    """What is linear in the product goes on with its sums, those of both products are added up together."""

    def two(x, w, y, v):
        return jnp.tanh(2.0 * (x @ w + y @ v))

    sizes = (zeros(8, 16), zeros(16, 32)) * 2
    module = imported(two, sizes, (P(), P(), P(), P()))
    engine, _ = Propagate(sweeps=0).assigned(module)
    x = module.main.body.args[0]
    region = {op.name: way for op, way in moved(Around(engine), x, "b", 1, True, 100).items()}
    assert region["dot_general"].results[0].partial == (("b", "sum"),)
    for name in ("add", "multiply"):
        assert region[name].results[0].partial == (("b", "sum"),)
    assert "tanh" not in region
    assert not moved(Around(engine), x, "b", 1, False, 100).keys() & region.keys()


def test_the_region_without_axes():
    """What both moments are made of runs whole; a constant does too, but not who else reads it."""

    def moments(g, m, z):
        return 0.9 * m + 0.1 * g, 0.1 * (g * g), 0.1 * z

    layouts = (P("a", "b"), P("a", "b"), P("a", "b"))
    module = imported(moments, (zeros(8, 16), zeros(8, 16), zeros(8, 16)), layouts)
    engine, _ = Propagate().assigned(module)
    first, _, other = module.main.body.returns
    region = cleared(Around(engine), first, ("a", "b"), 100)
    assert sorted(op.name for op in region) == ["add", *["broadcast_in_dim"] * 2, *["multiply"] * 4]
    assert not any(x.axes for way in region.values() for x in (*way.demands, *way.results))
    assert not any(other in op.results for op in region)


def test_what_is_gathered_is_gathered_once():
    """The moments of Adam are replicated here: the gradients are gathered, not both moments. Shardy and GSPMD send 53.5 MB."""
    assert lowered("lm_2d_train_unrolled~many0").comm_bytes() < 45e6


def test_columns_are_looked_up_for_what_works_on_rows():
    """Alone, the lookup can't do without gathering the table: others would have to gather what it gives. GSPMD sends 13.48 MB."""
    assert lowered("lm_fsdp_train_unrolled~1", 7).comm_bytes() < 13.4e6


def test_axes_change_places():
    def f(x, w):
        return lax.fori_loop(0, 3, lambda _, x: jnp.tanh(x.reshape(4, 2, 8).reshape(8, 8) + x), x) @ w

    module = imported(f, (zeros(8, 8), zeros(8, 8)), (P("a", "b"), P("b")))
    engine, _ = Propagate(sweeps=0).assigned(module)
    (x, _) = module.main.body.args
    region = exchanged(Around(engine), x, "a", "b", 100)
    carry = next(move for move in region.values() if isinstance(move, Layout) and move.rank == 2)
    assert str(carry) == "{b,a}"
    dot = next(move for node, move in region.items() if getattr(node, "name", "") == "dot_general")
    assert [str(x) for x in (*dot.demands, *dot.results)] == ["{b,a}", "{a,-}", "{b,- | +a}"]


@pytest.mark.parametrize("seed", range(40))
def test_never_dearer_and_never_more_bytes(seed, monkeypatch):
    module = prepared(program(seed))
    before = without_moves(module, monkeypatch)
    after, _ = Propagate().assigned(module)
    assert after.total() <= before.total() + 1e-6
    assert after.traffic.sent(after) <= before.traffic.sent(before) + 1e-6


def test_axes_of_a_dim_in_the_order_that_suits():
    """A lookup may leave its result by one all-to-all of the table, if the axes of a dim come in the right order."""
    table, ids = zeros(1024, 512), jax.ShapeDtypeStruct((8, 64), np.int32)
    step = spmd.spmd_jit(lookup, mesh=MESH, in_layouts=(P("b"), P("a")))
    lowered = step.lower(table, ids)
    exchanged = [c for c in lowered.collectives() if c.kind == "all_to_all"]
    assert len(exchanged) == 1 and exchanged[0].bytes_per_device == 3 / 4 * 1024 * 512 * 4 / 8
    assert not [c for c in lowered.collectives() if c.kind == "collective_permute"]


def test_a_region_turns_its_axes_round():
    """The second axis may come before or behind the first one on a dim. Behind, only that one is exchanged, but the negation
    would have to turn round with the sort."""
    mesh = spmd.create_mesh({"a": 4, "b": 2}, abstract=True)
    step = spmd.spmd_jit(
        lambda x: -jnp.sort(x, 0), mesh=mesh, in_layouts=P("a", "b"), out_layouts=P("a", "b")
    )
    lowered = step.lower(zeros(1024, 32))
    assert [(c.kind, c.bytes_per_device) for c in lowered.collectives()] == [("all_to_all", 12_288)] * 2


def test_an_axis_that_is_nowhere_comes_before_and_behind_others():
    """A product of merged dims, whose sharded dim can be split again only if its axes come in their order."""
    assert lowered("reshape_merge_bs_mm~cube0").comm_bytes() <= 196_608


@pytest.mark.parametrize("axes", [{"a": 8}, {"a": 2, "b": 4}])
def test_copies_are_made_where_they_are_wanted(axes):
    """Of a tiled array each device has the rows that its part of the result repeats: two blocks, with none of them its own."""
    mesh, rows = spmd.create_mesh(axes), P(tuple(axes))
    step = spmd.spmd_jit(lambda x: jnp.tile(x, (2, 1)) * 2, mesh=mesh, in_layouts=rows, out_layouts=rows)
    x = np.arange(64 * 8, dtype=np.float32).reshape(64, 8)
    assert step.lower(x).comm_bytes() == 2 * x.nbytes / 8
    np.testing.assert_array_equal(step(x), 2 * np.tile(x, (2, 1)))


def test_the_region_that_makes_a_value():
    """Back to what reads the argument: through the reshape, which cuts the first dim over one axis and the second over the other."""
    module = imported(lambda x: jnp.tanh(jnp.tile(x, (2, 1))), (zeros(64, 8),), (P(("a", "b")),))
    engine, _ = Propagate(sweeps=0).assigned(module)
    (result,) = module.main.body.returns
    region = drawn(Around(engine), result, Layout((("a", "b"), ())), 100)
    assert [op.name for op in region] == ["tanh", "reshape", "broadcast_in_dim"]
    assert [str(x) for x in list(region.values())[-1].demands] == ["{b,-}"]
    assert not drawn(Around(engine), result, Layout(((), ()), (("a", "sum"),)), 100)


def test_a_carry_moves_where_its_sums_are_scattered():
    """Power iteration: what is summed over both axes is scattered over both, and gathered once, behind the loop."""
    mesh = spmd.create_mesh({"b": 2, "a": 3}, jax.devices()[:6])

    def power(matrix, v):
        return lax.fori_loop(0, 10, lambda _, v: (lambda w: w / jnp.linalg.norm(w))(matrix @ v), v)

    step = spmd.spmd_jit(power, mesh=mesh, in_layouts=(P(None, ("b", "a")), P("b")), out_layouts=P("b"))
    matrix = np.random.default_rng(0).random((384, 384)).astype(np.float32)
    v = np.ones(384, np.float32)
    sent = {c.kind: (c.trips, c.bytes_per_device) for c in step.lower(matrix, v).collectives()}
    assert sent["reduce_scatter"] == (10, 5 / 6 * v.nbytes)
    assert sent["all_gather"] == (1, 2 / 6 * v.nbytes)
    np.testing.assert_allclose(step(matrix, v), jax.jit(power)(matrix, v), rtol=1e-4)


@pytest.mark.parametrize(
    ("fun", "given"),
    [
        (lambda x, y: x[:, None] * y[None], (P("a"), P())),
        (lambda x, y: jnp.tile(x, (1, 16)) + y.sum(), (P(None, "a"), P())),
        (lambda x, y: jax.nn.one_hot(x[:, 0].astype(int), 256) * y[0, 0], (P("a"), P())),
    ],
)
def test_small_values_take_the_order_of_the_result(fun, given):
    """Not the large one that is made of them: a relayout of `x` is all that is sent."""
    mesh = spmd.create_mesh({"a": 4, "b": 2}, abstract=True)
    args = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((64, 128), (16, 128))]
    lowered = spmd.spmd_jit(fun, mesh=mesh, in_layouts=given, out_layouts=P(("b", "a"))).lower(*args)
    assert lowered.comm_bytes() <= 64 * 128 * 4 / 8
