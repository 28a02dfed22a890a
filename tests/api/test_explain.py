"""`explain()` names what is not partitioned; `memory()` counts donated arguments once."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

import spmd_compiler as spmd

MESH = spmd.create_mesh({"a": 4, "b": 2}, abstract=True)
X = jax.ShapeDtypeStruct((256, 256), np.float32)


def lower(fun, *args, **options):
    return spmd.spmd_jit(fun, mesh=MESH, **options).lower(*args)


def test_gathered_operand_is_listed():
    tall, small = jax.ShapeDtypeStruct((4096, 64), np.float32), jax.ShapeDtypeStruct((64, 64), np.float32)
    text = lower(lambda x, w: x @ w, tall, small, in_layouts=(P("a"), P("b")), out_layouts=P("a")).explain()
    assert (
        "gathered: dot_general reads the whole of operand 1, f32[64,64], on every device: {b,-} -> {-,-}"
        in text
    )
    assert "test_explain.py:" in text and "fallback" not in text


def test_nothing_to_tell():
    assert lower(jnp.sin, X, in_layouts=P("a")).explain() == "no collectives, no fallbacks"


def test_line_of_a_call_into_a_library():
    (sent,) = lower(lambda x: jax.nn.logsumexp(x), X, in_layouts=P("a"), out_layouts=P()).collectives()[:1]
    assert sent.source.rsplit("/", 1)[-1].startswith("test_explain.py:")


def test_donation_lowers_the_peak():
    def f(x):
        return jnp.sort(jnp.sin(x), axis=1) + 1

    kept = lower(f, X, in_layouts=P("a"), out_layouts=P("a")).memory()
    donated = lower(f, X, in_layouts=P("a"), out_layouts=P("a"), donate_argnums=0).memory()
    assert kept.arguments == donated.arguments == X.size
    assert donated.peak < kept.peak
