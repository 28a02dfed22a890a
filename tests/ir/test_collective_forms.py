"""Collectives as programs for CPUs and GPUs have them."""

import re

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import compat_executables
from spmd_compiler.ir.exporter import export_module
from spmd_compiler.ir.graph import Block, Function, Module, Op, Value
from spmd_compiler.ir.mesh import Mesh
from spmd_compiler.ir.types import TensorType
from spmd_compiler.passes.optimizations import together_memory


@pytest.fixture
def eight_devices():
    if jax.device_count() < 8:
        pytest.skip("needs 8 virtual devices")


def exchange(shape, split, concat, n):
    """A module of one all-to-all over n devices."""
    size = list(shape)
    size[split] //= n
    size[concat] *= n
    x, y = Value(TensorType(shape, "f32")), Value(TensorType(tuple(size), "f32"))
    op = Op(
        "all_to_all", [x], [y], {"axes": ("a",), "split_dim": split, "concat_dim": concat, "cause": "test"}
    )
    return Module(Mesh([("a", n)]), {"main": Function("main", Block([x], [op], [y]))})


def test_slices_only_where_they_help():
    assert "dynamic_slice" in str(export_module(exchange((8, 8), 0, 1, 4), platform="cpu"))
    for text in (
        export_module(exchange((8, 8), 0, 1, 4)),
        export_module(exchange((8, 8), 0, 1, 2), platform="cpu"),
        export_module(exchange((0, 8), 0, 1, 4), platform="cpu"),
    ):
        assert "dynamic_slice" not in str(text)


@pytest.mark.parametrize(
    ("shape", "source", "target"),
    [
        ((64, 48), P("a"), P(None, "a")),
        ((24, 8), P(None, "a"), P("a")),
        ((3, 16, 5, 8), P(None, None, None, "a"), P(None, "a")),
        ((8, 13), P("a"), P(None, "a")),  # cut unevenly
    ],
)
@pytest.mark.usefixtures("eight_devices")
def test_xla_compiles_equal_slices(shape, source, target):
    """Kernels that XLA shares have equal texts, but for names."""
    mesh = spmd.create_mesh([("a", 8)])
    cut = spmd.Layout([*target, *(None,) * (len(shape) - len(target))], mesh)
    step = spmd.spmd_jit(lambda x: spmd.relayout(x, cut) + 1, mesh=mesh, in_layouts=(source,))
    x = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    lowered = step.lower(x)
    exchanges = [c.kind for c in lowered.collectives()].count("all_to_all")
    compiled = lowered.compile()
    np.testing.assert_array_equal(compiled(x), x + 1)
    kernels = re.findall(r"^%?(?:fused|wrapped)[^\n]*\{\n(.*?)^\}", compiled.as_text(), re.M | re.S)
    sliced = [re.sub(r"metadata=\{[^}]*\}|%[\w.-]+", "", k) for k in kernels if "dynamic-slice(" in k]
    assert len(sliced) == 8 * exchanges and 0 < len(set(sliced)) <= 2 * exchanges


@pytest.mark.usefixtures("eight_devices")
def test_what_is_received_is_concatenated_where_it_stays():
    """No transpose follows the all-to-all."""
    mesh = spmd.create_mesh([("a", 8)])
    step = spmd.spmd_jit(lambda x: x, mesh=mesh, in_layouts=(P("a"),), out_layouts=P(None, "a"))
    text = step.lower(np.zeros((64, 48), np.float32)).compile().as_text()
    assert " all-to-all(" in text and "transpose(" not in text and " copy(" not in text


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("dim", [0, 1, 2])
@pytest.mark.parametrize("axes", ["a", "b", ("b", "a")])
@pytest.mark.parametrize("shape", [(8, 16, 8), (1, 16, 8), (5, 9, 12)])
def test_gathers_and_scatters_along_any_dim(shape, axes, dim):
    mesh = spmd.create_mesh([("a", 4), ("b", 2)])
    spec = [None, None, None]
    spec[dim] = axes
    cut, whole = spmd.Layout(spec, mesh), spmd.Layout([None] * 3, mesh)
    x = np.random.default_rng(0).integers(-9, 9, (16, *shape)).astype(np.float32)

    def fun(x):
        scattered = spmd.relayout(x.sum(0), cut)
        return spmd.relayout(scattered * 2, whole), spmd.relayout(x.max(0), cut)

    lowered = spmd.spmd_jit(fun, mesh=mesh, in_layouts=(P(axes),)).lower(x)
    compiled = lowered.compile()
    total, largest = compiled(x)
    np.testing.assert_array_equal(total, 2 * x.sum(0))
    np.testing.assert_array_equal(largest, x.max(0))
    for line in compiled.as_text().splitlines():
        if " all-gather(" in line or " reduce-scatter(" in line:
            along = re.search(r"= \w+\[([\d,]*)\].*dimensions=\{(\d)\}", line)
            assert along and set(along[1].split(",")[: int(along[2])]) <= {"1"}


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize(("source", "target"), [(0, 1), (1, 0), (2, 0), (0, 2), (1, 2)])
def test_blocks_for_gpus(monkeypatch, source, target):
    """Compiled here, as for a GPU: blocks along a new first dim are exchanged, and nothing is moved across that."""
    monkeypatch.setattr(spmd.Mesh, "platform", "cuda")
    mesh = spmd.create_mesh([("a", 4), ("b", 2)])

    def at(d):
        return P(*(("b", "a") if d == e else None for e in range(3)))

    step = spmd.spmd_jit(lambda x: x, mesh=mesh, in_layouts=(at(source),), out_layouts=at(target))
    x = np.arange(8 * 16 * 24, dtype=np.float32).reshape(8, 16, 24)
    text = str(step.lower(x).compile().as_text())
    blocks = [8, *(n // 8 if d in (source, target) else n for d, n in enumerate(x.shape))]
    assert f"f32[{','.join(map(str, blocks))}]" in text
    np.testing.assert_array_equal(step(x), x)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_gathers_that_go_together_are_one(monkeypatch, platform):
    """On CPU, what is large goes without a copy, where XLA has no partitioner to refuse several operands."""
    monkeypatch.setattr(spmd.Mesh, "platform", platform)
    monkeypatch.setattr(together_memory, "GATHERED", 2)
    mesh = spmd.create_mesh([("a", 8)])
    specs = P("a"), P(None, "a"), P("a")
    rng = np.random.default_rng(0)
    args = [rng.integers(-9, 9, shape).astype(np.float32) for shape in ((256, 256), (64, 1024), (8, 3))]

    def fun(*xs):
        return tuple(jax.numpy.sin(x) for x in xs)

    step = spmd.spmd_jit(fun, mesh=mesh, in_layouts=specs, out_layouts=(P(), P(), P()))
    lowered = step.lower(*args)
    assert [(c.kind, c.trips) for c in lowered.collectives()] == [("all_gather", 1)]
    text = lowered.compile().as_text()
    several = platform == "cpu" and compat_executables.RUNS_REPLICAS
    assert text.count(" all-gather(") == 1
    assert (re.search(r" all-gather\(%[\w.]+, ", text) is not None) == several
    for run in (step, jax.jit(step)):
        for got, x in zip(run(*args), args, strict=True):
            np.testing.assert_allclose(got, np.sin(x), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16"])
def test_narrow_floats_move_as_they_are(dtype):
    """XLA, for CPUs, would send them in a wider type."""
    mesh = spmd.create_mesh([("a", 8)])
    x = np.arange(64 * 24).reshape(64, 24) % 7 - 3
    x = x.astype(jax.numpy.dtype(dtype))
    cut = spmd.Layout([None, "a"], mesh)

    def fun(x, y, z):
        return x, spmd.relayout(y, cut), jax.numpy.roll(z, 8, 0)

    step = spmd.spmd_jit(fun, mesh=mesh, in_layouts=P("a"), out_layouts=(P(), P(None, "a"), P("a")))
    lowered = step.lower(x, x, x)
    assert {c.kind for c in lowered.collectives()} == {"all_gather", "all_to_all", "collective_permute"}
    sent = re.findall(
        r"= \(?(\w+)\[.* (?:all-gather|all-to-all|collective-permute)\(", lowered.compile().as_text()
    )
    width = jax.numpy.dtype(dtype).itemsize * 8
    assert len(sent) == 3 and all(re.fullmatch(rf"[fu]{width}", type) for type in sent)
    for got, expected in zip(step(x, x, x), (x, x, np.roll(x, 8, 0)), strict=True):
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(np.asarray(got, np.float32), np.asarray(expected, np.float32))


@pytest.mark.usefixtures("eight_devices")
@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize(
    "dtype", ["float32", "float64", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
)
def test_the_largest_of_nan_is_nan(dtype, scattered):
    """Of either sign, on any device. XLA, for CPUs, would reduce the numbers between devices and lose it."""
    mesh = spmd.create_mesh([("a", 8)])
    x = np.random.default_rng(0).integers(-4, 5, (64, 24)).astype(jax.numpy.dtype(dtype))
    x[3, 2], x[57, 9], x[0, 5], x[:, 11] = np.nan, -x.dtype.type(np.nan), 0, -np.zeros((), x.dtype)
    layout = P("a" if scattered else None)

    def fun(x):
        return jax.numpy.max(x, 0), jax.numpy.min(x, 0)

    with jax.enable_x64(dtype == "float64"):
        step = spmd.spmd_jit(fun, mesh=mesh, in_layouts=(P("a"),), out_layouts=layout)
        assert all(c.kind in ("all_reduce", "reduce_scatter") for c in step.lower(x).collectives())
        for got, expected in zip(step(x), jax.jit(fun)(x), strict=True):
            np.testing.assert_array_equal(np.asarray(got, np.float64), np.asarray(expected, np.float64))
