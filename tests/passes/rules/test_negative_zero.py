"""What contributes nothing to a sum must not turn -0.0 into 0.0. In the interpreter: XLA's all-reduce on CPU starts from 0.0."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.tools.interpret.machine import run_devices
from spmd_compiler.tools.interpret.shards import cut, join

MESH = spmd.create_mesh([("a", 4)], abstract=True)
DTYPES = (np.float32, np.float16, jnp.bfloat16, np.complex64)


def signs(x):
    x = np.asarray(x)
    parts = (x.real, x.imag) if x.dtype.kind == "c" else (x,)
    return np.stack([np.signbit(p.astype(np.float32)) for p in parts])


def run(step, *args):
    """The per-device program's first result, and the kinds of its collectives."""
    lowered = step.lower(*args)
    before, after = lowered.stages["propagate"], lowered.stages["optimize"]
    layouts = [v.layout for v in before.main.body.args]
    shards = [cut(np.asarray(a), x, after.mesh) for a, x in zip(args, layouts, strict=True)]
    (result,) = before.main.body.returns
    (out,) = run_devices(after, shards)
    return join(out, result.layout, result.type.shape, after.mesh), [c.kind for c in lowered.collectives()]


def minus_zeros(shape, dtype):
    zeros = np.zeros(shape, dtype)
    return -zeros


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_value_made_partial(dtype):
    partial = spmd.Layout([None], MESH, partial={"a": "sum"})
    whole = spmd.Layout([None], MESH)
    step = spmd.spmd_jit(lambda x: spmd.relayout(spmd.relayout(x, partial), whole), mesh=MESH)
    got, kinds = run(step, minus_zeros(6, dtype))
    assert kinds == ["all_reduce"]
    assert signs(got).all()


@pytest.mark.parametrize("rows", [7, 8])
def test_a_sum_from_minus_zero_over_padded_shards(rows):
    rows_cut = spmd.Layout(["a", None], MESH)
    step = spmd.spmd_jit(
        lambda x, i: jax.lax.reduce(spmd.relayout(x, rows_cut), i, jax.lax.add, (0,)),
        mesh=MESH,
        in_layouts=None,
    )
    x = minus_zeros((rows, 3), np.float32)
    got, kinds = run(step, x, np.float32(-0.0))
    assert kinds == ["all_reduce"]
    assert signs(got).all()
    assert not signs(run(step, x, np.float32(0.0))[0]).any()
    assert not signs(run(step, x + 1, np.float32(-0.0))[0]).any()


def test_lookups_in_other_blocks():
    step = spmd.spmd_jit(lambda x, i: x[i], mesh=MESH, in_layouts=(P("a"), P()), out_layouts=P())
    got, kinds = run(step, minus_zeros((8, 2), np.float32), np.array([7, 0, 3], np.int32))
    assert kinds == ["all_reduce"]
    assert signs(got).all()
