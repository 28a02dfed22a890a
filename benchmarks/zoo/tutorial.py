"""The schemes of the DTensor tutorial."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from .common import W, rng, sgd_step, xent
from .registry import FREE, Built, case
from .traffic import AR, lb, nb


def tutorial_loss(p, x, y):
    h = jax.nn.relu(x @ p["w1"] + p["b1"])
    mu = h.mean(0)
    var = ((h - mu) ** 2).mean(0)
    h = (h - mu) * lax.rsqrt(var + 1e-5)
    return xent(h @ p["w2"] + p["b2"], y)


def _tut(kind):
    def b(m):
        r = rng()
        B = 64
        ps = {
            "w1": W(r, 1200, 48),
            "b1": np.zeros(48, np.float32),
            "w2": W(r, 48, 2),
            "b2": np.zeros(2, np.float32),
        }
        x, y = W(r, B, 1200, scale=1), r.randint(0, 2, B).astype(np.int32)
        if kind == "data":
            sp = jax.tree.map(lambda a: P(), ps)
            xs = P("batch")
            g = AR(8, nb(ps) + 4) + 4 * AR(8, 48 * 4)
        else:
            nbt = m["batch"]
            sp = {"w1": P(None, "model"), "b1": P("model"), "w2": P("model", None), "b2": P()}
            xs = P("batch")
            g = AR(nbt, lb(ps, sp, m) + 4) + 4 * AR(nbt, 24 * 4) + AR(2, B // nbt * 2 * 4)
            if kind == "spatial":
                sp["w1"] = P("feature", "model")
                xs = P("batch", "feature")
                g = (
                    AR(nbt, lb(ps, sp, m) + 4)
                    + 4 * AR(nbt, 24 * 4)
                    + AR(2, B // nbt * 2 * 4)
                    + AR(2, B // nbt * 24 * 4)
                )
        return Built(
            sgd_step(tutorial_loss),
            (ps, x, y),
            (sp, xs, P("batch")),
            (sp, FREE),
            good=g,
            why="local gradient shards over batch + batch-norm moments (2 fwd, 2 bwd)"
            + ("" if kind == "data" else " + logits over model")
            + (" + hidden over feature" if kind == "spatial" else ""),
        )

    return b


case("dtensor_data_train", [("batch", 8)], "tutorial", True)(_tut("data"))
case("dtensor_model_train", [("batch", 4), ("model", 2)], "tutorial", True)(_tut("model"))
case("dtensor_spatial_train", [("batch", 2), ("feature", 2), ("model", 2)], "tutorial", True)(_tut("spatial"))
