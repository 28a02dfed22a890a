"""Vocabularies, convolutions, relayouts, sorting, slicing, and sizes that devices don't divide."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, ids, sgd_step, xent
from benchmarks.zoo.conv import conv
from benchmarks.zoo.registry import A8, AB, FREE

from .registry import ABC, program, shifted

# ---- vocab
program(
    "embed_dim_sharded",
    [("model", 8)],
    lambda t, i: jnp.tanh(t[i]),
    lambda r: (W(r, 4096, 256, scale=1), ids(r, 16, 128, hi=4096)),
    (P(None, "model"), P()),
)
program(
    "embed_grad_vocab",
    [("data", 2), ("model", 4)],
    lambda t, i, g: jax.grad(lambda t: jnp.sum(t[i] * g))(t),
    lambda r: (W(r, 4096, 64, scale=1), ids(r, 16, 64, hi=4096), W(r, 16, 64, 64, scale=1)),
    (P("model"), P("data"), P("data")),
    P("model"),
)
program(
    "onehot_embed",
    [("data", 2), ("model", 4)],
    lambda t, i: jax.nn.one_hot(i, 2048) @ t,
    lambda r: (W(r, 2048, 128, scale=1), ids(r, 16, 64, hi=2048)),
    (P("model"), P("data")),
)
program(
    "tied_embed_train",
    [("data", 2), ("model", 4)],
    sgd_step(lambda p, i, y: xent(jnp.tanh(p["e"][i]) @ p["e"].T, y)),
    lambda r: ({"e": W(r, 2048, 128)}, ids(r, 8, 64, hi=2048), ids(r, 8, 64, hi=2048)),
    ({"e": P("model")}, P("data"), P("data")),
    ({"e": P("model")}, FREE),
)
program(
    "topk_sampling",
    [("data", 2), ("model", 4)],
    lambda lg, k: jax.random.categorical(
        jax.random.wrap_key_data(k), jnp.where(lg >= lax.top_k(lg, 8)[0][:, -1:], lg, -1e9)
    ),
    lambda r: (W(r, 32, 4096, scale=1), np.array([1, 2], np.uint32)),
    (P("data", "model"), P()),
)
program(
    "argmax_vocab",
    [("data", 2), ("model", 4)],
    lambda lg: jnp.argmax(lg, -1),
    lambda r: (W(r, 64, 4096, scale=1),),
    (P("data", "model"),),
)
program(
    "softmax_sharded",
    A8,
    lambda x: jax.nn.softmax(x, -1),
    lambda r: (W(r, 64, 8192, scale=1),),
    (P(None, "a"),),
    P(None, "a"),
)
# ---- conv
program(
    "conv_channel_out",
    [("model", 8)],
    lambda x, w, v: conv(jax.nn.relu(conv(x, w)), v),
    lambda r: (W(r, 8, 16, 16, 16, scale=1), W(r, 3, 3, 16, 64), W(r, 3, 3, 64, 32)),
    (P(), P(None, None, None, "model"), P(None, None, "model")),
    tol=1e-3,
)
program(
    "conv_depthwise_spatial",
    [("data", 2), ("space", 4)],
    lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", feature_group_count=32, dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
    lambda r: (W(r, 4, 32, 32, 32, scale=1), W(r, 5, 5, 1, 32)),
    (P("data", "space"), P()),
    tol=1e-3,
)
program(
    "conv_dilated_spatial",
    [("space", 8)],
    lambda x, w: lax.conv_general_dilated(
        x, w, (1, 1), "SAME", rhs_dilation=(2, 2), dimension_numbers=("NHWC", "HWIO", "NHWC")
    ),
    lambda r: (W(r, 2, 64, 64, 8, scale=1), W(r, 3, 3, 8, 8)),
    (P(None, "space"), P()),
    P(None, "space"),
    tol=1e-3,
)
program(
    "conv_transpose_spatial",
    [("space", 4), ("data", 2)],
    lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")),
    lambda r: (W(r, 2, 32, 32, 8, scale=1), W(r, 3, 3, 8, 8)),
    (P("data", "space"), P()),
    tol=1e-3,
)
program(
    "conv_2d_halo_hw",
    [("h", 4), ("w", 2)],
    lambda x, k: jax.nn.relu(conv(jax.nn.relu(conv(x, k)), k)),
    lambda r: (W(r, 2, 64, 64, 8, scale=1), W(r, 3, 3, 8, 8, scale=0.1)),
    (P(None, "h", "w"), P()),
    P(None, "h", "w"),
    tol=1e-3,
)
program(
    "conv1d_causal_seq",
    [("seq", 8)],
    lambda x, w: lax.conv_general_dilated(x, w, (1,), [(3, 0)], dimension_numbers=("NWC", "WIO", "NWC")),
    lambda r: (W(r, 4, 512, 32, scale=1), W(r, 4, 32, 32)),
    (P(None, "seq"), P()),
    P(None, "seq"),
    tol=1e-3,
)
program(
    "maxpool_overlap_spatial",
    [("space", 8)],
    lambda x: lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 3, 1), (1, 2, 2, 1), "SAME"),
    lambda r: (W(r, 2, 64, 64, 8, scale=1),),
    (P(None, "space"),),
)
program(
    "upsample_nearest",
    [("space", 8)],
    lambda x: jax.image.resize(x, (2, 128, 128, 8), "nearest"),
    lambda r: (W(r, 2, 64, 64, 8, scale=1),),
    (P(None, "space"),),
    P(None, "space"),
)
program(
    "upsample_bilinear",
    [("space", 8)],
    lambda x: jax.image.resize(x, (2, 128, 128, 8), "bilinear"),
    lambda r: (W(r, 2, 64, 64, 8, scale=1),),
    (P(None, "space"),),
    P(None, "space"),
    tol=1e-3,
)
program(
    "group_norm_channels",
    [("data", 2), ("model", 4)],
    lambda x: (
        lambda g: (
            (g - g.mean((1, 2, 4), keepdims=True)) * lax.rsqrt(g.var((1, 2, 4), keepdims=True) + 1e-5)
        ).reshape(x.shape)
    )(x.reshape(8, 16, 16, 8, 8)),
    lambda r: (W(r, 8, 16, 16, 64, scale=1),),
    (P("data", None, None, "model"),),
)
# ---- reshards
shifted("reshard3_rot", ABC, P("a", "b", "c"), P("b", "c", "a"), shape=(128, 128, 128))
shifted("reshard3_abc_to_rows", ABC, P("a", "b", "c"), P(("a", "b", "c")), shape=(128, 128, 128))
shifted("reshard_cols_to_rows_ab", AB, P(None, ("a", "b")), P(("a", "b"), None))
shifted("reshard_row_a_to_row_ab", AB, P("a", None), P(("a", "b"), None))
shifted("reshard_ab_to_rep", AB, P("a", "b"), P())
shifted("reshard_ba_to_col_ab", AB, P("b", "a"), P(None, ("a", "b")))
shifted("transpose_2d", AB, P("a", "b"), P("a", "b"), fn=lambda x: x.T * 2)
shifted(
    "transpose3",
    ABC,
    P("a", "b", "c"),
    P("a", "b", "c"),
    shape=(128, 64, 128),
    fn=lambda x: x.transpose(2, 0, 1) + 1,
)
program(
    "reshape_split_cols",
    AB,
    lambda x: jnp.sin(x.reshape(512, 2, 128)).sum(0),
    lambda r: (W(r, 512, 256, scale=1),),
    (P(None, ("a", "b")),),
)
program(
    "reshape_merge_minor",
    AB,
    lambda x: jnp.tanh(x.reshape(64, -1)),
    lambda r: (W(r, 64, 32, 128, scale=1),),
    (P("a", None, "b"),),
)
program(
    "pixel_shuffle",
    [("h", 4), ("w", 2)],
    lambda x: x.reshape(2, 32, 32, 2, 2, 8).transpose(0, 1, 3, 2, 4, 5).reshape(2, 64, 64, 8) * 2,
    lambda r: (W(r, 2, 32, 32, 32, scale=1),),
    (P(None, "h", "w"),),
)
program(
    "space_to_depth",
    [("h", 8)],
    lambda x: x.reshape(2, 32, 2, 32, 2, 8).transpose(0, 1, 3, 2, 4, 5).reshape(2, 32, 32, 32) * 2,
    lambda r: (W(r, 2, 64, 64, 8, scale=1),),
    (P(None, "h"),),
)
# ---- sort
program(
    "argsort_sharded", A8, lambda x: jnp.argsort(x, -1), lambda r: (W(r, 64, 4096, scale=1),), (P(None, "a"),)
)
program("sort_1d", A8, lambda x: jnp.sort(x), lambda r: (W(r, 65536, scale=1),), (P("a"),), P("a"))
program(
    "median_sharded", A8, lambda x: jnp.median(x, -1), lambda r: (W(r, 64, 4096, scale=1),), (P(None, "a"),)
)
program(
    "cumsum_last",
    A8,
    lambda x: jnp.cumsum(x, 1),
    lambda r: (W(r, 64, 8192, scale=1),),
    (P(None, "a"),),
    P(None, "a"),
)
program(
    "cummax_rev",
    A8,
    lambda x: lax.cummax(x, axis=0, reverse=True),
    lambda r: (W(r, 8192, 64, scale=1),),
    (P("a"),),
    P("a"),
)
program(
    "associative_scan",
    A8,
    lambda a, b: lax.associative_scan(lambda x, y: (x[0] * y[0], y[0] * x[1] + y[1]), (a, b))[1],
    lambda r: (W(r, 1024, 64, scale=1), W(r, 1024, 64, scale=1)),
    (P("a"), P("a")),
    P("a"),
    tol=1e-3,
)
program(
    "searchsorted",
    A8,
    lambda s, q: jnp.searchsorted(s, q),
    lambda r: (np.sort(W(r, 4096, scale=1)), W(r, 4096, scale=1)),
    (P(), P("a")),
)
program(
    "histogram",
    A8,
    lambda x: jnp.zeros(256).at[(x * 255).astype(jnp.int32)].add(1.0),
    lambda r: (r.rand(65536).astype(np.float32),),
    (P("a"),),
)
# ---- slices
program(
    "dus_sharded",
    A8,
    lambda x, u, i: lax.dynamic_update_slice_in_dim(x, u, i, 0),
    lambda r: (W(r, 4096, 256, scale=1), W(r, 64, 256, scale=1), np.int32(777)),
    (P("a"), P(), P()),
    P("a"),
)
program(
    "dus_sharded_update",
    A8,
    lambda x, u, i: lax.dynamic_update_slice_in_dim(x, u, i, 0),
    lambda r: (W(r, 4096, 256, scale=1), W(r, 512, 256, scale=1), np.int32(777)),
    (P("a"), P("a"), P()),
    P("a"),
)
program(
    "take_rows",
    A8,
    lambda x, i: x[i],
    lambda r: (W(r, 4096, 128, scale=1), ids(r, 256, hi=4096)),
    (P("a"), P()),
)
program(
    "take_rows_sharded_idx",
    A8,
    lambda x, i: x[i],
    lambda r: (W(r, 4096, 128, scale=1), ids(r, 256, hi=4096)),
    (P("a"), P("a")),
    P("a"),
)
program(
    "scatter_rows",
    A8,
    lambda x, i, u: x.at[i].set(u),
    lambda r: (W(r, 4096, 128, scale=1), np.arange(0, 512, 2).astype(np.int32), W(r, 256, 128, scale=1)),
    (P("a"), P(), P()),
    P("a"),
)
program("static_slice", A8, lambda x: jnp.sin(x[512:3584]), lambda r: (W(r, 4096, 128, scale=1),), (P("a"),))
program(
    "strided_slice", A8, lambda x: jnp.sin(x[::2]), lambda r: (W(r, 4096, 128, scale=1),), (P("a"),), P("a")
)
program("flip", A8, lambda x: x[::-1] * 2, lambda r: (W(r, 4096, 128, scale=1),), (P("a"),), P("a"))
program(
    "split_halves_swap",
    A8,
    lambda x: jnp.concatenate([x[2048:], x[:2048]], 0) * 2,
    lambda r: (W(r, 4096, 128, scale=1),),
    (P("a"),),
    P("a"),
)
program(
    "pad_sharded",
    A8,
    lambda x: jnp.pad(x, ((8, 8), (0, 0))) * 2,
    lambda r: (W(r, 4096, 128, scale=1),),
    (P("a"),),
)
program(
    "im2col_windows",
    A8,
    lambda x: jnp.stack([x[i : 1021 + i] for i in range(4)], -1).sum(-1),
    lambda r: (W(r, 1024, 128, scale=1),),
    (P("a"),),
)
program(
    "stack_interleave",
    A8,
    lambda x, y: jnp.stack([x, y], 1).reshape(-1, 128) * 2,
    lambda r: (W(r, 2048, 128, scale=1), W(r, 2048, 128, scale=1)),
    (P("a"), P("a")),
    P("a"),
)
program(
    "repeat_rows",
    A8,
    lambda x: jnp.repeat(x, 2, 0) * 2,
    lambda r: (W(r, 2048, 128, scale=1),),
    (P("a"),),
    P("a"),
)
program(
    "tile_rows",
    A8,
    lambda x: jnp.tile(x, (2, 1)) * 2,
    lambda r: (W(r, 2048, 128, scale=1),),
    (P("a"),),
    P("a"),
)
program(
    "triu_mask",
    AB,
    lambda x: jnp.triu(x) @ x,
    lambda r: (W(r, 512, 512, scale=1),),
    (P("a", "b"),),
    P("a", "b"),
)
program("diag", AB, lambda x: jnp.diagonal(x) * 2, lambda r: (W(r, 1024, 1024, scale=1),), (P("a", "b"),))
program(
    "trace_sym",
    AB,
    lambda x: (x + x.T) / 2,
    lambda r: (W(r, 1024, 1024, scale=1),),
    (P("a", "b"),),
    P("a", "b"),
)
# ---- uneven
program(
    "uneven_rows_mlp",
    A8,
    lambda x, w, v: jax.nn.relu(x @ w) @ v,
    lambda r: (W(r, 1003, 256, scale=1), W(r, 256, 512), W(r, 512, 256)),
    (P(), P(None, "a"), P("a")),
)
program(
    "uneven_concat",
    A8,
    lambda x, y: jnp.concatenate([x, y], 0).sum(1),
    lambda r: (W(r, 1000, 128, scale=1), W(r, 520, 128, scale=1)),
    (P("a"), P("a")),
)
program(
    "uneven_vocab_xent",
    [("model", 8)],
    lambda h, w, y: xent((h @ w)[:, :1003], y),
    lambda r: (W(r, 256, 128, scale=1), W(r, 128, 1024), ids(r, 256, hi=1003)),
    (P(), P(None, "model"), P()),
)
