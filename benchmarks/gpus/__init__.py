"""Programs with what JAX has for GPUs alone: attention by cuDNN, and values that are kept on the host. They are compiled, not run."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import ml_dtypes
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, rng
from benchmarks.zoo.registry import Built, Case, case

GPUS: dict[str, Case] = {}
AXES = [("data", 2), ("model", 4)]
B, T, D, HEADS, WIDTH = 8, 256, 512, 8, 64
attention = partial(jax.nn.dot_product_attention, implementation="cudnn")


def program(name: str, fn: Callable, args: Callable, specs: tuple, outs=None) -> None:
    def build(_) -> Built:
        given = jax.tree.map(lambda x: x.astype(ml_dtypes.bfloat16), args(rng()))
        return Built(fn, given, specs, outs)

    case(name, AXES, "gpus", table=GPUS)(build)


# ------------------------------------------------------------------------------------------ attention alone
def qkv(heads=HEADS):
    def make(r):
        return W(r, B, T, HEADS, WIDTH), W(r, B, T, heads, WIDTH), W(r, B, T, heads, WIDTH)

    return make


def gradients(q, k, v, bias=None):
    def loss(q, k, v):
        return attention(q, k, v, bias=bias, is_causal=bias is None).astype(jnp.float32).sum()

    return jax.grad(loss, argnums=(0, 1, 2))(q, k, v)


HEADED = (P("data", None, "model"),) * 3
program("cudnn_batch_heads", gradients, qkv(), HEADED, HEADED)
program("cudnn_grouped", gradients, qkv(4), HEADED, HEADED)
program(
    "cudnn_bias",
    gradients,
    lambda r: (*qkv()(r), W(r, 1, HEADS, T, T)),
    (*HEADED, P(None, "model")),
    HEADED,
)
program("cudnn_sequence", attention, qkv(), (P("data", "model"),) * 3, P("data", "model"))
program(
    "cudnn_queries_alone", attention, qkv(), (P("data", None, "model"), P(), P()), P("data", None, "model")
)


# ------------------------------------------------------------------------------------------ layers
def layer(x, wq, wk, wv, wo):
    heads = [(x @ w).reshape(*x.shape[:2], -1, WIDTH) for w in (wq, wk, wv)]
    return x + attention(*heads, is_causal=True).reshape(*x.shape[:2], -1) @ wo


def train(x, *weights):
    def loss(*weights):
        return (layer(x, *weights).astype(jnp.float32) ** 2).mean()

    return jax.grad(loss, argnums=(0, 1, 2, 3))(*weights)


def weights(keys=D):
    return lambda r: (W(r, B, T, D), W(r, D, D), W(r, D, keys), W(r, D, keys), W(r, D, D))


TENSOR = (*(P(None, "model"),) * 3, P("model"))
FULLY = (P(("data", "model")),) * 4
program("cudnn_layer_tp", layer, weights(), (P("data"), *TENSOR), P("data"))
program("cudnn_train_tp", train, weights(), (P("data"), *TENSOR), TENSOR)
program("cudnn_train_grouped_tp", train, weights(D // 2), (P("data"), *TENSOR), TENSOR)
program("cudnn_train_fsdp", train, weights(), (P(("data", "model")), *FULLY), FULLY)
program("cudnn_train_sequence_tp", train, weights(), (P("data", "model"), *TENSOR), TENSOR)


# ------------------------------------------------------------------------------------------ the host's memory
OFFLOADED = jax.checkpoint_policies.save_and_offload_only_these_names(
    names_which_can_be_saved=[],
    names_which_can_be_offloaded=["hidden"],
    offload_src="device",
    offload_dst="pinned_host",
)


def deep(ws, x):
    """Layers whose inputs are kept on the host for the backward pass."""

    @partial(jax.checkpoint, policy=OFFLOADED)
    def step(h, w):
        return jnp.tanh(checkpoint_name(h, "hidden") @ w), None

    return lax.scan(step, x, ws)[0].astype(jnp.float32).sum()


def layers(r):
    return W(r, 4, D, D), W(r, B, T, D)


program(
    "offload_scan_tp", jax.grad(deep), layers, (P(None, None, "model"), P("data")), P(None, None, "model")
)
program(
    "offload_scan_fsdp", jax.grad(deep), layers, (P(None, "model"), P(("data", "model"))), P(None, "model")
)


def fetched(w, x):
    """Weights that lie on the host between their uses."""
    kept = jax.device_put(w, jax.memory.Space.Host)
    return jnp.tanh(x @ jax.device_put(kept, jax.memory.Space.Device)[0])


program("offload_weights", fetched, layers, (P(None, None, "model"), P("data")))
