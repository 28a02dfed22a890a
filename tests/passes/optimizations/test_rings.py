"""Collectives around matrix products as rings: the same numbers, the same bytes, on generated programs."""

import math
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.ir.graph import Block, Function, Module
from spmd_compiler.ir.graph import Value as IRValue
from spmd_compiler.ir.groups import positions
from spmd_compiler.ir.mesh import Mesh
from spmd_compiler.ir.types import TensorType, numpy_dtype
from spmd_compiler.ir.verify import verify
from spmd_compiler.passes.emit.builder import Builder
from spmd_compiler.passes.optimize import Optimize
from spmd_compiler.passes.report import collectives
from spmd_compiler.tools.interpret import run_devices

from ...interpreter import evaluate, needs_cores

DTYPES = ("f32", "bf16", "f16", "i32", "c64")
GROUPS = (("a",), ("b",), ("a", "b"), ("b", "a"), ("a:(1)2",), ("a:(2)2", "b"))


class Programs:
    """A per-device program of one collective and one product, with ops between that keep the dim apart."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.mesh = Mesh([("a", 4), ("b", self.random.choice((1, 2, 3)))])
        self.axes = self.random.choice(GROUPS)
        self.n = self.mesh.axes_size(self.axes)
        self.dtype = self.random.choice(DTYPES)
        self.block = Block([], [], [])
        self.b = Builder(self.mesh, self.block)

    def argument(self, shape):
        value = IRValue(TensorType(tuple(shape), self.dtype), name=f"x{len(self.block.args)}")
        self.block.args.append(value)
        return value

    def module(self):
        return Module(self.mesh, {"main": Function("main", self.block)})

    def moved(self, value, dim):
        """Through some ops; returns also where `dim` is then."""
        for _ in range(self.random.randrange(3)):
            shape = value.type.shape
            kind = self.random.choice(("negate", "transpose", "reshape"))
            if kind == "negate":
                value = self.b.op("negate", [value], value.type)
            elif kind == "transpose":
                order = tuple(self.random.sample(range(len(shape)), len(shape)))
                type = TensorType(tuple(shape[d] for d in order), self.dtype)
                value = self.b.op("transpose", [value], type, {"permutation": order})
                dim = order.index(dim)
            elif shape[dim] % self.n == 0 and self.random.random() < 0.5:
                # joins the dims behind: larger pieces
                value = self.b.reshape(value, (*shape[:dim], math.prod(shape[dim:])))
            elif dim:  # joins those before, which keeps this one as it is
                value, dim = self.b.reshape(value, (math.prod(shape[:dim]), *shape[dim:])), 1
        return value, dim

    def product(self, value, dim, kept):
        """A dot_general in which each dim of `value` may be anything; the result's dim that `dim` is, None if summed."""
        shape = value.type.shape
        roles = [self.random.choice(("batch", "contract", "free")) for _ in shape]
        while kept and roles[dim] == "contract":
            roles[dim] = self.random.choice(("batch", "free"))
        batch = [d for d, r in enumerate(roles) if r == "batch"]
        contract = [d for d, r in enumerate(roles) if r == "contract"]
        free = [d for d, r in enumerate(roles) if r == "free"]
        other = self.argument([*(shape[d] for d in contract), 2, *(shape[d] for d in batch)])
        mine = tuple(batch), tuple(contract)
        count = len(contract)
        others = tuple(range(count + 1, count + 1 + len(batch))), tuple(range(count))
        first = self.random.random() < 0.5
        pairs = [(m, o) if first else (o, m) for m, o in zip(mine, others, strict=True)]
        kept_shape = [shape[d] for d in free]
        result = [shape[d] for d in batch] + ([*kept_shape, 2] if first else [2, *kept_shape])
        attrs = {"batch": pairs[0], "contract": pairs[1]}
        operands = [value, other] if first else [other, value]
        made = self.b.op("dot_general", operands, TensorType(tuple(result), self.dtype), attrs)
        if dim in contract:
            return made, None
        return made, batch.index(dim) if dim in batch else len(batch) + free.index(dim) + (not first)

    def gather(self):
        """Also how many positions of the gathered dim are no padding."""
        shape = [self.random.randint(1, 4) for _ in range(self.random.randint(1, 3))]
        dim = self.random.randrange(len(shape))
        whole = self.b.all_gather(self.argument(shape), self.axes, dim)
        size = whole.type.shape[dim] - self.random.choice((0, 0, self.random.randrange(shape[dim])))
        value, at = self.moved(self.b.slice(whole, dim, 0, size), dim)
        made, _ = self.product(value, at, False)
        self.block.returns = [made, value] if self.random.random() < 0.3 else [made]
        return self.module(), dim, size

    def scatter(self):
        shape = [self.random.randint(1, 4) for _ in range(self.random.randint(1, 3))]
        dim = self.random.randrange(len(shape))
        shape[dim] = self.random.randint(1, 2 * self.n)
        value, at = self.moved(*self.product(self.argument(shape), dim, True))
        size = value.type.shape[at]
        value, at = self.moved(self.b.pad(value, at, 0, -size % self.n), at)
        self.block.returns = [self.b.reduce_scatter(value, self.axes, at, "sum")]
        return self.module()

    def numbers(self, seed):
        """Small whole ones, of which sums are exact in any order."""
        rng = np.random.default_rng(seed)
        return [
            [rng.integers(-2, 3, v.type.shape).astype(numpy_dtype(self.dtype)) for _ in range(self.mesh.size)]
            for v in self.block.args
        ]


def ringed(module):
    result = Optimize(rings=True)(module)
    verify(result)
    return result


def same(got, want):
    for g, w in zip(got, want, strict=True):
        for a, b in zip(g, w, strict=True):
            np.testing.assert_array_equal(np.asarray(a, np.complex128), np.asarray(b, np.complex128))


@pytest.mark.parametrize("seed", range(60))
def test_gathers(seed):
    made = Programs(seed)
    module, dim, size = made.gather()
    result, data = ringed(module), made.numbers(seed)
    if made.dtype != "i32":
        for x, at in zip(data[0], positions(made.mesh, made.axes), strict=True):
            inside = max(0, size - at * x.shape[dim])
            x[(slice(None),) * dim + (slice(inside, None),)] = np.nan  # of which nothing may be seen
    same(run_devices(result, data), run_devices(module, data))
    kinds = [c.kind for c in collectives(result) if c.group_size > 1]
    assert kinds == ["collective_permute"] * (made.n - 1)
    assert sum(c.bytes_per_device for c in collectives(result)) == pytest.approx(
        sum(c.bytes_per_device for c in collectives(module))
    )


@pytest.mark.parametrize("seed", range(60))
def test_scatters(seed):
    made = Programs(seed)
    module = made.scatter()
    result, data = ringed(module), made.numbers(seed)
    same(run_devices(result, data), run_devices(module, data))
    kinds = [c.kind for c in collectives(result) if c.group_size > 1]
    assert kinds == ["collective_permute"] * (made.n - 1)
    assert sum(c.bytes_per_device for c in collectives(result)) == pytest.approx(
        sum(c.bytes_per_device for c in collectives(module))
    )


MESH = spmd.create_mesh([("a", 4), ("b", 2)])
ABSTRACT = spmd.create_mesh({"data": 4, "model": 8}, abstract=True)
ALWAYS = spmd.Options(collective_matmul=True)


def two_layers(x, w, v):
    """Between them activations are cut over their last dim, around them over the batch."""
    return jax.nn.relu(x @ w) @ v


# programs with the layouts of some values, which `at` asks for
def layers(at, x, w, v):
    return at(jax.nn.relu(at(at(2 * x, P("a")), P()) @ w) @ v, P("a"))


def over_two_axes(at, x, w):
    return at(at(2 * x, P(("a", "b"))), P()) @ w


def steps(at, x, w):
    def step(h, _):
        return at(jnp.tanh(at(h, P()) @ w), P(None, "a")), None

    return jax.lax.scan(step, at(x, P(None, "a")), None, length=3)[0]


CUT = P(None, "a")
PROGRAMS = {
    "layers": (layers, ((10, 12), (12, 16), (16, 12)), (P(), CUT, P("a")), None),
    "two axes": (over_two_axes, ((9, 8), (8, 16)), (P(), CUT), CUT),
    "loop": (steps, ((8, 16), (16, 16)), (CUT, CUT), CUT),
}


def program(name, options=ALWAYS, mesh=MESH):
    function, shapes, layouts, out = PROGRAMS[name]
    rng = np.random.default_rng(0)
    args = [rng.standard_normal(shape, np.float32) for shape in shapes]
    step = spmd.spmd_jit(
        lambda *args: function(spmd.relayout, *args),
        mesh=mesh,
        in_layouts=layouts,
        out_layouts=out,
        options=options,
    )
    return step, jax.jit(lambda *args: function(lambda x, _: x, *args)), args


@pytest.mark.parametrize("name", PROGRAMS)
def test_equal_to_jit(name):
    step, reference, args = program(name)
    np.testing.assert_allclose(step(*args), reference(*args), rtol=1e-4, atol=1e-5)
    assert "collective_permute" in {c.kind for c in step.lower(*args).collectives()}


def test_in_a_loop_its_trips_count():
    (ringed, _, args), (plain, *_) = program("loop"), program("loop", None)
    lowered = ringed.lower(*args)
    assert [c.trips for c in lowered.collectives()] == [3] * 3
    assert lowered.comm_bytes() == plain.lower(*args).comm_bytes()
    assert lowered.collectives()[0].cause.startswith("ring of all_gather overlapped with dot_general")
    assert "ring of all_gather overlapped with dot_general" in lowered.explain()


@needs_cores
@pytest.mark.parametrize("seed", range(4))
def test_in_stablehlos_interpreter(seed):
    made = Programs(seed)
    made.mesh, made.axes, made.n, made.dtype = Mesh([("a", 2)]), ("a",), 2, "f32"
    made.b.mesh = made.mesh
    module = made.scatter() if seed % 2 else made.gather()[0]
    data = [list(row) for row in zip(*made.numbers(seed), strict=True)]
    for got, want in zip(evaluate(ringed(module), data), evaluate(module, data), strict=True):
        for g, w in zip(got, want, strict=True):
            np.testing.assert_array_equal(g, w)


def lowered_for(hardware, batch, rings=None):
    """A large layer pair whose batch is cut over the axis that the products are."""
    shapes = (batch, 8192), (8192, 32768), (32768, 8192)
    args = [jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes]
    layouts = P(("data", "model")), P(None, "model"), P("model")
    options = spmd.Options(hardware=hardware, collective_matmul=rings)
    step = spmd.spmd_jit(
        two_layers, mesh=ABSTRACT, in_layouts=layouts, out_layouts=layouts[0], options=options
    )
    return step.lower(*args)


@pytest.mark.parametrize("hardware", ["h100-nvlink", "h100-ib", "tpu-v5p"])
def test_where_it_pays(hardware):
    without, chosen = (lowered_for(hardware, 65536, rings) for rings in (False, None))
    before, after = without.cost(hardware), chosen.cost(hardware)
    assert "collective_permute" in {kind for kind, _ in after.messages}
    assert after.compute_seconds + after.exposed_seconds < before.compute_seconds + before.exposed_seconds
    assert chosen.comm_bytes() == pytest.approx(without.comm_bytes())


@pytest.mark.parametrize(("hardware", "batch"), [("cpu", 65536), ("h100-nvlink", 64), (None, 65536)])
def test_where_it_does_not(hardware, batch):
    assert "collective_permute" not in {c.kind for c in lowered_for(hardware, batch).collectives()}
