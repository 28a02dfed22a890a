"""The interpreter against `jax.jit`: global modules, and what the compiler makes of them on meshes of any size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.tools.interpret import InterpretError, cut, join, run, run_devices
from tests.passes.rules.test_every_strategy import CASES, f32, i32

C = (f32(4, 5) + 1j * f32(4, 5)).astype(np.complex64)
MORE = {
    "complex": (lambda x: x * jnp.conj(x) + jnp.abs(x), (C,)),
    "half": (lambda x: (x.astype(jnp.bfloat16) * 3 + 1).sum(0), (f32(4, 5),)),
    "integers": (lambda x: (x // 3, x % 3, x << 2, -x >> 1, lax.clz(x), lax.population_count(x)), (i32(4, 5) - 2,)),
    "to four bits": (
        lambda x: [(10 * x).astype(t).astype(jnp.int32) for t in (jnp.int4, jnp.uint4)],
        (f32(4, 5) - 0.5,),
    ),
    "special": (lambda x: (jax.scipy.special.erf(x), lax.lgamma(x + 1), lax.digamma(x + 1)), (f32(4, 5),)),
    "fft": (lambda x: jnp.fft.fft2(x), (C,)),
    "loop": (lambda x: lax.fori_loop(0, 5, lambda i, c: c + x[i % 4].sum(), x), (f32(4, 5),)),
    "branch": (lambda x: lax.cond(x.sum() > 3, jnp.sin, jnp.cos, x), (f32(4, 5),)),
    "random": (lambda k: jax.random.normal(jax.random.wrap_key_data(k), (4, 5)), (np.array([1, 2], np.uint32),)),
    "top_k": (lambda x: lax.top_k(x, 2), (f32(4, 5),)),
    "sort pairs": (lambda x: lax.sort([x % 2, x * 1.0], dimension=0, num_keys=1, is_stable=True), (i32(6, 3),)),
    "pool": (
        jax.grad(lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 3), (1, 2), "SAME") ** 2).sum()),
        (f32(4, 5),),
    ),
    "convolution gradient": (
        jax.grad(lambda x, w: (lax.conv(x, w, (2, 1), "SAME") ** 2).sum(), 1),
        (f32(2, 4, 5, 6), f32(3, 4, 3, 2)),
    ),
}  # fmt: skip
ALL = {**CASES, **MORE}
MESHES = ([("a", 3)], [("a", 2), ("b", 2)], [("a", 2), ("b", 3), ("c", 2)])


def close(got, want):
    for g, w in zip(got, jax.tree.leaves(want), strict=True):
        w = np.asarray(w)
        assert g.shape == w.shape and g.dtype == w.dtype
        wide = np.complex128 if w.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(
            g.astype(wide), w.astype(wide), rtol=2e-2 if w.dtype.itemsize < 3 else 1e-4, atol=1e-4
        )


@pytest.mark.parametrize("name", ALL)
def test_global_module(name):
    function, args = ALL[name]
    lowered = spmd.spmd_jit(function, mesh=spmd.create_mesh({"a": 2}, abstract=True)).lower(*args)
    close(run(lowered.stages["import"], args), jax.jit(function)(*args))


@pytest.mark.parametrize("axes", MESHES, ids=str)
@pytest.mark.parametrize("name", ALL)
def test_device_modules(name, axes):
    """Uneven blocks, filled up with garbage that never shows."""
    function, args = ALL[name]
    mesh = spmd.create_mesh(dict(axes), abstract=True)
    specs = [
        P(*[axes[d % len(axes)][0] for d in range(min(x.ndim, len(axes)))]) if np.ndim(x) else P()
        for x in args
    ]

    def constrained(*xs):
        return function(*[spmd.relayout(x, s) for x, s in zip(xs, specs, strict=True)])

    stages = spmd.spmd_jit(constrained, mesh=mesh).lower(*args).stages
    module, body = stages["optimize"], stages["propagate"].main.body
    shards = [cut(np.asarray(a), v.layout, module.mesh) for a, v in zip(args, body.args, strict=True)]
    out = run_devices(module, shards)
    got = [join(o, v.layout, v.type.shape, module.mesh) for o, v in zip(out, body.returns, strict=True)]
    close(got, jax.jit(function)(*args))


def test_what_it_refuses():
    text = 'mesh {a=2}\nfunc @main(%x: i32[]) -> (i32[]) {\n  %0: i32[] = custom_call(%x) call_target_name="f"\n  return %0\n}\n'
    with pytest.raises(InterpretError, match="does not know custom_call"):
        run(ir.parse(text), [np.int32(1)])
