"""Every strategy of every rule, even or uneven, in the StableHLO interpreter on two devices: none claims what is wrong."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import spmd_compiler as spmd
from spmd_compiler import ir
from spmd_compiler.ir.verify import verify
from spmd_compiler.passes.expand import Expand
from spmd_compiler.passes.simplify import Simplify
from spmd_compiler.passes.verify import verify_layouts
from spmd_compiler.tools.check_rules.judge import arranged, engine_of, sensible
from tests.interpreter import evaluate, needs_cores

MESH = spmd.create_mesh({"a": 2}, abstract=True)


def f32(*shape):
    return np.random.RandomState(len(shape)).rand(*shape).astype(np.float32)


def i32(*shape):
    return np.random.RandomState(len(shape)).randint(0, 4, shape).astype(np.int32)


X, Y, N = f32(4, 5), f32(4, 5), i32(4, 5)
IMAGE, KERNEL = f32(2, 4, 5, 6), f32(4, 4, 3, 3)

# the op whose strategies are tried -> (function, arguments); jaxlib's interpreter aborts on complex numbers and CHLO
CASES = {
    "add": (lambda x, y: x + y, (X, Y)),
    "subtract": (lambda x, y: x - y, (X, Y)),
    "multiply": (lambda x, y: x * y, (X, Y)),
    "divide": (lambda x, y: x / (y + 1), (X, Y)),
    "divide number": (lambda x: x / 8, (X,)),
    "maximum": (jnp.maximum, (X, Y)),
    "minimum": (jnp.minimum, (N, N.T.reshape(4, 5))),
    "and": (lambda x, y: x & y, (N, N * 3)),
    "xor": (lambda x, y: x ^ y, (N, N * 3)),
    "negate": (lambda x: -x, (X,)),
    "abs": (lambda x: abs(x - 0.5), (X,)),
    "exponential": (jnp.exp, (X,)),
    "not": (lambda x: ~x, (X > 0.5,)),
    "select": (lambda p, x, y: jnp.where(p, x, y), (X > 0.5, X, Y)),
    "clamp": (lambda x: lax.clamp(np.float32(0.2), x, np.float32(0.7)), (X,)),
    "compare": (lambda x, y: x > y, (X, Y)),
    "convert": (lambda x: x.astype(jnp.int32), (X * 9,)),
    "broadcast_in_dim": (lambda x: jnp.broadcast_to(x, (3, 4, 5)), (X,)),
    "transpose": (lambda x: x.transpose(1, 2, 0), (f32(3, 4, 2),)),
    "reverse": (lambda x: x[::-1, ::-1], (X,)),
    "concatenate": (lambda x, y: jnp.concatenate([x, y]), (X, f32(3, 5))),
    "slice": (lambda x: x[1:4, ::2], (X,)),
    "pad": (lambda x: lax.pad(x, np.float32(7), [(1, 2, 0), (-1, 0, 1)]), (X,)),
    "iota": (lambda: lax.broadcasted_iota(np.int32, (4, 5), 1), ()),
    "dot_general": (lambda x, y: jnp.einsum("bij,bjk->bik", x, y), (f32(2, 3, 4), f32(2, 4, 5))),
    "dot_general matrix": (lambda x, y: x @ y, (f32(5, 3), f32(3, 4))),
    "reduce": (lambda x: x.sum(1), (X,)),
    "reduce max": (lambda x: x.max(0), (X,)),
    "reduce product": (lambda x: x.prod((0, 1)), (X,)),
    "reduce or": (lambda x: x.any(0), (X > 0.5,)),
    "reduce argmax": (lambda x: jnp.argmax(x, 1), (X,)),
    "reduce init": (lambda x: lax.reduce(x, np.float32(3), lax.add, (0,)), (X,)),
    "dynamic_slice": (lambda x, i: lax.dynamic_slice(x, (i, i), (2, 3)), (X, np.int32(1))),
    "dynamic_slice clamped": (lambda x, i: lax.dynamic_slice(x, (i, i), (2, 3)), (X, np.int32(9))),
    "dynamic_update_slice": (
        lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i)),
        (X, f32(2, 3), np.int32(1)),
    ),
    "dynamic_update_slice clamped": (
        lambda x, y, i: lax.dynamic_update_slice(x, y, (i, i)),
        (X, f32(2, 3), np.int32(-7)),
    ),
    "gather": (lambda x, i: x[i], (X, np.array([0, 3, 2], np.int32))),
    "gather pairs": (lambda x, i: x[i, i], (X, np.array([0, 3, 2], np.int32))),
    "scatter": (lambda x, i, y: x.at[i].add(y), (X, np.array([0, 3, 0], np.int32), f32(3, 5))),
    "scatter set": (lambda x, i, y: x.at[i].set(y), (X, np.array([0, 3, 2], np.int32), f32(3, 5))),
    "scatter max": (lambda x, i, y: x.at[:, i].max(y), (X, np.array([0, 3], np.int32), f32(4, 2))),
    "convolution": (lambda x, w: lax.conv(x, w, (1, 1), "SAME"), (IMAGE, KERNEL)),
    "convolution strided": (lambda x, w: lax.conv(x, w, (2, 2), "VALID"), (IMAGE, KERNEL)),
    "convolution grouped": (
        lambda x, w: lax.conv_general_dilated(x, w, (1, 1), "SAME", feature_group_count=2),
        (IMAGE, f32(4, 2, 3, 3)),
    ),
    "reduce_window": (lambda x: lax.reduce_window(x, np.float32(0), lax.add, (2, 3), (1, 2), "SAME"), (X,)),
    "reduce_window cumulative": (lambda x: jnp.cumsum(x, 0), (X,)),
    "select_and_scatter": (
        jax.grad(lambda x: (lax.reduce_window(x, -np.inf, lax.max, (2, 2), (1, 1), "VALID") ** 2).sum()),
        (X,),
    ),
    "sort": (lambda x: jnp.sort(x, 0), (f32(6, 3),)),
}


@needs_cores
@pytest.mark.parametrize("name", CASES)
def test_every_strategy(name):
    function, args = CASES[name]
    step = spmd.spmd_jit(function, mesh=MESH)
    module = Simplify()(ir.parse(step.lower(*args).as_text("import")))
    targets = [op for op in module.main.body.ops if op.name == name.split(" ")[0]]
    assert targets, [op.name for op in module.main.body.ops]
    book = engine_of(module).book
    wanted = [np.asarray(x) for x in jax.tree.leaves(jax.jit(function)(*args))]
    tried = 0
    for target in targets:
        for strategy in book.rule(target).strategies:
            spread = arranged(module, target, [strategy]) if sensible(strategy, target) else None
            if spread is None:
                continue
            verify_layouts(spread)
            expanded = Expand()(spread)
            verify(expanded)
            tried += 1
            for results in evaluate(expanded, [[np.asarray(a) for a in args]] * 2):
                for got, want in zip(results, wanted, strict=True):
                    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5, err_msg=str(strategy))
    assert tried > 1, "only replicated"
