"""What users of values want bounds what is sent and held, as partitioners propagate it back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd
from spmd_compiler.passes import propagate
from spmd_compiler.passes.search.engine import Forwarding
from spmd_compiler.passes.search.wanted_layouts import wanted_bases, wanted_sums
from tests.passes.test_plain_propagation import prepared
from tests.variants import lowered


@pytest.mark.parametrize(
    ("name", "seed", "most"),
    [
        ("power_iteration~7", 111, 15_420),  # a sum in a loop is reduced where it is carried
        ("mlp_megatron_train~2", 111, 1_575_300),  # two weights' updates share no more than a number
        ("mlp_megatron_train~many0", 53, 7_484_166),
        ("fft_conv~six0", 7, 245_760),  # images are gathered before they are transformed
        ("fft_conv~cube0", 7, 262_144),
    ],
)
def test_no_more_than_shardy_or_gspmd(name, seed, most):
    assert lowered(name, seed).comm_bytes() <= most


def test_sums_in_loops():
    mesh = spmd.create_mesh({"a": 4, "b": 2}, abstract=True)
    step = spmd.spmd_jit(
        lambda A, v: jax.lax.fori_loop(0, 10, lambda i, v: jnp.tanh(A @ v), v),
        mesh=mesh,
        in_layouts=(P(None, "a"), P(("a", "b"))),
        out_layouts=P(("a", "b")),
    )
    module = prepared(step.lower(*(jax.ShapeDtypeStruct(s, np.float32) for s in ((64, 64), (64,)))))
    engine, _ = propagate.Propagate().forwarded(module)
    wanted = wanted_sums(engine, module.main.body)
    assert [(v.type.shape, str(x)) for v, x in wanted.items()] == [((64,), "{a.b}")]
    there, _ = propagate.Propagate().forwarded(module, forwarding=Forwarding(wanted))
    assert there.traffic.sent(there) < 0.6 * engine.traffic.sent(engine)


def test_a_gradient_lies_as_it_is_added():
    """The gradient of labels' logits is zeros with one number a row: on every device whole, or in shards for a sum more."""
    low = lowered("focal_vocab")
    assert low.comm_bytes() == 14_336 == 8 * 1_792  # Shardy's
    assert low.memory().peak < 2_100_000  # 9,300,000 whole
    assert "take no more memory" in low.explain()


def test_bases_of_updates():
    def put(x, i):
        return jnp.zeros((64, 1024)).at[i].set(1.0) + x, jnp.zeros((32, 1024)).at[0].set(1.0)

    mesh = spmd.create_mesh({"a": 8}, abstract=True)
    step = spmd.spmd_jit(put, mesh=mesh, in_layouts=(P(None, "a"), P()))
    module = prepared(step.lower(jax.ShapeDtypeStruct((64, 1024), np.float32), 3))
    engine, _ = propagate.Propagate().forwarded(module)
    wanted = wanted_bases(engine, module.main.body)
    assert [str(x) for x in wanted.values()] == ["{-,a}"]
    there, _ = propagate.Propagate().forwarded(module, forwarding=Forwarding(wanted))
    updates = [op for op in there.choices if op.name in ("scatter", "dynamic_update_slice")]
    assert [str(there.layouts[op.results[0]]) for op in updates] == ["{-,a}", "{-,-}"]
