"""Kinds of ops that hold other ops: loops, branches, calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ...ir.graph import Block, Function, Op, Value
from ...ir.types import TensorType, Type
from .scope import NUMBERS, Scope, comparison, indices_of, reducer

Fill = Callable[[Scope, int], None]
_FLAG, _COUNT = TensorType((), "i1"), TensorType((), "i32")
_LEVELS = tuple(map(np.asarray, (-9, 0, 1, 2)))


def _inner(s: Scope, args: list[Value], outer: Sequence[Value]) -> Scope:
    inner = Scope(s.rng, Block(args, [], []), s.depth + 1, s.exact, s.functions)
    inner.values = [*outer, *args]
    inner.bound = {**s.bound, **dict.fromkeys(args, 4.0)}
    return inner


def _returned(inner: Scope, like: Value) -> Value:
    """A tamed value of a type, made in the block where there is one."""
    made = [v for v in inner.values if v.type is like.type]
    v = inner.rng.choice(made) if made else like
    return inner.tame(v) if v.type.dtype in NUMBERS else v


def _carried(s: Scope) -> list[Value]:
    found = [s.pick(lambda v: v.type.dtype in NUMBERS) for _ in range(s.rng.randint(1, 2))]
    return [s.tame(v) for v in found if v is not None]


def _counting(s: Scope, types: Sequence[Type], trips: int) -> tuple[Scope, Value]:
    """The block that tells whether a loop goes on, and its flag, by what it carries first."""
    condition = _inner(s, [Value(t) for t in types], [])
    test, going = comparison("LT", condition.block.args[0], condition.scalar("i32", trips))
    condition.block.ops.append(test)
    return condition, going


def loop(s: Scope, fill: Fill) -> None:
    """A loop of a few rounds, that may end earlier when a sum over what it carries says so."""
    carried = _carried(s) if not s.depth else []
    if not carried:
        return
    trips, start = s.rng.randint(1, 4), s.scalar("i32", 0)
    types = [_COUNT, *(v.type for v in carried)]
    condition, going = _counting(s, types, trips)
    if s.rng.random() < 0.4:
        more = _any(condition, condition.block.args[1])
        going = condition.op("and", [going, more], _FLAG, 1)
    condition.block.returns = [going]
    inner = _inner(s, [Value(t) for t in types], s.values[-6:])
    args = inner.block.args
    fill(inner, s.rng.randint(2, 8))
    following = Value(_COUNT)
    inner.block.ops.append(Op("add", [args[0], inner.scalar("i32", 1)], [following], {}))
    inner.block.returns = [following, *(_returned(inner, v) for v in args[1:])]
    bounds = [float(trips), *(4.0 for _ in carried)]
    s.multi("while", [start, *carried], types, bounds, {}, (condition.block, inner.block))


def scan(s: Scope, fill: Fill) -> None:
    """A loop over the slices of a value along a dim, forwards or backwards, which stacks what it makes of them, adds it up, or
    makes a state for the next one."""
    x = None if s.depth else s.pick(lambda v: max(v.type.shape, default=0) > 1)
    if x is None:
        return
    dim = s.rng.choice([d for d, n in enumerate(x.type.shape) if n > 1])
    trips, states = x.type.shape[dim], _carried(s) if s.rng.random() < 0.5 else []
    inner = _inner(s, [Value(t) for t in (_COUNT, x.type, *(v.type for v in states))], s.values[-4:])
    body = inner.block
    count, whole = body.args[:2]
    inner.values.remove(whole)
    inner.bound |= {count: float(trips), whole: s.bound[x]}
    zero, at = inner.scalar("i32", 0), count
    if s.rng.random() < 0.3:
        at = inner.op("subtract", [inner.scalar("i32", trips - 1), count], _COUNT, trips)
    sizes = (*x.type.shape[:dim], 1, *x.type.shape[dim + 1 :])
    starts = [at if d == dim else zero for d in range(len(sizes))]
    row = TensorType(sizes, x.type.dtype)
    piece = inner.op("dynamic_slice", [whole, *starts], row, s.bound[x], {"slice_sizes": sizes})
    inner.op("reshape", [piece], TensorType(sizes[:dim] + sizes[dim + 1 :], x.type.dtype), inner.bound[piece])
    fill(inner, len(body.ops) + s.rng.randint(2, 8))
    following = inner.op("add", [count, inner.scalar("i32", 1)], _COUNT, trips)
    body.returns = [following, whole, *(_returned(inner, v) for v in body.args[2:])]
    first, bounds = [s.scalar("i32", 0), x, *states], [float(trips), s.bound[x], *(4.0 for _ in states)]
    made = [v for v in inner.values if v.type.dtype in NUMBERS]
    for stacks in [True, False] if s.rng.random() < 0.5 else [s.rng.random() < 0.7]:
        v = inner.tame(s.rng.choice(made))
        shape = (trips, *v.type.shape) if stacks else v.type.shape
        type = TensorType(shape, v.type.dtype)
        carry, result = Value(type), Value(type)
        if stacks:
            one = Value(TensorType((1, *v.type.shape), v.type.dtype))
            places = [at, *(zero for _ in v.type.shape)]
            body.ops.append(Op("reshape", [v], [one], {}))
            body.ops.append(Op("dynamic_update_slice", [carry, one, *places], [result], {}))
        else:
            body.ops.append(Op("add", [carry, v], [result], {}))
        first.append(s.constant(np.zeros(()), type))
        bounds.append(3.0 if stacks else 3.0 * trips)
        body.args.append(carry)
        body.returns.append(result)
    types = [v.type for v in first]
    condition, going = _counting(s, types, trips)
    condition.block.returns = [going]
    s.multi("while", first, types, bounds, {}, (condition.block, body))


def _any(s: Scope, x: Value) -> Value:
    """Whether some element is larger than the one of a constant."""
    assert isinstance(x.type, TensorType)
    low = s.constant(s.rng.choice(_LEVELS), x.type)
    test, flags = comparison("GT", x, low)
    s.block.ops.append(test)
    if not x.type.rank:
        return flags
    dims: dict[str, object] = {"dimensions": tuple(range(x.type.rank))}
    return s.op("reduce", [flags, s.scalar("i1", 0)], _FLAG, 1, dims, (reducer("or", "i1"),))


def branch(s: Scope, fill: Fill) -> None:
    """A case whose index is known, data, or out of range, or an if."""
    x = s.array("f32", "i32", "bf16", "f64")
    if s.depth or x is None:
        return
    two = s.rng.random() < 0.3
    index = _any(s, x) if two else indices_of(s, ())
    if not two and s.rng.random() < 0.3:
        index = s.op("convert", [_any(s, x)], _COUNT, 1)
    regions: list[Block] = []
    for _ in range(2 if two else s.rng.randint(1, 3)):
        inner = _inner(s, [], [*s.values[-6:], x])
        fill(inner, s.rng.randint(1, 6))
        inner.block.returns = [_returned(inner, x)]
        regions.append(inner.block)
    s.op("if" if two else "case", [index], x.type, 4.0, {}, tuple(regions))


def call(s: Scope, fill: Fill) -> None:
    """A call of a new function, or a composite that has one as its decomposition."""
    xs = [v for v in (s.pick() for _ in range(s.rng.randint(1, 3))) if v is not None]
    if s.depth or not xs:
        return
    args = [Value(v.type) for v in xs]
    inner = _inner(s, args, [])
    inner.bound.update((a, s.bound[v]) for a, v in zip(args, xs, strict=True))
    fill(inner, s.rng.randint(1, 5))
    ends = [inner.rng.choice(inner.values) for _ in range(s.rng.randint(1, 2))]
    inner.block.returns = ends
    name = f"f{len(s.functions)}"
    s.functions[name] = Function(name, inner.block, False)
    attrs: dict[str, object] = {"callee": name}
    composite = s.rng.random() < 0.5
    if composite:
        attrs = {"name": "fuzz.f", "decomposition": name, "version": 1}
    bounds = [inner.bound[v] for v in ends]
    s.multi("composite" if composite else "call", xs, [v.type for v in ends], bounds, attrs)


def barrier(s: Scope) -> None:
    xs = [v for v in (s.pick() for _ in range(s.rng.randint(1, 3))) if v is not None]
    if xs:
        s.multi("optimization_barrier", xs, [v.type for v in xs], [s.bound[v] for v in xs])
