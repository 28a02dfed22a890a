"""What arguments and results may be, and where a program may be called."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
X = np.arange(48, dtype=np.float32).reshape(8, 6)


def jit(fun, **options):
    return spmd.spmd_jit(fun, mesh=MESH, **options)


def put(x, *spec):
    return jax.device_put(x, NamedSharding(MESH.to_jax(), P(*spec)))


def test_pytrees_and_keywords():
    def f(tree, *, scale):
        return {"sum": tree["x"].sum(), "pair": (tree["x"] * scale, tree["y"])}

    tree = {"x": X, "y": np.float32(3)}
    out = jit(f, in_layouts=({"x": P("a"), "y": None},), static_argnames="scale")(tree, scale=2)
    assert out["sum"] == X.sum() and out["pair"][1] == 3
    np.testing.assert_array_equal(out["pair"][0], X * 2)
    assert out["pair"][0].sharding.is_equivalent_to(NamedSharding(MESH.to_jax(), P("a")), 2)


def test_static_arguments_compile_once_each():
    count = []

    def f(x, n):
        count.append(n)
        return x * n

    g = jit(f, static_argnums=1)
    for n in (2, 3, 2):
        np.testing.assert_array_equal(g(X, n), X * n)
    assert count == [2, 3]


def test_closure_over_arrays():
    weights = put(X, "b")
    np.testing.assert_allclose(jit(lambda x: x + weights, in_layouts=P("a"))(X), 2 * X)


def test_donation_frees_the_argument():
    x = put(X, "a")
    out = jit(lambda v: v * 2, in_layouts=P("a"), out_layouts=P("a"), donate_argnums=0)(x)
    assert x.is_deleted()
    np.testing.assert_array_equal(out, X * 2)


def test_a_deleted_argument_is_an_error():
    """XLA of JAX 0.10 ends the process, under `jax.jit` too."""
    double = jit(lambda state: state * 2, in_layouts=P("a"), out_layouts=P("a"), donate_argnums=0)
    compiled = jit(lambda state: state + 1, in_layouts=P("a")).lower(X).compile()
    for _ in range(2):  # the second time the dispatcher knows it
        x = put(X, "a")
        compiled(x)
        double(x)
        for call in (double, compiled):
            with pytest.raises(spmd.DeletedError, match="state has been deleted"):
                call(x)
    assert issubclass(spmd.DeletedError, RuntimeError)
    split = jit(lambda key: jax.random.split(key)[0], donate_argnums=0)
    for seed in range(2):
        key = jax.device_put(jax.random.key(seed), NamedSharding(MESH.to_jax(), P()))
        split(key)
        with pytest.raises(spmd.DeletedError, match="key has been deleted"):
            split(key)
    with pytest.raises((spmd.ArgumentError, RuntimeError)):
        compiled(x, x)


def test_invalid_values_are_found():
    function = jit(lambda x: jnp.log(x) * 2, in_layouts=P("a"))
    whole = jit(lambda x: x - x, in_layouts=P("a"), donate_argnums=0)
    compiled = function.lower(X).compile()
    function(X + 1)
    with jax.debug_nans(True):
        function(X + 1)
        for _ in range(2):
            with pytest.raises(FloatingPointError, match=r"\(nan\) encountered in log"):
                function(-X - 1)
            with pytest.raises(FloatingPointError, match=r"\(nan\) in the result of"):
                compiled(-X - 1)
            with pytest.raises(FloatingPointError, match="nan"):
                whole(put(X + np.inf, "a"))  # the argument is gone


def test_shapes_without_compiling_and_forgetting():
    traced = []

    def scaled(x, by):
        traced.append(by)
        return {"y": x * by}

    f = jit(scaled, static_argnums=1, in_layouts=P("a"))
    assert f.eval_shape(X, 2) == {"y": jax.ShapeDtypeStruct((8, 6), np.float32)}
    f(X, 2)
    assert traced == [2]
    f.clear_cache()
    f(X, 2)
    assert traced == [2, 2]
    lowered = f.lower(X, 2)
    for info in (lowered.out_info, lowered.compile().out_info):
        assert (info["y"].shape, info["y"].dtype, info["y"].sharding.spec) == ((8, 6), np.float32, P("a"))


def test_stages_tell_what_those_of_jax_tell():
    f = jit(lambda tree, *, k: tree["x"] * k, in_layouts=P("a"), static_argnames="k")
    theirs = jax.jit(lambda tree, *, k: tree["x"] * k, static_argnames="k").lower({"x": X}, k=2)
    lowered = f.lower({"x": X}, k=2)
    compiled = lowered.compile()
    for ours in (lowered, compiled):
        assert (ours.in_tree, ours.out_tree) == (theirs.in_tree, theirs.out_tree)
        assert jax.tree.map(lambda a: (a.shape, a.dtype), ours.in_avals) == (({"x": ((8, 6), X.dtype)},), {})
        assert "<lambda>" in repr(ours)
    assert len(compiled.runtime_executable().local_devices()) == MESH.size
    assert "<lambda>" in repr(f)


def test_a_traced_program_is_one_of_jax():
    f = jit(lambda x, *, k: jnp.tanh(x) * k, in_layouts=P("a"), out_layouts=P("a", "b"), static_argnames="k")
    traced = f.trace(X, k=2)
    assert traced.out_info.shape == X.shape and "-> ({a,b})" in str(traced.jaxpr)
    out = traced.lower().compile()(X)
    np.testing.assert_allclose(out, np.tanh(X) * 2, rtol=1e-6)
    assert out.sharding.spec == P("a", "b")


def test_exported_programs_are_the_partitioned_ones():
    import jax.export

    f = jit(lambda x: jnp.sin(x).sum(0), in_layouts=P("a"))
    exported = jax.export.export(f)(jax.ShapeDtypeStruct(X.shape, X.dtype))
    assert exported.nr_devices == MESH.size
    out = jax.jit(exported.call)(put(X, "a"))
    np.testing.assert_allclose(out, np.sin(X).sum(0), rtol=1e-5, atol=1e-6)
    (rows,) = jax.export.symbolic_shape("rows")
    with pytest.raises(spmd.UnsupportedError, match=r"the symbolic shape \(rows, 4\)"):
        jax.export.export(f)(jax.ShapeDtypeStruct((rows, 4), X.dtype))


def test_lowering_without_data():
    lowered = jit(lambda x: x.sum(), in_layouts=P("a")).lower(jax.ShapeDtypeStruct((8, 6), np.float32))
    assert [c.kind for c in lowered.collectives()] == ["all_reduce"]
    assert lowered.compile()(X) == X.sum()


def test_a_compiled_program_looks_again_at_arguments_that_change():
    compiled = jit(lambda x: x * 2, in_layouts=P("b")).lower(X).compile()
    there, elsewhere = put(X, "b"), put(X, "a")
    for x in (there, there, X, there, elsewhere, there):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            np.testing.assert_array_equal(compiled(x), X * 2)
    with pytest.raises(spmd.ArgumentError, match=r"x has shape \(8, 2\)"):
        compiled(put(X[:, :2], "b"))
    with pytest.raises(spmd.ArgumentError, match="takes 1 argument, not 2 arguments"):
        compiled(there, there)
    with pytest.raises(spmd.ArgumentError, match="x is of type int32; it was compiled for float32"):
        compiled(there.astype(np.int32))
    with pytest.raises(spmd.ArgumentError, match="x is a str"):
        compiled("x")


def test_a_compiled_program_takes_keywords_by_their_names():
    def difference(x, a):
        return x - a

    small = np.ones_like(X)
    by_name = jit(difference, in_layouts=P("a")).lower(x=X, a=small).compile()
    np.testing.assert_array_equal(by_name(a=small, x=X), X - small)
    half = jit(difference, in_layouts=P("a")).lower(X, a=small).compile()
    np.testing.assert_array_equal(half(X, a=small), X - small)
    for compiled, args, kwargs in [
        (by_name, (X, small), {}),
        (by_name, (), {"x": X, "b": small}),
        (half, (), {"x": X, "a": small}),
        (jit(difference, in_layouts=P("a")).lower(X, small).compile(), (), {"x": X, "a": small}),
    ]:
        with pytest.raises(spmd.ArgumentError, match=r"takes \d argument"):
            compiled(*args, **kwargs)


def test_an_argument_elsewhere_is_relaid_with_one_warning():
    g = jit(lambda x: x * 2, in_layouts=P("b"))
    x = put(X, "a")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        g(x)
        g(x)
    (warning,) = caught
    assert "x (192 bytes, {a,-} -> {b,-})" in str(warning.message)


@pytest.mark.parametrize("shape", [(0, 3), (8, 0), (0,), ()])
@pytest.mark.parametrize("layouts", [None, "a"])
def test_empty_and_scalar_arrays(shape, layouts):
    x = np.ones(shape, np.float32)
    spec = P(layouts) if shape else None
    out = jit(lambda v: (v * 2, v.sum()), in_layouts=spec, out_layouts=None)(x)
    np.testing.assert_array_equal(out[0], x * 2)
    assert out[1] == x.sum()


@pytest.mark.parametrize(
    "dtype",
    [
        "bfloat16",
        "float16",
        "float64",
        "float8_e4m3fn",
        "float8_e5m2",
        "int4",
        "int8",
        "uint8",
        "int64",
        "bool",
        "complex64",
        "complex128",
    ],
)
def test_types(dtype):
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        x = jnp.asarray(X % 2).astype(dtype)

        def f(v):
            return v, jnp.where(v == v[:1], v, v)

        ours, theirs = jit(f, in_layouts=P("a"))(x), jax.jit(f)(x)
        for a, b in zip(ours, theirs, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_sums_of_small_floats():
    x = jnp.asarray(X).astype(jnp.bfloat16)
    out = jit(lambda v: v.sum(0), in_layouts=P("a"))(x)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float32), X.sum(0), rtol=2e-2)


def test_random_keys_in_and_out():
    def f(keys):
        return jax.vmap(lambda k: jax.random.normal(k, (3,)))(keys), jax.random.split(keys[0], 4)

    keys = jax.random.split(jax.random.key(0), 8)
    ours, theirs = jit(f, in_layouts=P("a"))(keys), jax.jit(f)(keys)
    np.testing.assert_array_equal(ours[0], theirs[0])
    assert ours[1].dtype == theirs[1].dtype
    np.testing.assert_array_equal(jax.random.key_data(ours[1]), jax.random.key_data(theirs[1]))


def test_shard_map_inside_runs_as_written():
    def f(x):
        inner = jax.shard_map(
            lambda u: jax.lax.psum(u, "a"), mesh=MESH.to_jax(), in_specs=P("a"), out_specs=P()
        )
        return inner(x * 2) + 1

    np.testing.assert_allclose(jit(f, in_layouts=P("b"))(X), jax.jit(f)(X))


def test_called_under_jit_grad_and_another():
    def f(x):
        return (x**2).sum()

    g = jit(f, in_layouts=P("a"))
    assert jax.jit(lambda x: g(x) + 1)(X) == f(X) + 1
    np.testing.assert_allclose(jax.grad(g)(X), 2 * X)
    assert jit(lambda x: g(x * 2), in_layouts=P("b"))(X) == f(2 * X)


def test_cost_and_memory():
    def f(x, w):
        return x @ w

    w = np.ones((6, 16), np.float32)
    lowered = jit(f, in_layouts=(P("a", "b"), P("b")), out_layouts=P("a"), donate_argnums=0).lower(X, w)
    cost = lowered.cost()
    assert cost.flops["f32"] >= 2 * 2 * 3 * 16  # [2,3] @ [3,16] on each device
    assert cost.comm_bytes == {("all_reduce", ("b",)): lowered.comm_bytes()}
    assert cost.messages == {("all_reduce", ("b",)): 1}
    assert cost.seconds == cost.compute_seconds + cost.comm_seconds > 0
    assert 0 < cost.exposed_seconds <= cost.comm_seconds and cost.hidden_seconds >= 0
    assert lowered.cost("h100-nvlink").seconds < cost.seconds
    memory = lowered.memory()
    assert (memory.arguments, memory.results) == (4 * (2 * 3 + 3 * 16), 4 * 2 * 16)
    assert memory.peak >= memory.arguments + memory.results
