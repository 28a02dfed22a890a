"""gather and scatter: dims that are indexed, looked up, taken whole or in part, and batching dims, all sharded at random."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from tests.share import examples

from .forced import spread_out
from .windowed import MESHES, Axes, gathered, run, sample, spec_of

few = examples(16)
meshes = st.sampled_from(MESHES)
MODES = ["clip", "fill"]
COMBINERS = {
    "add": lax.scatter_add,
    "mul": lax.scatter_mul,
    "min": lax.scatter_min,
    "max": lax.scatter_max,
    "set": lax.scatter,
}


class Case:
    """An operand and lookups with random dimension numbers: some operand dims are batching, some indexed, of the indexed
    ones some have windows of one position that the result does not have; the window and lookup dims mix in the result."""

    def __init__(self, data: st.DataObject):
        draw = data.draw
        rank = draw(st.integers(1, 3))
        self.shape = tuple(draw(st.lists(st.integers(1, 9), min_size=rank, max_size=rank)))
        roles = [draw(st.sampled_from(["batching", "indexed", "collapsed", "whole"])) for _ in self.shape]
        if not {"indexed", "collapsed"} & {*roles}:  # XLA drops all updates but one where nothing is indexed
            roles[0] = "indexed"
        self.batching = tuple(d for d, r in enumerate(roles) if r == "batching")
        self.indexed = tuple(
            draw(st.permutations([d for d, r in enumerate(roles) if r in ("indexed", "collapsed")]))
        )
        self.collapsed = tuple(d for d, r in enumerate(roles) if r == "collapsed")
        self.sizes = tuple(
            1 if d in self.batching + self.collapsed else draw(st.integers(1, n)) if d in self.indexed else n
            for d, n in enumerate(self.shape)
        )
        free = draw(st.lists(st.integers(1, 7), max_size=2))
        lookups = [("free", n) for n in free] + [("batching", d) for d in self.batching]
        lookups = draw(st.permutations(lookups))
        self.of_batching = tuple(lookups.index(("batching", d)) for d in self.batching)
        self.lookups = tuple(self.shape[x] if role == "batching" else x for role, x in lookups)
        window = [n for d, n in enumerate(self.sizes) if d not in self.batching + self.collapsed]
        total = len(window) + len(self.lookups)
        self.window_dims = tuple(sorted(draw(st.permutations(range(total)))[: len(window)]))
        result, w, k = [], iter(window), iter(self.lookups)
        for r in range(total):
            result.append(next(w) if r in self.window_dims else next(k))
        self.result = tuple(result)
        seed = draw(st.integers(0, 99))
        ends = [self.shape[d] for d in self.indexed]
        random = np.random.RandomState(seed)
        self.indices = (
            np.stack([random.randint(-2, n + 2, self.lookups) for n in ends], -1).astype(np.int32)
            if ends
            else np.zeros((*self.lookups, 0), np.int32)
        )

    def specs(self, data: st.DataObject, axes: Axes, *shapes: tuple[int, ...]) -> list[P]:
        found = []
        for shape in shapes:
            dims = [d for d, n in enumerate(shape) if n > 1]
            found.append(data.draw(spec_of(len(shape), axes, dims)) if dims else P())
        return found


@pytest.mark.parametrize("start", [-2, 0, 5, 9])
def test_one_lookup_out_of_range_that_is_cut_again(start):
    """XLA makes one slice of both, from the wrong place if the first start is out of range."""
    numbers = lax.GatherDimensionNumbers(offset_dims=(0,), collapsed_slice_dims=(), start_index_map=(0,))
    fun = lambda x, i: lax.gather(x, i, numbers, slice_sizes=(6,), mode="clip")  # noqa: E731
    indices = np.full((3, 1), start, np.int32)
    with spread_out("gather"):
        run(fun, [sample(7), indices], (("a", 3),), [P("a"), P("a", None)], out=P("a"))


@few
@given(st.data(), meshes, st.sampled_from(MODES), st.sampled_from(["float32", "int32", "bool"]))
def test_gather(data, axes, mode, dtype):
    case = Case(data)
    numbers = lax.GatherDimensionNumbers(
        offset_dims=case.window_dims,
        collapsed_slice_dims=case.collapsed,
        start_index_map=case.indexed,
        operand_batching_dims=case.batching,
        start_indices_batching_dims=case.of_batching,
    )
    x = np.asarray(jnp.asarray(sample(*case.shape) * 3, dtype))
    specs = case.specs(data, axes, case.shape, case.lookups, case.result)
    fun = lambda x, i: lax.gather(x, i, numbers, slice_sizes=case.sizes, mode=mode)  # noqa: E731
    with spread_out("gather"):
        run(fun, [x, case.indices], axes, [specs[0], P(*specs[1], None)], out=specs[2])


@few
@given(st.data(), meshes, st.sampled_from(MODES), st.sampled_from(sorted(COMBINERS)))
def test_scatter(data, axes, mode, combiner):
    case = Case(data)
    numbers = lax.ScatterDimensionNumbers(
        update_window_dims=case.window_dims,
        inserted_window_dims=case.collapsed,
        scatter_dims_to_operand_dims=case.indexed,
        operand_batching_dims=case.batching,
        scatter_indices_batching_dims=case.of_batching,
    )
    x, u = sample(*case.shape), np.asarray(sample(1, *case.result)[0]) + np.float32(1)
    specs = case.specs(data, axes, case.shape, case.lookups, case.result)
    fun = lambda x, i, u: COMBINERS[combiner](x, i, u, numbers, mode=mode)  # noqa: E731
    with spread_out("scatter"):
        run(fun, [x, case.indices, u], axes, [specs[0], P(*specs[1], None), specs[2]], out=specs[0])


def sharded(fun, args, specs, out=None):
    """What the function sends on 8 devices, after a check of what it computes."""
    step = spmd.spmd_jit(fun, mesh=spmd.create_mesh([("a", 8)]), in_layouts=specs, out_layouts=out)
    jax.tree.map(
        lambda g, w: np.testing.assert_allclose(g, w, rtol=1e-4, atol=1e-4), step(*args), jax.jit(fun)(*args)
    )
    return step.lower(*args)


X, I, U = sample(1024, 64), np.arange(40, dtype=np.int32) * 31 - 60, sample(40, 64)  # noqa: E741
UPDATES = {
    "set": lambda x, i, u: x.at[i].set(u),
    "add": lambda x, i, u: x.at[i].add(u),
    "mul": lambda x, i, u: x.at[i].multiply(u),
    "min": lambda x, i, u: x.at[i].min(u),
    "max_clip": lambda x, i, u: x.at[i].max(u, mode="clip"),
    "block": lambda x, i, u: lax.dynamic_update_slice(x, u, (i[3], 0)),
    "windows": lambda x, i, u: x.at[i[:4, None] + jnp.arange(10)].set(u.reshape(4, 10, 64)),
}


@pytest.mark.parametrize("name", UPDATES)
def test_updates_of_a_sharded_operand_send_nothing(name):
    lowered = sharded(UPDATES[name], (X, I, U), (P("a"), P(), P()), P("a"))
    assert lowered.comm_bytes() == 0


@pytest.mark.parametrize("mode", ["fill", "clip"])
def test_only_looked_up_rows_travel(mode):
    fun = lambda x, i: jnp.take(x, i, 0, mode=mode)  # noqa: E731
    lowered = sharded(fun, (X, I), (P("a"), P()))
    assert not gathered(lowered)
    assert lowered.comm_bytes() <= 2 * U.nbytes


def test_windows_of_a_sharded_dim():
    fun = jax.vmap(lambda x, i: lax.dynamic_slice_in_dim(x, i, 5), (None, 0))
    lowered = sharded(fun, (sample(1 << 15), I * 25), (P("a"), P()))
    assert not gathered(lowered)
    assert lowered.comm_bytes() <= 2 * 40 * 5 * 4


def test_take_along_a_sharded_dim():
    i = np.random.RandomState(0).randint(-1024, 1024, (3, 64))
    lowered = sharded(lambda x, i: jnp.take_along_axis(x, i, 0), (X, i), (P("a"), P()))
    assert not gathered(lowered)


@pytest.mark.parametrize("lookups", [1, 3, 7, 9])
@pytest.mark.parametrize("name", ["add", "mul", "min"])
def test_sharded_lookups(lookups, name):
    """Fewer lookups than devices, too: those that don't exist update nothing."""
    x, i, u = sample(6), np.arange(lookups, dtype=np.int32) % 4, sample(lookups) + 3
    run(UPDATES[name], [x, i, u], (("a", 4), ("b", 2)), [P(), P("a"), P("a")])


PROGRAMS = {
    "searchsorted": lambda x, y: jnp.searchsorted(x, y),
    "digitize": lambda x, y: jnp.digitize(y, x[::5]),
    "bincount": lambda x, y: jnp.bincount((jnp.abs(y) * 3).astype(int), length=9),
    "histogram": lambda x, y: jnp.histogram(y, bins=7, range=(-2.0, 2.0))[0],
    "unique": lambda x, y: jnp.unique(jnp.round(y), size=6, fill_value=99.0),
    "segment_sum": lambda x, y: jax.ops.segment_sum(y, (jnp.abs(y) * 2).astype(int), 5),
    "associative_scan": lambda x, y: lax.associative_scan(jnp.multiply, y),
    "interp": lambda x, y: jnp.interp(y, x, x * 2),
    "argpartition": lambda x, y: jnp.partition(y, 4)[4],
}


@pytest.mark.parametrize("axes", [(("a", 8),), (("a", 3),), (("a", 2), ("b", 2))], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(name, axes):
    x, y = np.sort(sample(41)), sample(37)
    spec = P(tuple(n for n, _ in axes))
    run(PROGRAMS[name], [x, y], axes, [spec, spec])
