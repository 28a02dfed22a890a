"""Programs that XLA compiles without `jax.jit`, beside those that `jax.jit(shard_map)` runs where JAX's internals are unknown."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler import compat_executables
from spmd_compiler.placement import Placer

MESH = spmd.create_mesh([("a", 4), ("b", 2)])
X = np.arange(64, dtype=np.float32).reshape(8, 8)


def step(state, x):
    return {"w": state["w"] - 0.1 * jnp.sin(x), "n": state["n"] + 1}, (state["w"] @ x).sum()


def run(donate=()):
    """A step from given layouts: its results, what it was lowered from, and the first argument that it took."""
    specs = ({"w": P("a", "b"), "n": P()}, P("b"))
    f = spmd.spmd_jit(step, mesh=MESH, in_layouts=specs, out_layouts=(specs[0], None), donate_argnums=donate)
    shardings = jax.tree.map(lambda s: jax.NamedSharding(MESH.to_jax(), s), specs[0])
    state = jax.device_put({"w": X, "n": np.int32(3)}, shardings)
    return f(state, X), f.lower(state, X), state


@pytest.fixture(params=[True, False], ids=["direct", "jit"])
def direct(request, monkeypatch):
    monkeypatch.setattr(compat_executables, "is_known", lambda: request.param)
    return request.param


def test_both_ways_agree(direct):
    (state, loss), lowered, _ = run()
    np.testing.assert_allclose(state["w"], X - 0.1 * np.sin(X), rtol=1e-6)
    assert state["n"] == 4
    np.testing.assert_allclose(loss, (X @ X).sum(), rtol=1e-6)
    assert state["w"].sharding.spec == P("a", "b")
    compiled = lowered.compile()
    assert compiled.output_shardings[0]["w"].spec == P("a", "b")
    replicas = re.search(r"replica_count=8", compiled.as_text()) is not None
    assert replicas == (direct and compat_executables.RUNS_REPLICAS)


def test_tpus_run_no_replicas():
    """XLA for TPUs would shard what follows all-reduces between them."""
    assert not compat_executables.runs_replicas("tpu")


def test_donated_arguments_are_taken(direct):
    (state, _), lowered, given = run(donate=0)
    assert given["w"].is_deleted()
    np.testing.assert_allclose(state["w"], X - 0.1 * np.sin(X), rtol=1e-6)
    assert lowered.compile().memory_analysis().alias_size_in_bytes >= X.nbytes // 8


def test_a_donation_without_a_result_is_told(direct):
    f = spmd.spmd_jit(lambda x: x.sum(), mesh=MESH, in_layouts=P("a"), donate_argnums=0)
    with pytest.warns(UserWarning, match="Some donated buffers were not usable"):
        f.lower(X).compile()


def test_arguments_without_elements(direct):
    f = spmd.spmd_jit(lambda x, y: (x, y.sum()), mesh=MESH, in_layouts=(P("a"), P("b")))
    empty, total = f(np.zeros((0, 4), np.float32), X)
    assert empty.shape == (0, 4)
    assert total == X.sum()


@pytest.mark.skipif(not compat_executables.is_known(), reason="this JAX is compiled for by jax.jit")
def test_unused_arguments_are_not_taken():
    """As with `jax.jit`, but those donated, whose place a result may take."""
    given, left = (P("a", "b"), P(), P("a", "b")), P("a", "b")
    step = spmd.spmd_jit(
        lambda x, y, z: jnp.cos(z), mesh=MESH, in_layouts=given, out_layouts=left, donate_argnums=0
    )
    compiled = step.lower(X, X, X).compile()
    assert compiled.memory_analysis().argument_size_in_bytes == 2 * X.nbytes // 8
    for _ in range(3):
        np.testing.assert_allclose(compiled(X, X, X), np.cos(X), rtol=1e-6)
    assert [s.spec for s in compiled.input_shardings] == list(given)
    with pytest.raises(spmd.ArgumentError, match="has shape"):
        compiled(X, X[:4], X)
    np.testing.assert_array_equal(spmd.spmd_jit(lambda x: jnp.ones(3), mesh=MESH)(X), np.ones(3))


def test_results_go_on(direct):
    """Into a program of JAX's, and another of ours, without moving."""
    f = spmd.spmd_jit(lambda x: x * 2, mesh=MESH, in_layouts=P("a", "b"), out_layouts=P("a", "b"))
    once = f(X)
    np.testing.assert_array_equal(f(once), 4 * X)
    np.testing.assert_array_equal(jax.jit(lambda x: x.T)(once), 2 * X.T)
    np.testing.assert_array_equal(once[3:5, 1], 2 * X[3:5, 1])
    np.testing.assert_array_equal(jax.device_put(once, jax.devices()[0]), 2 * X)
    assert {s.data.shape for s in once.addressable_shards} == {(2, 4)}


@pytest.mark.skipif(not compat_executables.is_known(), reason="this JAX is compiled for by jax.jit")
def test_sub_axes_and_keys():
    def f(key, x):
        return jax.random.key_data(key), jnp.sin(x.reshape(2, 8, 4)) + jax.random.normal(key, (2, 8, 4))

    x, key = np.arange(64, dtype=np.float32).reshape(16, 4), jax.random.key(3)
    got = spmd.spmd_jit(f, mesh=MESH, in_layouts=(P(), P(("a", "b"))))(key, x)
    for a, b in zip(got, f(key, x), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_known_arguments_run_without_python_of_ours(monkeypatch):
    """Others, after those, are looked at, moved and checked as before."""
    looked = []
    place = Placer.place
    monkeypatch.setattr(Placer, "place", lambda self, *args: looked.append(1) or place(self, *args))
    compiled = spmd.spmd_jit(lambda x: 2 * x, mesh=MESH, in_layouts=P("a")).lower(X).compile()
    there, elsewhere = (
        jax.device_put(X, jax.NamedSharding(MESH.to_jax(), s)) for s in (P("a"), P(None, "b"))
    )
    for x, looks in ((there, 1), (there, 1), (2 * there, 1), (X, 2), (there, 2), (X, 2)):
        np.testing.assert_array_equal(compiled(x), 2 * np.asarray(x))
        assert len(looked) == looks
    with pytest.warns(UserWarning, match="relaid"):
        np.testing.assert_array_equal(compiled(elsewhere), 2 * X)
    with pytest.raises(spmd.ArgumentError, match="shape"):
        compiled(X[:4])
    with pytest.raises(spmd.ArgumentError, match="takes 1 argument"):
        compiled(there, there)
