"""A mixture of experts with top-2 routing."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from .common import W, rng, sgd_step
from .registry import FREE, Built, case
from .traffic import A2A, AR


def moe(p, x):
    G, S, _M = x.shape
    E = p["wg"].shape[1]
    C = int(1.25 * 2 * S / E)
    probs = jax.nn.softmax(x @ p["wg"], -1)
    v, i = lax.top_k(probs, 2)
    v = v / v.sum(-1, keepdims=True)
    mk = jax.nn.one_hot(i, E)  # G S 2 E
    cm = mk.transpose(0, 2, 1, 3).reshape(G, 2 * S, E)
    pos = (jnp.cumsum(cm, 1) - cm).reshape(G, 2, S, E).transpose(0, 2, 1, 3)
    pos = (pos * mk).sum(-1)  # G S 2
    keep = pos < C
    oc = jax.nn.one_hot(pos.astype(jnp.int32), C) * keep[..., None]
    disp = jnp.einsum("gske,gskc->gsec", mk, oc)
    comb = jnp.einsum("gsk,gske,gskc->gsec", v, mk, oc)
    h = jnp.einsum("gsec,gsm->egcm", disp, x)
    h = jax.nn.relu(jnp.einsum("egcm,emf->egcf", h, p["w1"]))
    o = jnp.einsum("egcf,efm->egcm", h, p["w2"])
    return jnp.einsum("gsec,egcm->gsm", comb, o)


def moe_program(train):
    def b(m):
        r = rng()
        G, S, M, F, E = 16, 64, 256, 512, 8
        C = int(1.25 * 2 * S / E)
        ps = {"wg": W(r, M, E), "w1": W(r, E, M, F, scale=1 / 16), "w2": W(r, E, F, M, scale=1 / 22)}
        sp = {"wg": P(), "w1": P("expert"), "w2": P("expert")}
        a = A2A(8, E * (G // 8) * C * M * 4)
        x = W(r, G, S, M, scale=1)
        if not train:
            return Built(
                moe,
                (ps, x),
                (sp, P("expert")),
                good=2 * a,
                why="GShard: one all-to-all to the experts, one back",
            )
        return Built(
            sgd_step(lambda p, x, y: jnp.mean((moe(p, x) - y) ** 2)),
            (ps, x, W(r, G, S, M, scale=1)),
            (sp, P("expert"), P("expert")),
            (sp, FREE),
            good=3 * a + AR(8, ps["wg"].nbytes + 4),
            why="2 all-to-alls forward, 1 backward (dx is not needed), router gradient + loss all-reduce",
        )

    return b


case("moe_top2_fwd", [("expert", 8)], "moe")(moe_program(False))
