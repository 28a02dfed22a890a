"""All-reduces of what is the same on their devices: gone where that is sure, and only there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh([("a", 2), ("b", 4)])
X = np.random.RandomState(0).randn(8, 4).astype(np.float32)
BOTH = P("a", "b")


def lowered(body, in_spec=BOTH, x=X, mesh=MESH):
    """As `jax.jit` runs it, and as it is partitioned."""
    fun = jax.shard_map(
        lambda x: jnp.stack(jax.tree.leaves(body(x)))[None],
        mesh=mesh.to_jax(),
        in_specs=in_spec,
        out_specs=P(mesh.axis_names),
        check_vma=False,
    )
    step = spmd.spmd_jit(fun, mesh=mesh, in_layouts=in_spec)
    np.testing.assert_allclose(step(x), jax.jit(fun)(x), rtol=1e-5, atol=1e-5)
    return [(c.axes, c.trips) for c in step.lower(x).collectives()]


def carried(x):
    """Equal along an axis after one turn, and no more after two."""

    def body(carry, _):
        one, other = carry
        return (lax.psum(one, "b"), one + 0 * other + lax.axis_index("b")), lax.pmax(one, "b")

    (one, two), seen = lax.scan(body, (jnp.float32(1), jnp.float32(1)), None, length=3)
    return lax.psum(one, "b"), lax.psum(two, "b"), seen.sum()


def mixed(x):
    """The carry differs once the position enters it."""
    out, _ = lax.scan(
        lambda c, _: (c + lax.psum(c, "b") + lax.axis_index("b"), None), jnp.float32(1), None, length=3
    )
    return (out,)


def parted(x):
    here = lax.axis_index("b") == 0
    return (
        lax.psum(lax.cond(here, lambda: 1.0, lambda: 2.0), "b"),
        lax.psum(lax.cond(x.max() > 9, lambda: 1.0, lambda: 2.0), "a"),
    )


def uneven_turns(x):
    """Devices leave the loop at different times."""
    turns = lax.axis_index("b")
    out = lax.while_loop(lambda c: c[0] < turns, lambda c: (c[0] + 1, c[1] * 2), (0, jnp.float32(1)))[1]
    return (lax.psum(out, "b"), lax.psum(out, "a"))


@pytest.mark.parametrize(
    "body, sent",
    [
        (lambda x: lax.psum(jnp.float32(3), "a"), []),
        (lambda x: lax.psum(lax.psum(x.sum(), "b"), "b"), [(("b",), 1)]),
        (lambda x: lax.psum(lax.psum(x.sum(), "b") * 2, ("a", "b")), [(("b",), 1), (("a",), 1)]),
        (lambda x: lax.pmax(lax.all_gather(x, "a").sum(), ("a", "b")), [(("a",), 1), (("b",), 1)]),
        (lambda x: lax.psum(lax.all_gather(x, ("a", "b")).sum(), "b"), [(("a", "b"), 1)]),
        (lambda x: lax.psum(lax.ppermute(jnp.float32(2), "b", [(0, 1)]), "b"), [(("b",), 1)] * 2),
        (lambda x: lax.psum(lax.axis_index("a"), "b").astype(jnp.float32), []),
        (lambda x: lax.psum(jnp.int8(100), ("a", "b")).astype(jnp.float32), []),
        (carried, [(("b",), 1)]),
        (mixed, [(("b",), 3)]),
        (parted, [(("b",), 1), (("a",), 1)]),
        (uneven_turns, [(("b",), 1)]),
    ],
)
def test_sums(body, sent):
    assert sorted(lowered(body)) == sorted(sent)


def test_arguments_are_equal_along_the_axes_that_do_not_cut_them():
    assert lowered(lambda x: lax.psum(x.sum(), ("a", "b")), P("a")) == [(("a",), 1)]
    assert lowered(lambda x: lax.pmax(x.sum(), "b"), P(None, "a")) == []
    assert lowered(lambda x: lax.psum(x.sum(), "b"), P(("b", "a"))) == [(("b",), 1)]


def test_pieces_of_axes():
    mesh = spmd.create_mesh([("d", 8)])
    pairs = [[0, 1], [2, 3], [4, 5], [6, 7]]
    again = lambda x: lax.psum(lax.psum(x.sum(), "d", axis_index_groups=pairs), "d", axis_index_groups=pairs)  # noqa: E731
    assert len(lowered(again, P("d"), mesh=mesh)) == 2  # the sums of pairs differ along d
    assert lowered(lambda x: lax.psum(x.sum(), "d", axis_index_groups=pairs), P(), mesh=mesh) == []


OPS = {
    "psum": lambda x, axes: lax.psum(x, axes),
    "pmax": lambda x, axes: lax.pmax(x, axes),
    "pmin": lambda x, axes: lax.pmin(x, axes),
    "gather": lambda x, axes: lax.all_gather(x, axes).sum(0),
    "index": lambda x, axes: x + lax.axis_index(axes),
    "turn": lambda x, axes: lax.ppermute(x, axes[0], [(i, (i + 1) % 2) for i in range(2)]) * 2,
    "loop": lambda x, axes: lax.fori_loop(0, 2, lambda i, c: lax.psum(c, axes) / 4 + i, x),
    "scatter": lambda x, axes: lax.psum_scatter(jnp.tile(x, 8)[: 2 ** len(axes)], axes, tiled=True),
}


@settings(deadline=None, max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(OPS)), st.permutations("abc"), st.integers(1, 3)),
        min_size=1,
        max_size=5,
    ),
    st.sampled_from([P(), P("a"), P("b"), P(("c", "a")), P(None, "b")]),
)
def test_any(steps, spec):
    mesh = spmd.create_mesh([("a", 2), ("b", 2), ("c", 2)])

    def body(x):
        x = x.sum()[None]
        for name, axes, n in steps:
            x = OPS[name](x, tuple(sorted(axes[:n])))
        return x

    lowered(body, spec, mesh=mesh)
