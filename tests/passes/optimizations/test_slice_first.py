"""Slices of a gathered value are gathered one by one where the whole is much."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

LAYERS = 4


def layers(w, x):
    w = spmd.relayout(w, P())
    for i in range(LAYERS):
        x = jnp.tanh(x @ w[i])
    return x


def lowered(width, cuts=layers, devices=8, **options):
    mesh = spmd.create_mesh([("a", devices)], abstract=devices > jax.device_count() or width > 1000)
    step = spmd.spmd_jit(
        cuts,
        mesh=mesh,
        in_layouts=(P(None, "a"), P("a")),
        out_layouts=P("a"),
        options=spmd.Options(**options),
    )
    shapes = ((LAYERS, width, width), (64, width))
    return step.lower(*[jax.ShapeDtypeStruct(s, jnp.float32) for s in shapes])


def gathered(low):
    ops = low.stages["optimize"].main.body.ops
    return [op.results[0].type.shape for op in ops if op.name == "all_gather"]


def test_little_is_gathered_at_once():
    assert gathered(lowered(256)) == [(LAYERS, 256, 256)]


def test_much_is_gathered_where_it_is_used():
    low = lowered(2048)
    assert gathered(low) == [(1, 2048, 2048)] * LAYERS
    names = [op.name for op in low.stages["optimize"].main.body.ops]
    places = [i for i, name in enumerate(names) if name in ("all_gather", "tanh")]
    assert [names[i] for i in places] == ["all_gather", "tanh"] * LAYERS
    assert low.comm_bytes() == LAYERS * 2048 * 2048 * 4 * 7 / 8


@pytest.mark.parametrize(
    "cuts",
    [
        lambda w, x: x @ spmd.relayout(w, P()).sum(0),
        lambda w, x: x @ (spmd.relayout(w, P())[1, ::2] @ jnp.ones((2048, 2048))).sum(0)[:, None],
        lambda w, x: layers(w, x) + spmd.relayout(w, P())[:3].sum((0, 1)),
    ],
    ids=["all", "cut where it is gathered", "some twice"],
)
def test_what_is_no_part_stays_whole(cuts):
    assert (LAYERS, 2048, 2048) in gathered(lowered(2048, cuts))


@pytest.mark.skipif(jax.device_count() < 8, reason="needs 8 virtual devices")
def test_equal_to_one_device():
    rng = np.random.default_rng(0)
    args = [rng.normal(0, 0.1, s).astype(np.float32) for s in ((LAYERS, 64, 64), (64, 64))]
    low = lowered(64, memory_limit=150_000)
    assert gathered(low) == [(1, 64, 64)] * LAYERS
    wanted = args[1]
    for w in args[0]:
        wanted = np.tanh(wanted @ w)
    np.testing.assert_allclose(low.compile()(*args), wanted, rtol=1e-4, atol=1e-6)
