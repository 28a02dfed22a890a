"""Bytes that a device sends, under the ring model, and lower bounds for reshards."""

from __future__ import annotations

import itertools
import math

import jax
import numpy as np
from jax.sharding import PartitionSpec as P


def AR(n, B):
    return 2 * (n - 1) / n * B


def AG(n, Bout):
    return (n - 1) / n * Bout


def RS(n, Bin):
    return (n - 1) / n * Bin


def A2A(n, B):
    return (n - 1) / n * B


def isP(s):
    return isinstance(s, P)


def nb(t):
    return sum(np.asarray(a).nbytes for a in jax.tree.leaves(t))


def shard_count(spec, mesh):
    k = 1
    for e in spec:
        for a in e if isinstance(e, tuple) else (e,) if e else ():
            k *= mesh[a]
    return k


def lb(tree, specs, mesh):
    """bytes of the local shards"""
    L = jax.tree.leaves(tree)
    S = jax.tree.leaves(specs, is_leaf=isP)
    assert len(L) == len(S), (len(L), len(S))
    return sum(np.asarray(a).nbytes / shard_count(s, mesh) for a, s in zip(L, S, strict=True))


def _boxes(shape, mesh, spec):
    """device index -> list of (lo,hi) per dim; mesh is a list of (axis,size)"""
    names = [a for a, _ in mesh]
    sizes = [s for _, s in mesh]
    out = {}
    spec = tuple(spec) + (None,) * (len(shape) - len(spec))
    for dev in itertools.product(*[range(s) for s in sizes]):
        co = dict(zip(names, dev, strict=True))
        box = []
        for d, e in zip(shape, spec, strict=True):
            axs = e if isinstance(e, tuple) else (e,) if e else ()
            k, n = 0, 1
            for a in axs:
                s = sizes[names.index(a)]
                k = k * s + co[a]
                n *= s
            c = d // n
            box.append((k * c, (k + 1) * c))
        out[dev] = box
    return out


def reshard_bound(shape, mesh, sin, sout, item=4, perm=None):
    """Bytes of the output tile that the busiest device does not hold: what it has to receive at least."""
    mesh = list(mesh.items()) if isinstance(mesh, dict) else mesh
    src = _boxes(shape, mesh, sin)
    if perm is not None:
        src = {d: [b[p] for p in perm] for d, b in src.items()}
        shape = [shape[p] for p in perm]
    dst = _boxes(shape, mesh, sout)
    worst = 0
    for d in dst:
        need = math.prod(hi - lo for lo, hi in dst[d])
        have = math.prod(
            max(0, min(hi, top) - max(lo, bottom))
            for (lo, hi), (bottom, top) in zip(dst[d], src[d], strict=True)
        )
        worst = max(worst, need - have)
    return worst * item
