"""Transformer forward passes and language-model train steps."""

from __future__ import annotations

import jax
from jax import lax
from jax.sharding import PartitionSpec as P

from .common import W, adam_specs, adam_state, adam_step, ids, ln, rng, xent
from .registry import FREE, Built, case, hint
from .traffic import A2A, AG, AR, isP, lb, shard_count
from .transformer import (
    B_,
    D_,
    F_,
    H_,
    S_,
    layer,
    layer_params,
    layer_specs,
    lm_loss,
    lm_params,
    lm_specs,
    stack_scan,
    stack_unrolled,
)


@case("block_2d_fwd_unrolled", [("data", 4), ("model", 2)], "transformer")
def _(m):
    r = rng()
    ls = [layer_params(r, D_, H_, F_) for _ in range(2)]
    act = B_ // 4 * S_ * D_ * 4
    return Built(
        stack_unrolled,
        (ls, W(r, B_, S_, D_, scale=1)),
        ([layer_specs(None, "model")] * 2, P("data")),
        good=4 * AR(2, act),
        why="Megatron: 2 all-reduces of [B/4,S,D] over model per layer",
    )


@case("block_2d_fwd_scan", [("data", 4), ("model", 2)], "transformer")
def _(m):
    r = rng()
    ls = layer_params(r, D_, H_, F_, 4)
    act = B_ // 4 * S_ * D_ * 4
    return Built(
        stack_scan,
        (ls, W(r, B_, S_, D_, scale=1)),
        (layer_specs(None, "model", True), P("data")),
        good=8 * AR(2, act),
        why="2 all-reduces of [B/4,S,D] over model per layer, 4 layers",
    )


def lm_good_2d(L, m, ps, sp, d, mm, extra=0):
    act = B_ // m[d] * S_ * D_ * 4
    tok = B_ // m[d] * S_ * 4
    return (4 * L + 2 + extra) * AR(m[mm], act) + 3 * AR(m[mm], tok) + AR(m[d], lb(ps, sp, m)) + AR(m[d], 4)


def lm2d(L, scan, stack, extra=0):
    def b(m):
        r = rng()
        ps = lm_params(r, L, scan)
        sp = lm_specs(L, scan, None, "model")
        return Built(
            adam_step(lm_loss(stack)),
            (adam_state(r, ps), ids(r, B_, S_), ids(r, B_, S_)),
            (adam_specs(sp), P("data"), P("data")),
            (adam_specs(sp), FREE),
            good=lm_good_2d(L, m, ps, sp, "data", "model", extra),
            why="(4L+2) activation all-reduces over model (embed, 2 fwd + 2 bwd per layer, head dx) "
            "+ 3 of [B/4,S] for the "
            "vocab-sharded loss + one all-reduce of local gradients over data"
            + (" + 2L recomputed" if extra else ""),
        )

    return b


case("lm_2d_train_unrolled", [("data", 4), ("model", 2)], "transformer", True)(lm2d(2, False, stack_unrolled))
case("lm_2d_train_scan", [("data", 4), ("model", 2)], "transformer", True)(lm2d(4, True, stack_scan))


def lm_loss_hint(stack, ax):
    """As MaxText & co: activations pinned to the batch axis after the embedding and after every layer."""

    def lay(p, x):
        return hint(layer(p, hint(x, ax)), ax)

    def f(p, ids, labels):
        x = hint(p["emb"][ids] + p["pos"], ax)
        if stack == "scan":
            x = lax.scan(lambda h, q: (lay(q, h), None), x, p["layers"])[0]
        else:
            for q in p["layers"]:
                x = lay(q, x)
        x = hint(ln(x, p["lnfs"], p["lnfb"]), ax)
        return xent(x @ p["head"], labels)

    return f


def lmfsdp(L, scan, stack, units, hinted=False):
    def b(m):
        r = rng()
        ps = lm_params(r, L, scan)
        sp = lm_specs(L, scan, "fsdp", None)
        layer_leaves = jax.tree.leaves(ps["layers"])
        lay = list(zip(layer_leaves, jax.tree.leaves(sp["layers"], is_leaf=isP), strict=True))
        sh = sum(a.nbytes for a, s in lay if shard_count(s, m) > 1)
        rep = sum(a.nbytes for a, s in lay if shard_count(s, m) == 1)
        vec = rep + ps["pos"].nbytes + ps["lnfs"].nbytes * 2
        # embedding [V,D/8]: gather the ids, look up the D shard of each token, all-to-all to the batch shard;
        # the same back
        emb = AG(8, B_ * S_ * 4) + 2 * A2A(8, B_ * S_ * D_ * 4 / 8)
        g = units * AG(8, sh) + 2 * AG(8, ps["head"].nbytes) + emb + AR(8, vec + 4)
        loss = lm_loss_hint("scan" if scan else "", "fsdp") if hinted else lm_loss(stack)
        return Built(
            adam_step(loss),
            (adam_state(r, ps), ids(r, B_, S_), ids(r, B_, S_)),
            (adam_specs(sp), P("fsdp"), P("fsdp")),
            (adam_specs(sp), FREE),
            good=g,
            best=g - (units - 2) * AG(8, sh),
            why=(
                "all-gather weights in forward (and again in the backward scan) + reduce-scatter gradients"
                if units == 3
                else "all-gather weights once + reduce-scatter gradients"
            )
            + ", all-to-all of the looked-up embedding, all-reduce of the replicated vectors",
        )

    return b


case("lm_fsdp_train_unrolled", [("fsdp", 8)], "fsdp", True)(lmfsdp(2, False, stack_unrolled, 2))
case("lm_fsdp_train_scan", [("fsdp", 8)], "fsdp", True)(lmfsdp(4, True, stack_scan, 3))
case("lm_fsdp_train_scan_hint", [("fsdp", 8)], "fsdp", True)(lmfsdp(4, True, stack_scan, 3, True))
