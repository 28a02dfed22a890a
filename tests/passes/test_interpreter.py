"""Expanded programs in the StableHLO reference interpreter give what `jax.jit` gives: a second oracle beside XLA."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from tests.golden.programs import PROGRAMS
from tests.interpreter import evaluate, needs_cores
from tests.share import examples

MESHES = [
    spmd.create_mesh({"a": 2, "b": 1}, abstract=True),
    spmd.create_mesh({"a": 1, "b": 2}, abstract=True),
]


def block(x, layout, device):
    """What a device holds of an array: its position on the mesh is row-major."""
    mesh = layout.mesh
    position = dict(zip(mesh.axis_names, np.unravel_index(device, list(mesh.shape.values())), strict=True))
    for d, axes in enumerate(layout.ir.dims):
        k = 0
        for axis in axes:
            k = k * mesh.shape[axis] + position[axis]
        n = x.shape[d] // mesh.axes_size(axes)
        x = np.take(x, range(k * n, (k + 1) * n), axis=d)
    return x


def check(function, args, mesh, in_layouts, out_layout=None, reference=None):
    """`reference`: what to compute on one device, if not the same function."""
    step = spmd.spmd_jit(function, mesh=mesh, in_layouts=in_layouts, out_layouts=out_layout)
    lowered = step.lower(*args)
    module = lowered.stages["optimize"]
    layouts = jax.tree.leaves(lowered.in_layouts)
    devices = range(mesh.size)
    results = evaluate(
        module, [[block(x, y, i) for x, y in zip(args, layouts, strict=True)] for i in devices]
    )
    wanted = [np.asarray(x) for x in jax.tree.leaves(jax.jit(reference or function)(*args))]
    for i, got in enumerate(results):
        for x, whole, layout in zip(got, wanted, jax.tree.leaves(lowered.out_layouts), strict=True):
            np.testing.assert_allclose(x, block(whole, layout, i), rtol=2e-5, atol=2e-5)


def values(struct, seed):
    rng = np.random.RandomState(seed)
    if np.issubdtype(struct.dtype, np.integer):
        return rng.randint(0, 8, struct.shape).astype(struct.dtype)
    return rng.rand(*struct.shape).astype(struct.dtype)


@needs_cores
@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("name", [n for n in PROGRAMS if n != "relayouts"])
def test_programs(name, mesh):
    _, function, structs, layouts, result = PROGRAMS[name]
    if name == "uneven":
        pytest.skip("its constraint is on the mesh of the golden files")
    args = [values(x, i) for i, x in enumerate(structs)]
    check(function, args, mesh, layouts, result)


def _unary(x):
    return [x * 2, x.sum(0), x.max(-1), x.T, x.reshape(-1), x[::-1], jax.numpy.cumsum(x, 0), x[1:] - x[:-1]]


@needs_cores
@examples(25)
@given(st.data())
def test_generated(data):
    """Random ops, layouts and meshes."""
    mesh = data.draw(st.sampled_from(MESHES))
    specs = [P(), P("a"), P("b"), P(None, "a"), P(None, "b"), P("a", "b")]
    inner, outer = data.draw(st.sampled_from(specs)), data.draw(st.sampled_from(specs))
    picks = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=3))
    rows, columns = data.draw(st.sampled_from([(4, 6), (8, 2), (2, 8)]))

    def reference(x, y):
        return [_unary(x @ y)[k] for k in picks]

    def function(x, y):
        z = spmd.relayout(x @ y, inner)
        return [_unary(z)[k] for k in picks]

    shapes = [(rows, 4), (4, columns)]
    args = [values(jax.ShapeDtypeStruct(s, np.float32), i) for i, s in enumerate(shapes)]
    check(function, args, mesh, (outer, P()), reference=reference)
