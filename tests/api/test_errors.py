"""A user's mistake is an SpmdError before anything runs, which names the place and the remedy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ArgumentError, LayoutError, MeshError, ParseError, SpmdError, UnsupportedError

X = np.ones((8, 6), np.float32)
MESH = spmd.create_mesh([("a", 4), ("b", 2)])
OTHER = spmd.create_mesh([("c", 8)])


def double(x):
    return x * 2


def add(x, y):
    return x + y


def on(mesh, *spec):
    return jax.device_put(X, NamedSharding(mesh.to_jax(), P(*spec)))


def calls_host(x):
    return jax.experimental.io_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


def prints(x):
    def step(carry, _):
        jax.debug.print("{}", carry.sum(), ordered=True)
        return carry, None

    return jax.lax.scan(step, x, length=2)[0]


def same_donated():
    x = on(MESH, "a")
    return spmd.spmd_jit(add, mesh=MESH, donate_argnums=0)(x, x)


def run(fun=double, args=(X,), **options):
    return lambda: spmd.spmd_jit(fun, **{"mesh": MESH, **options})(*args)


CASES = {
    "unknown axis": (run(in_layouts=P("z")), LayoutError, r"x: .*no axis 'z'; it has a, b"),
    "repeated axis": (run(in_layouts=P("a", "a")), LayoutError, r"x: .*'a' is used twice"),
    "rank": (run(in_layouts=P("a", None, "b")), LayoutError, r"x: .*3 dims, but the value has 2"),
    "rank of a layout": (run(in_layouts=spmd.Layout(["a"], MESH)), LayoutError, r"x: .*1 dims.* has 2"),
    "rank of a result": (run(out_layouts=P("a", None, "b")), LayoutError, r"result: .*3 dims.*has 2"),
    "prefix": (
        run(lambda d: d["x"], ({"x": X},), in_layouts=({"y": P("a")},)),
        ArgumentError,
        r"in_layouts\[0\] \(argument 'd'\).*lacks \['x'\]",
    ),
    "too few layouts": (
        run(add, (X, X), in_layouts=(P("a"),)),
        ArgumentError,
        r"in_layouts has 1 .* 2 positional",
    ),
    "mesh size": (lambda: spmd.create_mesh([("a", 16)]), MeshError, "16 positions, but there are 8 devices"),
    "two meshes": (
        run(
            add,
            (X, X),
            mesh=None,
            in_layouts=(spmd.Layout(["a", None], MESH), spmd.Layout(["c", None], OTHER)),
        ),
        MeshError,
        r"mesh \{c=8\}.*mesh \{a=4, b=2\}.*one mesh",
    ),
    "argument on another mesh": (
        lambda: spmd.spmd_jit(double, mesh=MESH)(on(OTHER, "c")),
        MeshError,
        r"x is .*relayout",
    ),
    "no mesh": (run(mesh=None), MeshError, "no mesh: give spmd_jit one"),
    "abstract mesh": (
        run(mesh=spmd.create_mesh({"a": 512}, abstract=True)),
        MeshError,
        r"abstract; it compiles with \.lower\(\)",
    ),
    "layout of a static argument": (
        run(lambda x, n: x * n, (X, 3), in_layouts=(P("a"), P("a")), static_argnums=1),
        ArgumentError,
        r"in_layouts\[1\]: argument 'n' is static",
    ),
    "donated twice": (same_donated, ArgumentError, r"x and y are one array, and it is donated"),
    "not an array": (run(args=("hello",)), ArgumentError, r"x is a str.*static_argnames"),
    "a reference": (
        lambda: spmd.spmd_jit(double, mesh=MESH)(jax.new_ref(jax.numpy.zeros(8))),
        ArgumentError,
        r"x is a Ref.*pass what it holds, ref\[\.\.\.\]",
    ),
    "options": (run(options=3), ArgumentError, r"options must be a spmd\.Options"),
    "configured too late": (
        lambda: spmd.configure_virtual_cpus(4),
        SpmdError,
        "too late.*before the first array",
    ),
    "host callback": (
        run(calls_host),
        UnsupportedError,
        r"test_errors\.py:\d+.*io_callback calls back to the host",
    ),
    "ordered print": (
        run(prints),
        UnsupportedError,
        r"test_errors\.py:\d+.*debug_print calls back to the host in an order",
    ),
    "relayout": (run(lambda x: spmd.relayout(x, P("q"))), LayoutError, "relayout: .*no axis 'q'"),
    "kind of a partial": (
        lambda: spmd.Layout([None], MESH, partial={"a": "foo"}),
        LayoutError,
        "'foo' over 'a'",
    ),
    "IR text": (
        lambda: spmd.ir.parse("mesh {a=2}\nfunc @main(%x: f32[2] {-) -> () {\n}"),
        ParseError,
        r"line 2, column \d+",
    ),
    "axis of IR text": (
        lambda: spmd.ir.parse("mesh {a=2}\nfunc @main(%x: f32[2] {z}) -> () {\n  return\n}"),
        ParseError,
        r"line 2, column 23: layout \{z\}: .*has no axis 'z'",
    ),
    "value of IR text": (
        lambda: spmd.ir.parse("mesh {a=2}\nfunc @main(%x: f32[2] {-}) -> (f32[2] {-}) {\n  return %y\n}"),
        ParseError,
        r"line 3, column 10: .*not defined before, found '%y'",
    ),
    "value of StableHLO text": (
        lambda: spmd.from_stablehlo(
            "module {\n func.func @main(%x: tensor<2xf32>) -> tensor<2xf32> {\n  return %y : tensor<2xf32> }}"
        ),
        ParseError,
        r"line 3, column 10: use of undeclared SSA value",
    ),
    "type of StableHLO text": (
        lambda: spmd.from_stablehlo(
            "module {\n func.func @main(%x: tensor<2xf32>) -> tensor<3xf32> {\n  return %x : tensor<2xf32> }}"
        ),
        ParseError,
        "line 3, column 3: type of return operand 0",
    ),
    "StableHLO without main": (
        lambda: spmd.from_stablehlo("module {}"),
        SpmdError,
        "no function @main, and 0 public ones; name the one",
    ),
    "static without a hash": (
        run(lambda x, n: x * n[0], (X, [1]), static_argnums=1),
        ArgumentError,
        "static argument 'n' is a list, which has no hash.*tuple",
    ),
    "static argument that isn't there": (
        run(static_argnames="q"),
        ArgumentError,
        "no parameter of that name",
    ),
    "donated argument that isn't there": (run(donate_argnums=3), ArgumentError, "donate_argnums=3: .* has 1"),
    "donated static argument": (
        run(lambda x, n: x * n, (X, 3), static_argnums=1, donate_argnums=1),
        ArgumentError,
        "'n' is static and can't be donated",
    ),
    "prefix of results": (
        run(lambda x: {"y": x}, out_layouts={"z": P("a")}),
        ArgumentError,
        r"out_layouts.*lacks \['y'\]; it has \['z'\] too many",
    ),
    "StableHLO text": (
        lambda: spmd.from_stablehlo("module {\n func.func @main(%x: tensor<2xf32) { return }\n}"),
        ParseError,
        r"line 2, column 34",
    ),
    "no such stage": (
        lambda: spmd.spmd_jit(double, mesh=MESH).lower(X).as_text("hlo"),
        ArgumentError,
        "no stage 'hlo'; there are import, propagate, expand, optimize",
    ),
    "a mesh for StableHLO": (
        lambda: spmd.from_stablehlo("module {}", mesh=3),
        MeshError,
        "3 is no mesh; make one",
    ),
    "options for StableHLO": (
        lambda: spmd.from_stablehlo("module {}", options="fast"),
        ArgumentError,
        "options must be a spmd.Options, not str",
    ),
    "no time limit": (lambda: spmd.Options(search="ilp", time_limit=None), ArgumentError, "time_limit=None"),
    "no mesh of JAX's": (lambda: spmd.Mesh.from_jax(3), MeshError, "3 is no mesh"),
    "rates that are no numbers": (
        lambda: spmd.Hardware("mine", {"default": "fast"}, 1e12, 1e11, 1e-6, 1e9),
        ArgumentError,
        "hardware mine: flops are numbers by element type",
    ),
    "static argument by a number that is none": (
        run(static_argnums=1.5),
        ArgumentError,
        "static_argnums=1.5",
    ),
    "layout of another kind": (run(in_layouts=("a",)), ArgumentError, "NamedSharding or None$"),
    "an executable that reads traced values": (
        lambda: jax.jit(lambda y: spmd.spmd_jit(lambda x: x + y, mesh=MESH).lower(X).compile()(X))(X),
        UnsupportedError,
        "reads traced values of the code around it",
    ),
    "devices that are too few": (lambda: spmd.configure_virtual_cpus(0), ArgumentError, "at least 1"),
    "no such hardware": (
        lambda: spmd.spmd_jit(double, mesh=MESH).lower(X).cost("abacus"),
        ArgumentError,
        "no hardware 'abacus'; there are cpu",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_mistake(case):
    call, error, message = CASES[case]
    with pytest.raises(error, match=message) as caught:
        call()
    assert isinstance(caught.value, SpmdError)
    assert isinstance(caught.value, (ValueError, TypeError, NotImplementedError)) or error is SpmdError


def test_devices_of_different_kinds_and_order_are_told():
    with pytest.raises(MeshError, match="4 positions, but there are 3 devices"):
        spmd.create_mesh([("a", 4)], devices=jax.devices()[:3])


def test_parse_error_has_its_place():
    with pytest.raises(ParseError) as caught:
        spmd.ir.parse("mesh {a=2}\nfunc @main(%x: f32[2] {-) -> () {\n}")
    assert (caught.value.line, caught.value.column) == (2, 23)


def test_nothing_ran():
    """The function is not even traced when its layouts are wrong."""
    traced = []

    def f(x):
        traced.append(x)
        return jnp.sin(x)

    with pytest.raises(LayoutError):
        spmd.spmd_jit(f, mesh=MESH, in_layouts=P("z"))(X)
    assert not traced
