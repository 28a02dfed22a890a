"""TensorFlow DTensor's functions, eager and inside programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import ArgumentError, Layout, LayoutError, MeshError

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
X = np.arange(48, dtype=np.float32).reshape(8, 6)
LAYOUTS = [Layout(dims, MESH) for dims in ([None, None], ["a", None], ["a", "b"], [("b", "a"), None])]


def jit(fun, **options):
    return spmd.spmd_jit(fun, mesh=MESH, **options)


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_copy_then_fetch_unpack_and_pack(layout):
    x = spmd.copy_to_mesh(X, layout)
    assert spmd.is_dtensor(x) and spmd.fetch_layout(x) == layout
    spmd.check_layout(x, layout)
    blocks = spmd.unpack(x)
    assert len(blocks) == 8
    assert {b.shape for b in blocks} == {layout.local_shape_from_global_shape(X.shape)}
    again = spmd.pack(blocks, layout)
    assert spmd.fetch_layout(again) == layout
    np.testing.assert_array_equal(again, X)


def test_blocks_follow_the_order_of_the_mesh():
    blocks = spmd.unpack(spmd.copy_to_mesh(X, Layout(["a", "b"], MESH)))
    for device, block in enumerate(blocks):
        row, column = divmod(device, 2)
        np.testing.assert_array_equal(block, X[2 * row : 2 * row + 2, 3 * column : 3 * column + 3])


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_pack_and_unpack_inside(layout):
    def f(x):
        parts = spmd.unpack(x)
        return spmd.pack([2 * p for p in parts], layout)

    out = jit(f, in_layouts=layout)(X)
    np.testing.assert_array_equal(out, 2 * X)
    assert spmd.fetch_layout(out) == layout


def test_relayout_of_random_keys_inside():
    """Their physical form has a dim more."""
    keys = jax.random.split(jax.random.key(0), 8)
    step = spmd.spmd_jit(lambda k: jax.vmap(jax.random.bits)(spmd.relayout(k, P("a"))), mesh=MESH)
    np.testing.assert_array_equal(step(keys), jax.vmap(jax.random.bits)(keys))


def test_relayout_of_an_array_on_its_own_mesh():
    lies = spmd.copy_to_mesh(X, LAYOUTS[0])
    assert spmd.fetch_layout(spmd.relayout(lies, P(None, "b"))) == Layout([None, "b"], MESH)


def test_relayout_eager_and_inside():
    row, column = Layout(["a", None], MESH), Layout([None, "b"], MESH)
    x = spmd.relayout(spmd.copy_to_mesh(X, row), column)
    assert spmd.fetch_layout(x) == column
    like = spmd.relayout_like(spmd.copy_to_mesh(X, row), x)
    assert spmd.fetch_layout(like) == column

    def f(x, y):
        moved = spmd.relayout_like(x, y)
        assert spmd.fetch_layout(moved) == column
        return moved * 2

    out = jit(f, in_layouts=(row, column))(X, X)
    np.testing.assert_array_equal(out, X * 2)
    assert spmd.fetch_layout(out) == column


def test_copy_to_mesh_inside_a_program():
    whole = Layout.replicated(MESH, 2)
    out = jit(lambda x: x + spmd.copy_to_mesh(X, LAYOUTS[1]), in_layouts=whole)(X)
    np.testing.assert_array_equal(out, 2 * X)


def test_fetch_layout_inside():
    def f(x):
        assert spmd.is_dtensor(x) and spmd.fetch_layout(x) == LAYOUTS[1]
        spmd.check_layout(x, LAYOUTS[1])
        y = x * 2
        assert not spmd.is_dtensor(y)
        with pytest.raises(LayoutError, match=r"compiler chooses the layout.*relayout"):
            spmd.fetch_layout(y)
        return y

    np.testing.assert_array_equal(jit(f, in_layouts=LAYOUTS[1])(X), 2 * X)


@pytest.mark.parametrize("fn,args", [(jnp.zeros, ((8, 6),)), (jnp.full, ((8, 6), 3.5)), (jnp.sin, (X,))])
@pytest.mark.parametrize("where", ["eager", "inside"])
def test_call_with_layout(fn, args, where):
    layout = LAYOUTS[2]
    if where == "eager":
        out = spmd.call_with_layout(fn, layout, *args)
    else:
        out = jit(lambda: spmd.call_with_layout(fn, layout, *args))()
    np.testing.assert_allclose(out, fn(*args), rtol=1e-6)
    assert spmd.fetch_layout(out) == layout


def test_call_with_layout_of_random_numbers_and_keywords():
    layout = LAYOUTS[1]
    out = spmd.call_with_layout(jax.random.normal, layout, jax.random.key(3), shape=(8, 6))
    np.testing.assert_allclose(out, jax.random.normal(jax.random.key(3), (8, 6)), rtol=1e-6)
    assert {s.data.shape for s in out.addressable_shards} == {(2, 6)}
    assert not spmd.is_dtensor(spmd.call_with_layout(jnp.ones, None, (2,)))


def test_call_with_layout_of_a_pytree():
    def make(n):
        return {"w": jnp.ones((n, 8)), "b": jnp.zeros(n)}

    layouts = {"w": Layout(["a", "b"], MESH), "b": Layout([None], MESH)}
    out = spmd.call_with_layout(make, layouts, 8)
    assert jax.tree.map(spmd.fetch_layout, out) == layouts


def test_default_mesh():
    assert spmd.get_default_mesh() is None
    with spmd.default_mesh(MESH):
        assert spmd.get_default_mesh() == MESH
        out = spmd.spmd_jit(lambda x: x * 2, in_layouts=P("a"))(X)
        moved = spmd.relayout(X, P("b"))
    assert spmd.get_default_mesh() is None
    assert spmd.fetch_layout(out).mesh == MESH
    assert spmd.fetch_layout(moved) == Layout(["b", None], MESH)


def test_clients_and_devices():
    assert (spmd.num_clients(), spmd.client_id()) == (1, 0)
    assert spmd.num_local_devices() == spmd.num_global_devices("CPU") == len(spmd.local_devices("cpu")) == 8
    assert spmd.create_distributed_mesh([("a", 4), ("b", 2)]) == MESH
    half = spmd.create_distributed_mesh({"c": 4}, local_devices=jax.devices()[4:])
    assert list(half.devices) == jax.devices()[4:]
    spmd.barrier(half)


@pytest.mark.parametrize(
    "call,error,message",
    [
        (
            lambda: spmd.fetch_layout(jnp.ones(3)),
            LayoutError,
            "lies on no mesh; put it there with copy_to_mesh",
        ),
        (lambda: spmd.fetch_layout(3), LayoutError, "a int lies on no mesh"),
        (
            lambda: spmd.check_layout(spmd.copy_to_mesh(X, LAYOUTS[0]), LAYOUTS[1]),
            LayoutError,
            r"the array is in .*, not in",
        ),
        (lambda: spmd.pack([X] * 3, LAYOUTS[0]), ArgumentError, "3 blocks for the 8 devices"),
        (lambda: spmd.pack(3, LAYOUTS[0]), ArgumentError, "3 is no sequence of blocks"),
        (lambda: spmd.call_with_layout(3, LAYOUTS[0]), ArgumentError, "3 can't be called"),
        (lambda: spmd.pack([X] * 7 + [X[:1]], LAYOUTS[0]), ArgumentError, "one shape and dtype"),
        (lambda: spmd.pack([X[0]] * 8, LAYOUTS[0]), LayoutError, "has 2 dims, but the value has 1"),
        (
            lambda: spmd.create_distributed_mesh([("a", 16)]),
            MeshError,
            "16 positions, but there are 8 devices",
        ),
        (
            lambda: spmd.create_distributed_mesh([("a", 8)], device_type="abacus"),
            MeshError,
            "no devices of type",
        ),
        (lambda: spmd.local_devices("abacus"), MeshError, "there are no devices of type 'abacus'"),
        (
            lambda: spmd.barrier(spmd.create_mesh({"a": 512}, abstract=True)),
            MeshError,
            "abstract, it has no devices",
        ),
        (
            lambda: spmd.copy_to_mesh(X, Layout([None, None], MESH, partial={"a": "sum"})),
            LayoutError,
            "partial",
        ),
        (
            lambda: spmd.pack([X] * 8, Layout([None, None], MESH, partial={"a": "sum"})),
            LayoutError,
            "partial",
        ),
    ],
)
def test_mistakes(call, error, message):
    with pytest.raises(error, match=message):
        call()
