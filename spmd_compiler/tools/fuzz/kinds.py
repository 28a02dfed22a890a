"""What a random program may contain: each kind adds an op (or a few) to a scope, or nothing where it does not fit."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...ir.graph import Block, Op, Value
from ...ir.types import TensorType
from . import kinds_compute as compute
from . import kinds_moves as moves
from .generate import NUMBERS, Scope, indices_of

Kind = Callable[[Scope], object]


def _inner(s: Scope, args: list[Value], outer: Sequence[Value]) -> Scope:
    inner = Scope(s.rng, Block(args, [], []), s.depth + 1)
    inner.values = [*outer, *args]
    inner.bound = {**s.bound, **dict.fromkeys(args, 4.0)}
    return inner


def _fill(inner: Scope, count: int) -> None:
    kinds, weights = zip(*[k for k in KINDS if k[0] not in (loop, branch)], strict=True)
    for _ in range(3 * count):
        if len(inner.block.ops) >= count:
            return
        inner.rng.choices(kinds, weights)[0](inner)


def _returned(inner: Scope, like: Value) -> Value:
    """A tamed value of a type, made in the block where there is one."""
    made = [v for v in inner.values if v.type is like.type]
    v = inner.rng.choice(made) if made else like
    return inner.tame(v) if v.type.dtype in NUMBERS else v


def loop(s: Scope) -> None:
    if s.depth:
        return
    carried = [
        v for v in (s.pick() for _ in range(s.rng.randint(1, 2))) if v is not None and v.type.dtype in NUMBERS
    ]
    if not carried:
        return
    count, trips = TensorType((), "i32"), s.rng.randint(1, 4)
    start = s.scalar("i32", 0)
    tamed = [s.tame(v) for v in carried]
    types = [count, *(v.type for v in tamed)]
    checked = [Value(t) for t in types]
    flag = Value(TensorType((), "i1"))
    condition = Scope(s.rng, Block(checked, [], [flag]), 1)
    limit = condition.scalar("i32", trips)
    attrs = {"comparison_direction": "LT", "compare_type": "SIGNED"}
    condition.block.ops.append(Op("compare", [checked[0], limit], [flag], attrs))
    args = [Value(t) for t in types]
    inner = _inner(s, args, s.values[-6:])
    _fill(inner, s.rng.randint(2, 8))
    one = inner.scalar("i32", 1)
    following = Value(count)
    inner.block.ops.append(Op("add", [args[0], one], [following], {}))
    inner.block.returns = [following, *(_returned(inner, v) for v in args[1:])]
    bounds = [float(trips), *(4.0 for _ in tamed)]
    s.multi("while", [start, *tamed], types, bounds, {}, (condition.block, inner.block))


def branch(s: Scope) -> None:
    x = s.array("f32", "i32")
    if s.depth or x is None:
        return
    index = indices_of(s, ())
    regions: list[Block] = []
    for _ in range(s.rng.randint(1, 3)):
        inner = _inner(s, [], [*s.values[-6:], x])
        _fill(inner, s.rng.randint(1, 6))
        inner.block.returns = [_returned(inner, x)]
        regions.append(inner.block)
    s.op("case", [index], x.type, 4.0, {}, tuple(regions))


KINDS: list[tuple[Kind, float]] = [
    (compute.unary, 2),
    (compute.binary, 8),
    (compute.compare, 1),
    (compute.select, 2),
    (compute.convert, 1),
    (moves.broadcast, 3),
    (moves.transpose, 3),
    (moves.reshape, 4),
    (moves.reverse, 2),
    (moves.slice_, 4),
    (moves.pad, 3),
    (moves.concatenate, 3),
    (moves.iota, 1),
    (compute.dot_general, 5),
    (compute.reduce, 4),
    (compute.argmax, 1),
    (compute.reduce_window, 3),
    (compute.convolution, 3),
    (compute.sort, 2),
    (compute.top_k, 1),
    (moves.dynamic_slice, 2),
    (moves.dynamic_update_slice, 2),
    (moves.gather, 3),
    (moves.scatter, 3),
    (loop, 1),
    (branch, 1),
]
