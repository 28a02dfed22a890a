"""Collectives that the user wrote, in a manual region that leaves axes to the compiler.

They run over manual axes, among devices that are equal on the automatic ones; so over an automatic axis they work on each
position by itself, and any dim may be sharded that they don't cut or join.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.graph import Op
from ...ir.layout import PARTIAL_KINDS
from ...ir.optable import reducer_kind
from ...ir.types import TensorType
from ..emit.builder import Builder
from .base import Dims, R, Rule, Strategy, factored


def _rule(op: Op, whole: Iterable[int | None], kinds: Iterable[str]) -> Rule:
    """`whole`: the dims that the op cuts or joins. `kinds`: those of partials that it commutes with."""
    whole = set(whole)
    dims: list[Dims] = []
    sizes: list[int] = []
    for value in op.operands:
        assert isinstance(value.type, TensorType)
        start = len(sizes)
        dims.append(tuple(None if d in whole else start + d for d in range(value.type.rank)))
        sizes += value.type.shape
    used = {f for d in dims for f in d}
    unused = [f for f in range(len(sizes)) if f not in used]
    n = len(dims)
    passed = [_alone(i, n, kind) for i in range(n) for kind in kinds]
    return factored(dims, dims, sizes, Builder.local, whole=unused, extra=passed)


def _alone(i: int, n: int, kind: str) -> Strategy:
    where = tuple(kind if j == i else R for j in range(n))
    return Strategy(where, where)


def all_reduce(op: Op) -> Rule:
    kind = reducer_kind(op.regions[0])
    return _rule(op, (), (kind,) if kind else ())


def reduce_scatter(op: Op) -> Rule:
    kind = reducer_kind(op.regions[0])
    return _rule(op, (op.attrs["scatter_dimension"],), (kind,) if kind else ())


def all_gather(op: Op) -> Rule:
    return _rule(op, (op.attrs["all_gather_dim"],), PARTIAL_KINDS)


def all_to_all(op: Op) -> Rule:
    return _rule(op, (op.attrs["split_dimension"], op.attrs["concat_dimension"]), PARTIAL_KINDS)


def move(op: Op) -> Rule:
    """Who receives nothing has zeros, in each term of a partial: they make zero together whatever its kind."""
    return _rule(op, (), PARTIAL_KINDS)


RULES = {
    "all_reduce": all_reduce,
    "reduce_scatter": reduce_scatter,
    "all_gather": all_gather,
    "all_to_all": all_to_all,
    "collective_permute": move,
    "collective_broadcast": move,
}
