"""What is gathered along an inner dim for a loop over slices is put together in the loop; what is stacked there is cut there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.passes.optimize import Optimize
from spmd_compiler.tools.fuzz.check import on_devices

LAYERS, WIDTH, HIDDEN, ROWS = 3, 24, 40, 768


def net(up, down, x):
    def body(x, ps):
        u, d = ps
        return x + jnp.tanh(x @ u) @ d, None

    return (lax.scan(body, x, (up, down))[0] ** 2).sum()


def train(up, down, x):
    """A train step whose gradients come back as the parameters lie."""
    gradients = jax.grad(net, (0, 1))(up, down, x)
    return tuple(w - 0.01 * g for w, g in zip((up, down), gradients, strict=True))


def arguments(layers=LAYERS, width=WIDTH, hidden=HIDDEN, rows=ROWS):
    rng = np.random.default_rng(0)
    shapes = (layers, width, hidden), (layers, hidden, width), (rows, width)
    return [rng.normal(0, 0.3, s).astype(np.float32) for s in shapes]


def lowered(fun, mesh, specs, args, **options):
    mesh = spmd.create_mesh(mesh, abstract=True)
    step = spmd.spmd_jit(
        fun,
        mesh=mesh,
        in_layouts=(*specs, P(tuple(mesh.axis_names))),
        out_layouts=specs if fun is train else P(),
        options=spmd.Options(**options),
    )
    return step.lower(*args)


def named(block, name):
    return [op for op in block.ops if op.name == name]


def is_right(fun, low, args):
    found = on_devices(low.stages, [np.asarray(a) for a in args])
    for got, want in zip(found, jax.tree.leaves(jax.jit(fun)(*args)), strict=True):
        np.testing.assert_allclose(got, want, rtol=2e-4, atol=1e-5)


FSDP = [("fsdp", 4)]
INNER = P(None, "fsdp"), P(None, None, "fsdp")


def test_layers_are_put_together_one_by_one():
    args = arguments(width=128, hidden=256, rows=8192)
    body = lowered(train, FSDP, INNER, args).stages["optimize"].main.body
    # both parameters are gathered for both loops, and both gradients scattered behind them
    blocks = {(4, LAYERS, 32, 256), (4, LAYERS, 256, 32)}
    moved = [*named(body, "all_gather"), *named(body, "reduce_scatter")]
    assert {op.attrs["dim"] for op in moved} == {0}
    forward, backward = named(body, "while")
    assert blocks <= {v.type.shape for v in forward.operands}
    assert blocks <= {v.type.shape for v in backward.results}
    assert not named(body, "transpose")


@pytest.mark.parametrize(
    "mesh, specs",
    [
        ([("a", 2), ("b", 2)], (P(None, ("a", "b")), P(None, None, ("b", "a")))),
        ([("a", 2), ("b", 3)], (P(None, "a", "b"), P(None, "b", "a"))),
        ([("a", 2), ("b", 2), ("c", 1)], (P(None, None, "a"), P(None, ("c", "b")))),
        ([("a", 2), ("b", 2)], (P("a", "b"), P(None, "a"))),
    ],
    ids=str,
)
@pytest.mark.parametrize("size", [(WIDTH, HIDDEN), (WIDTH + 1, HIDDEN - 1)], ids=["even", "uneven"])
def test_other_layouts(mesh, specs, size):
    args = arguments(2, *size)
    is_right(train, lowered(train, mesh, specs, args), args)


@pytest.mark.parametrize("dtype", ["bfloat16", "float64", "complex64", "int32"])
def test_other_types(dtype):
    def cumulated(w, x):
        return lax.scan(lambda x, w: (x + (x[:, :1] @ w[:1]), None), x, w)[0]

    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(1)
        args = [jnp.asarray(rng.integers(-2, 3, s), dtype) for s in ((LAYERS, 5, 8), (8, 8))]
        mesh = spmd.create_mesh(FSDP, abstract=True)
        low = spmd.spmd_jit(cumulated, mesh=mesh, in_layouts=(P(None, None, "fsdp"), P("fsdp")))
        low = low.lower(*args)
        (got,) = on_devices(low.stages, [np.asarray(a) for a in args])
        np.testing.assert_array_equal(got, jax.jit(cumulated)(*args))


def test_whole_arrays_stay_as_they_are():
    """Where something else needs the gathered array too, and on TPUs, which gather along any dim."""

    def also(up, down, x):
        return net(up, down, x), up

    args = arguments()
    for fun, options in ((also, {}), (train, {"platform": "tpu"})):
        low = lowered(fun, FSDP, INNER, args)
        body = Optimize(**options)(low.stages["expand"]).main.body
        assert args[0].shape in {v.type.shape for v in named(body, "while")[0].operands}
        is_right(fun, low, args)


def test_a_first_dim_is_gathered_as_it_was():
    args = arguments(layers=4)
    low = lowered(net, FSDP, (P("fsdp"), P("fsdp")), args)
    body = low.stages["optimize"].main.body
    assert all(len(v.type.shape) < 4 for op in named(body, "while") for v in op.operands)
    is_right(net, low, args)
