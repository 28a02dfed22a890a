"""Weights of loops, and those that several products read, are gathered once on the axes of the batch, as XLA gathers them."""

from itertools import pairwise

import jax
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.ir.layout import Layout
from spmd_compiler.passes import propagate
from spmd_compiler.passes.search import plain_bounds
from spmd_compiler.passes.search.carries import gathered_once
from spmd_compiler.passes.search.gathered_args import weights
from tests.passes.test_plain_propagation import prepared

F32 = np.float32


def chain(h, ws, residual=False):
    y = h
    for w in ws:
        y = jax.nn.relu(y @ w)
    return h + y if residual else y


def turned(times, residual=False):
    return lambda ws, h: lax.fori_loop(0, times, lambda _, h: chain(h, ws, residual), h)


def unrolled(ws, h):
    for _ in range(6):
        h = chain(h, ws)
    return h


def nested(ws, h):
    def outer(h, _):
        return lax.fori_loop(0, 3, lambda _, h: chain(h, ws), h) * 2, None

    return lax.scan(outer, h, None, 2)[0]


def lowered(fn, sizes, batch, axes, weight, rows, out):
    mesh = spmd.create_mesh(axes, abstract=True)
    in_layouts = tuple(weight for _ in sizes[1:]), rows
    step = spmd.spmd_jit(fn, mesh=mesh, in_layouts=in_layouts, out_layouts=out)
    ws = tuple(jax.ShapeDtypeStruct(pair, F32) for pair in pairwise(sizes))
    return step.lower(ws, jax.ShapeDtypeStruct((batch, sizes[0]), F32))


FSDP, TWO = {"data": 8}, {"fsdp": 4, "tensor": 2}
CUBE = {"a": 2, "b": 2, "c": 2}
LOOPS = [  # and the bytes that the better of Shardy and GSPMD sends
    (turned(8, True), (128, 256, 128), 32, TWO, P("fsdp", "tensor"), P("fsdp", "tensor"), None, 147_456),
    (turned(3), (256, 512, 256), 128, TWO, P("tensor", "fsdp"), P("fsdp"), P("fsdp"), 557_056),
    (turned(5), (128, 128, 128, 128), 64, TWO, P("fsdp"), P(("fsdp", "tensor")), None, 147_456),
    (turned(8), (96, 192, 96), 32, CUBE, P("b", "c"), P(("a", "b")), P(("a", "b")), 75_264),
    (unrolled, (256, 256, 256), 64, FSDP, P(None, "data"), P("data"), P("data"), 458_752),
    (nested, (128, 128, 128), 32, FSDP, P("data"), P("data"), P("data"), 114_688),
]


@pytest.mark.parametrize(("fn", "sizes", "batch", "axes", "weight", "rows", "out", "most"), LOOPS)
def test_they_send_no_more_than_xla(fn, sizes, batch, axes, weight, rows, out, most):
    assert lowered(fn, sizes, batch, axes, weight, rows, out).comm_bytes() <= most


def test_memory_of_what_is_gathered_once_does_not_count(monkeypatch):
    case = turned(3), (256, 512, 256), 128, TWO, P("tensor", "fsdp"), P("fsdp"), P("fsdp")
    monkeypatch.setattr(plain_bounds, "gathered_once", lambda *_: 0)
    assert lowered(*case).comm_bytes() > 557_056


def test_states_that_move_gather_no_weights():
    """A tensor parallel loop that gathers its weights since the state changes its dims is not what XLA does."""
    low = lowered(turned(8), (64, 64), 64, FSDP, P(None, "data"), P(None, "data"), P(None, "data"))
    module = prepared(low)
    engine, _ = propagate.Propagate().forwarded(module)
    body = module.main.body
    (loop,) = (op for op in body.ops if op.name == "while")
    weight, state = (v for v in loop.regions[1].args if v.type.shape == (64, 64))
    gathered = {**engine.layouts, weight: engine.layouts[weight].drop({"data"})}

    def once(dims):
        return gathered_once(body, {**gathered, state: Layout(dims)}, engine.layouts, engine.mesh)

    assert once(engine.layouts[state].dims) == 64 * 64 * 4
    assert once(engine.layouts[state].dims[::-1]) == 0
    assert once(((), ())) == 0


def test_weights_lie_off_the_axes_of_the_batch():
    module = prepared(lowered(unrolled, (256, 256, 256), 64, FSDP, P(None, "data"), P("data"), P("data")))
    engine, _ = propagate.Propagate().forwarded(module)
    seen = weights(engine, module.main.body)
    assert [str(x) for x in seen.values()] == ["{-,-}", "{-,-}"]
