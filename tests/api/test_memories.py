"""Arguments and results in the memory of the host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.memories import HOST

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
SPEC = P("a")
ON_DEVICE = NamedSharding(MESH.to_jax(), SPEC)
ON_HOST = ON_DEVICE.with_memory_kind(HOST)
Host, Device = jax.memory.Space.Host, jax.memory.Space.Device
X = np.random.RandomState(0).rand(8, 6).astype(np.float32)


def update(state, x):
    """A state that lies on the host, as optimizers' do; what it becomes, there, and a gradient scaled by it."""
    moved = 0.9 * jax.device_put(state, Device) + x
    return jax.device_put(moved, Host), x / (1 + moved)


def check(found):
    (state, x), moved = found, 0.9 * X + X
    np.testing.assert_allclose(state, moved, rtol=1e-6)
    np.testing.assert_allclose(x, X / (1 + moved), rtol=1e-6)
    assert state.sharding.memory_kind == state.addressable_shards[0].data.sharding.memory_kind == HOST
    assert x.sharding.memory_kind == "device"


@pytest.mark.parametrize("layouts", [SPEC, (None, SPEC), (ON_HOST, ON_DEVICE)], ids=["spec", "own", "named"])
def test_states_stay_on_the_host(layouts, recwarn):
    step = spmd.spmd_jit(update, mesh=MESH, in_layouts=layouts)
    state = jax.device_put(X, ON_HOST)
    for _ in range(2):
        check(step(state, X))
    compiled = step.lower(jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=ON_HOST), X).compile()
    check(compiled(state, X))
    assert [s.memory_kind for s in compiled.input_shardings] == [HOST, "device"]
    assert not recwarn.list


def test_layouts_say_where_results_lie():
    step = spmd.spmd_jit(lambda x: (x + 1, x + 2), mesh=MESH, in_layouts=SPEC, out_layouts=(ON_HOST, SPEC))
    kinds = [y.sharding.memory_kind for y in step(X)]
    assert kinds == [HOST, "device"]
    back = spmd.spmd_jit(lambda x: jax.device_put(x, Host), mesh=MESH, in_layouts=SPEC, out_layouts=ON_DEVICE)
    assert back(X).sharding.memory_kind == "device"


def test_arguments_are_moved_to_where_layouts_say():
    step = spmd.spmd_jit(lambda x: jnp.sin(x), mesh=MESH, in_layouts=ON_DEVICE)
    with pytest.warns(UserWarning, match=r"\{a,-\} of pinned_host -> \{a,-\}\)"):
        np.testing.assert_allclose(step(jax.device_put(X, ON_HOST)), np.sin(X), rtol=1e-6)


def test_mixed_memories_are_an_error_as_in_jax():
    with pytest.raises(ValueError, match="memory_space"):
        spmd.spmd_jit(lambda s, x: s + x, mesh=MESH)(jax.device_put(X, ON_HOST), X)


def test_within_other_transformations():
    step = spmd.spmd_jit(update, mesh=MESH, in_layouts=SPEC)
    state = jax.device_put(X, ON_HOST)
    check(jax.jit(step)(state, X))

    def loss(x):
        return step(state, x)[1].sum()

    np.testing.assert_allclose(
        jax.grad(loss)(X), jax.grad(lambda x: (x / (1 + 0.9 * X + x)).sum())(X), rtol=1e-5
    )


def test_device_memory_has_none_of_it():
    """Not by estimate either, so that a limit concerns what is there."""
    step = spmd.spmd_jit(update, mesh=MESH, in_layouts=SPEC)
    on_host = jax.ShapeDtypeStruct(X.shape, X.dtype, sharding=ON_HOST)
    memory = step.lower(on_host, X).memory()
    assert memory.arguments == X.nbytes / 4
    tight = spmd.Options(memory_limit=memory.peak)
    spmd.spmd_jit(update, mesh=MESH, in_layouts=SPEC, options=tight).lower(on_host, X)


def test_donated_states_become_states():
    """Not results of the same shape in another memory."""

    def step(state, x):
        state, x = update(state, x)
        return x, state

    donating = spmd.spmd_jit(step, mesh=MESH, in_layouts=SPEC, donate_argnums=0)
    state = jax.device_put(X, ON_HOST)
    x, moved = donating(state, X)
    assert state.is_deleted()
    check((moved, x))


def test_from_stablehlo():
    text = jax.jit(update).lower(jax.device_put(X, ON_HOST), jax.device_put(X, ON_DEVICE)).as_text()
    check(spmd.from_stablehlo(text).compile()(jax.device_put(X, ON_HOST), X))
