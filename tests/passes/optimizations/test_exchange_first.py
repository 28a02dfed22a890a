"""Arguments are exchanged before they are computed with."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = [("a", 4), ("b", 2)]


def ops_of(fun, source, target, *args):
    """The names of the per-device program's ops, but for constants; and whether it computes what `fun` does."""
    if jax.device_count() < 8:
        pytest.skip("needs 8 virtual devices")
    mesh = spmd.create_mesh(MESH)
    step = spmd.spmd_jit(fun, mesh=mesh, in_layouts=source, out_layouts=target)
    lowered = step.lower(*args)
    np.testing.assert_array_equal(lowered.compile()(*args), jax.jit(fun)(*args))
    skipped = ("constant", "broadcast_in_dim")
    return [op.name for op in lowered.stages["optimize"].main.body.ops if op.name not in skipped]


X = np.arange(64 * 48, dtype=np.float32).reshape(64, 48)


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [
        (P(("a", "b")), P(("b", "a")), "collective_permute"),
        (P("a", "b"), P("b", "a"), None),  # several messages
        (P("a"), P(None, "a"), "all_to_all"),
        (P(("b", "a")), P("b", "a"), "all_to_all"),
    ],
)
def test_elementwise_follows(source, target, kind):
    names = ops_of(lambda x: -jnp.maximum(3 - x, 1.5), (source,), target, X)
    if kind is not None:
        assert names == [kind, "subtract", "maximum", "negate"]


def test_no_more_bytes():
    """What is narrowed stays so before it is sent, and what is widened is widened behind."""
    moved = (P(("a", "b")),), P(("b", "a"))
    narrow = ops_of(lambda x: (x * 2).astype(jnp.bfloat16), *moved, X)
    assert narrow == ["multiply", "convert", "collective_permute"]
    wide = ops_of(lambda x: x.astype(jnp.float32) * 2, *moved, X.astype(jnp.bfloat16))
    assert wide == ["collective_permute", "convert", "multiply"]


def test_two_pieces_are_computed_as_they_are_cut():
    moved = (P(("a", "b")),), P("a", "b")
    assert ops_of(lambda x: x * 2, *moved, X) == ["multiply", "all_to_all"]
    wide = ops_of(lambda x: x.astype(jnp.float32) * 2, *moved, X.astype(jnp.bfloat16))
    assert wide == ["all_to_all", "convert", "multiply"]


def test_what_others_use_stays():
    mesh = spmd.create_mesh(MESH)
    moved = spmd.Layout([("b", "a"), None], mesh)

    def fun(x):
        y = x * 2
        return y + spmd.relayout(jnp.sin(y), moved).sum()

    names = ops_of(fun, (P(("a", "b")),), P(("a", "b")), np.ones((64, 48), np.float32))
    assert names.count("multiply") == 1


def test_where_some_get_nothing_zeros_stay_zeros():
    def fun(x):
        return jnp.concatenate([jnp.zeros((8, 48), x.dtype), jnp.exp(x)[:-8]])

    names = ops_of(fun, (P(("a", "b")),), P(("a", "b")), X / 1e4)
    assert "collective_permute" in names
