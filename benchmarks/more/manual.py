"""Programs that are partly written per device: `jax.shard_map` over all axes of the mesh or some, collectives of their own in it.

On one device, where the results to compare with come from, the same bodies run under `vmap` with named axes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import PartitionSpec as P

from benchmarks.zoo.common import W, sgd_step
from benchmarks.zoo.registry import hint_mesh

from . import registry
from .registry import ABC, MANUAL, Axes

program = partial(registry.program, group=MANUAL)

D8, E8 = [("data", 8)], [("expert", 8)]
DM = [("data", 2), ("model", 4)]
DS = [("data", 2), ("seq", 4)]
DE = [("data", 2), ("expert", 4)]
PD = [("pipe", 4), ("data", 2)]


def on_each(body: Callable, axes: Axes, ins: Any, outs: Any, manual: Sequence[str] = ()) -> Callable:
    """`body` on each device of a mesh of `axes`, or on each position on the `manual` ones."""
    sizes = {a: n for a, n in axes if not manual or a in manual}

    def run(*args: Any) -> Any:
        mesh = hint_mesh()
        if mesh is None:
            return _in_turn(body, sizes, ins, outs, args)
        named = {"axis_names": set(sizes), "check_vma": False}
        return jax.shard_map(body, mesh=mesh, in_specs=ins, out_specs=outs, **named)(*args)

    return run


def _in_turn(body: Callable, sizes: dict[str, int], ins: Any, outs: Any, args: tuple) -> Any:
    blocks = jax.tree.map(
        lambda x, s: _cut(x, s, sizes), args, jax.tree.broadcast(ins, args, is_leaf=_is_spec)
    )
    for axis in reversed(sizes):
        body = jax.vmap(body, axis_name=axis)
    out = body(*blocks)
    return jax.tree.map(lambda x, s: _join(x, s, sizes), out, jax.tree.broadcast(outs, out, is_leaf=_is_spec))


def _is_spec(x: Any) -> bool:
    return isinstance(x, P)


def _places(spec: P, sizes: dict[str, int]) -> list[tuple[str, ...]]:
    """The axes on each dim."""
    entries = [e if isinstance(e, tuple) else (e,) if e else () for e in spec]
    return [tuple(a for a in e if a in sizes) for e in entries]


def _cut(x: Any, spec: P, sizes: dict[str, int]) -> Any:
    """A dim in front for each axis, of the blocks that its positions hold."""
    shape, at = [], {}
    for d, n in enumerate(x.shape):
        for a in _places(spec, sizes)[d] if d < len(spec) else ():
            at[a] = len(shape)
            shape.append(sizes[a])
            n //= sizes[a]
        shape.append(n)
    x = x.reshape(shape)
    free = [a for a in sizes if a not in at]
    x = jnp.broadcast_to(x, (*(sizes[a] for a in free), *x.shape))
    front = [free.index(a) if a in free else len(free) + at[a] for a in sizes]
    return x.transpose(*front, *(i for i in range(x.ndim) if i not in front))


def _join(x: Any, spec: P, sizes: dict[str, int]) -> Any:
    """The inverse; of what is equal on all positions of an axis, the first."""
    used = [a for e in _places(spec, sizes) for a in e]
    x = x[tuple(slice(None) if a in used else 0 for a in sizes)]
    axes = [a for a in sizes if a in used]
    order, shape = [], []
    for d, n in enumerate(x.shape[len(axes) :]):
        mine = _places(spec, sizes)[d] if d < len(spec) else ()
        order += [*map(axes.index, mine), len(axes) + d]
        shape.append(n * int(np.prod([sizes[a] for a in mine])))
    return x.transpose(*order).reshape(shape)


def ring(axis: str, n: int) -> Callable:
    return lambda x: lax.ppermute(x, axis, [(i, (i + 1) % n) for i in range(n)])


# ---- data parallelism by hand
def two_layers(p, x):
    return jnp.tanh(x @ p[0]) @ p[1]


def squares(p, x, y):
    return ((two_layers(p, x) - y) ** 2).mean()


def dp_step(p, x, y):
    g = lax.pmean(jax.grad(squares)(p, x, y), "data")
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g)


def rounded_step(p, x, y):
    g = jax.tree.map(lambda a: a.astype(jnp.bfloat16), jax.grad(squares)(p, x, y))
    g = jax.tree.map(lambda a: a.astype(jnp.float32) / 8, lax.psum(g, "data"))
    return jax.tree.map(lambda a, b: a - 0.1 * b, p, g)


def local_steps(p, x, y):
    def step(p, batch):
        return jax.tree.map(lambda a, b: a - 0.1 * b, p, jax.grad(squares)(p, *batch)), None

    p, _ = lax.scan(step, p, (x.reshape(4, -1, x.shape[-1]), y.reshape(4, -1, y.shape[-1])))
    return lax.pmean(p, "data")


def batch(r):
    return [W(r, 64, 256), W(r, 256, 32)], W(r, 128, 64, scale=1), W(r, 128, 32, scale=1)


for _name, _step, _tol in (
    ("manual_dp", dp_step, 2e-4),
    ("manual_dp_rounded", rounded_step, 2e-2),
    ("manual_local_sgd", local_steps, 2e-4),
):
    program(
        _name,
        D8,
        on_each(_step, D8, (P(), P("data"), P("data")), P()),
        batch,
        (P(), P("data"), P("data")),
        P(),
        _tol,
    )

_TP = ([P(None, "model"), P("model")], P("data"), P("data"))
program(
    "manual_dp_auto_tp",
    DM,
    on_each(dp_step, DM, (P(), P("data"), P("data")), P(), ["data"]),
    batch,
    _TP,
    [P(None, "model"), P("model")],
)


def zero3(p, x, y):
    """Layers gathered one by one; their gradients scattered by what differentiates that."""

    def loss(p):
        def layer(h, w):
            return jnp.tanh(h @ lax.all_gather(w, "data", tiled=True)), None

        h, _ = lax.scan(layer, x, p)
        return ((h - y) ** 2).mean()

    return jax.tree.map(lambda a, b: a - 0.1 * b / 8, p, jax.grad(loss)(p))


program(
    "manual_zero3",
    D8,
    on_each(zero3, D8, (P(None, "data"), P("data"), P("data")), P(None, "data")),
    lambda r: (W(r, 4, 128, 128, scale=0.1), W(r, 64, 128, scale=1), W(r, 64, 128, scale=1)),
    (P(None, "data"), P("data"), P("data")),
    P(None, "data"),
)


# ---- layers cut by hand
def megatron(x, v, w):
    return x + lax.psum(jax.nn.gelu(x @ v) @ w, "model")


_HAND = (P("data"), P(None, "model"), P("model"))
program(
    "manual_tp",
    DM,
    on_each(megatron, DM, _HAND, P("data")),
    lambda r: (W(r, 64, 128, scale=1), W(r, 128, 512), W(r, 512, 128)),
    _HAND,
    P("data"),
)
_by_hand = on_each(megatron, DM, (P(), P(None, "model"), P("model")), P(), ["model"])
program(
    "manual_tp_train",
    DM,
    sgd_step(lambda p, x, y: ((_by_hand(_by_hand(x, *p[:2]), *p[2:]) - y) ** 2).mean()),
    lambda r: (
        [W(r, 128, 512), W(r, 512, 128), W(r, 128, 512), W(r, 512, 128)],
        W(r, 64, 128, scale=1),
        W(r, 64, 128, scale=1),
    ),
    ([P(None, "model"), P("model"), P(None, "model"), P("model")], P("data"), P("data")),
    ([P(None, "model"), P("model"), P(None, "model"), P("model")], P()),
)


def vocab_loss(h, table, labels):
    """Cross-entropy over a vocabulary in blocks."""
    logits = h @ table.T
    top = lax.stop_gradient(lax.pmax(lax.stop_gradient(logits).max(-1), "model"))
    total = lax.psum(jnp.exp(logits - top[:, None]).sum(-1), "model")
    at = labels - lax.axis_index("model") * table.shape[0]
    mine = (at >= 0) & (at < table.shape[0])
    found = jnp.take_along_axis(logits, jnp.clip(at, 0, table.shape[0] - 1)[:, None], 1)[:, 0]
    return jnp.log(total) + top - lax.psum(jnp.where(mine, found, 0), "model")


_loss = on_each(vocab_loss, DM, (P("data"), P("model"), P("data")), P("data"))
program(
    "manual_vocab_loss",
    DM,
    jax.value_and_grad(lambda h, table, labels: _loss(h, table, labels).mean(), (0, 1)),
    lambda r: (W(r, 64, 64, scale=1), W(r, 1024, 64), r.randint(0, 1024, 64).astype(np.int32)),
    (P("data"), P("model"), P("data")),
    (P(), (P("data"), P("model"))),
)


# ---- sequences
def ring_attention(q, k, v):
    n = lax.psum(1, "seq")
    move = ring("seq", 4)

    def block(carry, _):
        k, v, top, total, out = carry
        s = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
        new = jnp.maximum(top, s.max(-1))
        e, old = jnp.exp(s - new[..., None]), jnp.exp(top - new)
        out = out * old[..., None] + jnp.einsum("bhqk,bkhd->bhqd", e, v)
        return (move(k), move(v), new, total * old + e.sum(-1), out), None

    b, t, h, d = q.shape
    start = (k, v, jnp.full((b, h, t), -1e30), jnp.zeros((b, h, t)), jnp.zeros((b, h, t, d)))
    (_, _, _, total, out), _ = lax.scan(block, start, None, length=n)
    return (out / total[..., None]).transpose(0, 2, 1, 3)


def by_heads(q, k, v):
    """Sequences change places with heads (Ulysses)."""
    q, k, v = (lax.all_to_all(x, "seq", 2, 1, tiled=True) for x in (q, k, v))
    return lax.all_to_all(jax.nn.dot_product_attention(q, k, v), "seq", 1, 2, tiled=True)


def attended(attend, axes, manual=()):
    inner = P(None if manual else "data", "seq")
    each = on_each(attend, axes, (inner, inner, inner), inner, manual)

    def layer(x, w, o):
        q, k, v = jnp.split(jnp.einsum("btd,dhe->bthe", x, w), 3, axis=-1)
        return x + jnp.einsum("bthe,hed->btd", each(q, k, v), o)

    return layer


for _name, _attend, _manual in (
    ("manual_ring_attention", ring_attention, ()),
    ("manual_ring_attention_auto_data", ring_attention, ["seq"]),
    ("manual_ulysses", by_heads, ()),
    ("manual_ulysses_auto_data", by_heads, ["seq"]),
):
    _layer = attended(_attend, DS, _manual)
    _specs = (P("data", "seq"), P(), P())
    program(
        _name,
        DS,
        _layer,
        lambda r: (W(r, 4, 64, 64, scale=1), W(r, 64, 4, 48), W(r, 4, 16, 64)),
        _specs,
        P("data", "seq"),
    )
    program(
        f"{_name}_train",
        DS,
        jax.grad(lambda w, o, x, layer=_layer: (layer(x, w, o) ** 2).mean(), (0, 1)),
        lambda r: (W(r, 64, 4, 48), W(r, 4, 16, 64), W(r, 4, 64, 64, scale=1)),
        (P(), P(), P("data", "seq")),
        P(),
    )


# ---- experts
def routed(x, gate, v, w):
    """One expert per token, a fixed number of places for each."""
    experts, places = gate.shape[1], x.shape[0] // 4
    choice = jnp.argmax(x @ gate, -1)
    chosen = jax.nn.one_hot(choice, experts, dtype=jnp.int32)
    place = (jnp.cumsum(chosen, 0) * chosen).sum(-1) - 1
    sent = jnp.zeros((experts, places, x.shape[1])).at[choice, place].add(x, mode="drop")
    mine = lax.all_to_all(sent, "expert", 0, 1, tiled=True)
    made = jnp.einsum("ecf,efd->ecd", jax.nn.relu(jnp.einsum("ecd,edf->ecf", mine, v)), w)
    back = lax.all_to_all(made, "expert", 1, 0, tiled=True)
    return x + jnp.where((place < places)[:, None], back[choice, jnp.clip(place, 0, places - 1)], 0)


for _name, _mesh, _rows in (
    ("manual_moe", E8, "expert"),
    ("manual_moe_2d", DE, ("data", "expert")),
):
    _specs = (P(_rows), P(), P("expert"), P("expert"))
    _moe = on_each(routed, _mesh, _specs, P(_rows))
    program(
        _name,
        _mesh,
        _moe,
        lambda r: (W(r, 256, 64, scale=1), W(r, 64, 8), W(r, 8, 64, 128), W(r, 8, 128, 64)),
        _specs,
        P(_rows),
    )
    program(
        f"{_name}_train",
        _mesh,
        jax.grad(lambda p, x, moe=_moe: (moe(x, *p) ** 2).mean()),
        lambda r: ((W(r, 64, 8), W(r, 8, 64, 128), W(r, 8, 128, 64)), W(r, 256, 64, scale=1)),
        ((P(), P("expert"), P("expert")), P(_rows)),
        (P(), P("expert"), P("expert")),
    )


# ---- pipelines
def pipeline(w, x):
    """A stage on each position: microbatches go round, and every stage works on another one."""
    stage, move = lax.axis_index("pipe"), ring("pipe", 4)

    def tick(carry, t):
        state, out = carry
        state = jnp.where(stage == 0, x[jnp.clip(t, 0, x.shape[0] - 1)], state)
        state = jnp.tanh(state @ w[0])
        done = jnp.clip(t - 3, 0, x.shape[0] - 1)
        out = out.at[done].set(jnp.where((stage == 3) & (t >= 3), state, out[done]))
        return (move(state), out), None

    ticks = jnp.arange(x.shape[0] + 3)
    (_, out), _ = lax.scan(tick, (jnp.zeros_like(x[0]), jnp.zeros_like(x)), ticks)
    return lax.psum(jnp.where(stage == 3, out, 0), "pipe")


for _name, _manual, _inner in (
    ("manual_pipeline", (), "data"),
    ("manual_pipeline_auto_data", ["pipe"], None),
):
    _pipe = on_each(pipeline, PD, (P("pipe"), P(None, _inner)), P(None, _inner), _manual)
    program(
        _name,
        PD,
        _pipe,
        lambda r: (W(r, 4, 64, 64, scale=0.1), W(r, 8, 16, 64, scale=1)),
        (P("pipe"), P(None, "data")),
        P(None, "data"),
    )
    program(
        f"{_name}_train",
        PD,
        sgd_step(lambda w, x, y, pipe=_pipe: ((pipe(w, x) - y) ** 2).mean()),
        lambda r: (W(r, 4, 64, 64, scale=0.1), W(r, 8, 16, 64, scale=1), W(r, 8, 16, 64, scale=1)),
        (P("pipe"), P(None, "data"), P(None, "data")),
        (P("pipe"), P()),
    )


# ---- other kernels
def halo(x):
    """Two steps of a stencil; rows of the neighbours are fetched once."""
    up = ring("data", 8)(x[-2:])
    down = lax.ppermute(x[:2], "data", [((i + 1) % 8, i) for i in range(8)])
    y = jnp.concatenate([up, x, down])
    for _ in range(2):
        y = (y[2:] + y[:-2] + 2 * y[1:-1]) / 4
    return y


program(
    "manual_halo",
    D8,
    on_each(halo, D8, P("data"), P("data")),
    lambda r: (W(r, 256, 256, scale=1),),
    (P("data"),),
    P("data"),
)


def best(x):
    """The eight largest of all rows, by candidates."""
    values, at = lax.top_k(x, 8)
    at = at + lax.axis_index("model") * x.shape[1]
    values = lax.all_gather(values, "model", axis=1, tiled=True)
    at = lax.all_gather(at, "model", axis=1, tiled=True)
    values, which = lax.top_k(values, 8)
    return values, jnp.take_along_axis(at, which, 1)


program(
    "manual_topk",
    DM,
    on_each(best, DM, P("data", "model"), P("data")),
    lambda r: (W(r, 32, 1024, scale=1),),
    (P("data", "model"),),
    P("data"),
)


def normalized(x, scale):
    mean = lax.pmean(x.mean(0), "data")
    var = lax.pmean(((x - mean) ** 2).mean(0), "data")
    return (x - mean) * lax.rsqrt(var + 1e-5) * scale


_norm = on_each(normalized, D8, (P("data"), P()), P("data"))
program(
    "manual_batch_norm_train",
    D8,
    jax.grad(lambda p, x: (jnp.tanh(_norm(x @ p[0], p[1])) ** 2).mean()),
    lambda r: ((W(r, 64, 256), np.ones(256, np.float32)), W(r, 256, 64, scale=1)),
    (P(), P("data")),
    P(),
)


def sums_by_axes(x):
    """Norms of three kinds, axis by axis."""
    rows = lax.psum(lax.psum((x * x).sum(1), "b"), "c")
    return rows, lax.psum(rows.sum(), "a"), lax.pmax(lax.pmax(lax.pmax(jnp.abs(x).max(), "c"), "b"), "a")


program(
    "manual_norms_by_axes",
    ABC,
    on_each(sums_by_axes, ABC, P("a", ("b", "c")), (P("a"), P(), P())),
    lambda r: (W(r, 512, 512, scale=1),),
    (P("a", ("b", "c")),),
    (P("a"), P(), P()),
)
