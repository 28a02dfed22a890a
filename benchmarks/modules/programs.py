"""Random programs: chains of StableHLO ops with loops, branches and calls, and their text without annotations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

SIZES = (1, 2, 3, 4, 6, 8, 12, 16)
_GROWING = (
    "add",
    "subtract",
    "dot_general",
    "reduce",
)  # a tanh behind keeps numbers, and so rounding errors, small


class Tensor(NamedTuple):
    shape: tuple[int, ...]
    dtype: str = "f32"

    def __str__(self) -> str:
        return f"tensor<{''.join(f'{n}x' for n in self.shape)}{self.dtype}>"


class Node(NamedTuple):
    """One op in generic form: the result's `type`, positions of operands among the values of its body, and the text
    of its attributes and regions. `bodies`: the bodies that `kind` says how to write."""

    kind: str
    operands: tuple[int, ...]
    type: Tensor
    attrs: str = ""
    regions: str = ""
    bodies: tuple[Body, ...] = ()


class Body(NamedTuple):
    """Values are numbered: the arguments, then a result per node."""

    args: tuple[Tensor, ...]
    nodes: tuple[Node, ...]
    returns: tuple[int, ...]

    def type_of(self, value: int) -> Tensor:
        n = len(self.args)
        return self.args[value] if value < n else self.nodes[value - n].type


def draw_program(rng: Random, ops: int) -> Body:
    """A `main` of 1 to 3 arguments and up to `ops` ops; every value that nothing uses is returned, 4 at most."""
    args = tuple(_tensor(rng) for _ in range(rng.randint(1, 3)))
    nodes = _nodes(rng, args, ops, depth=0)
    used = {v for node in nodes for v in node.operands}
    count = len(args) + len(nodes)
    free = [v for v in range(len(args), count) if v not in used] or [count - 1]
    return Body(args, nodes, tuple(free[-4:]))


def _tensor(rng: Random) -> Tensor:
    shape: list[int] = []
    for _ in range(rng.choice((0, 1, 2, 2, 2, 3, 3))):
        shape.append(rng.choice(SIZES))
    return Tensor(tuple(shape), rng.choice(("f32", "f32", "f32", "i32")))


def _nodes(rng: Random, args: tuple[Tensor, ...], ops: int, depth: int) -> tuple[Node, ...]:
    values = list(args)
    nodes: list[Node] = []
    for _ in range(rng.randint(1, ops)):
        # Mostly recent values, so that chains are long.
        at = len(values) - 1 - min(int(rng.expovariate(0.6)), len(values) - 1)
        makers = [*OPS, _while, _case, _call] if depth < 2 else OPS
        node = rng.choice(makers)(_Draw(rng, values, at, depth))
        if node is not None and math.prod(node.type.shape) <= 4096:
            nodes.append(node)
            values.append(node.type)
            if node.kind in _GROWING and node.type.dtype == "f32":
                nodes.append(Node("tanh", (len(values) - 1,), node.type))
                values.append(node.type)
    return tuple(nodes) or (_unary(_Draw(rng, values, len(values) - 1, depth)),)


class _Draw(NamedTuple):
    rng: Random
    values: list[Tensor]
    at: int  # the value to work on
    depth: int

    @property
    def type(self) -> Tensor:
        return self.values[self.at]

    def dim(self) -> int | None:
        """A dim that is not of size 1, if there is one."""
        dims = [d for d, n in enumerate(self.type.shape) if n > 1]
        return self.rng.choice(dims) if dims else None

    def like(self) -> int:
        """A value of the same type, perhaps the same."""
        return self.rng.choice([i for i, t in enumerate(self.values) if t == self.type])


def _array(name: str, numbers: Sequence[int]) -> str:
    body = f": {', '.join(map(str, numbers))}" if numbers else ""
    return f"{name} = array<i64{body}>"


def _unary(d: _Draw) -> Node:
    names = (
        ("negate", "abs", "sign")
        if d.type.dtype == "i32"
        else ("negate", "tanh", "cosine", "abs", "logistic")
    )
    return Node(d.rng.choice(names), (d.at,), d.type)


def _binary(d: _Draw) -> Node:
    return Node(d.rng.choice(("add", "subtract", "maximum", "minimum")), (d.at, d.like()), d.type)


def _convert(d: _Draw) -> Node:
    # From float to int a rounding difference would show.
    if d.type.dtype == "f32":
        return _unary(d)
    return Node("convert", (d.at,), Tensor(d.type.shape, "f32"))


def _transpose(d: _Draw) -> Node:
    order = list(range(len(d.type.shape)))
    d.rng.shuffle(order)
    shape = tuple(d.type.shape[i] for i in order)
    return Node("transpose", (d.at,), Tensor(shape, d.type.dtype), _array("permutation", order))


def _reshape(d: _Draw) -> Node:
    shape = list(d.type.shape)
    if len(shape) > 1 and d.rng.random() < 0.5:
        i = d.rng.randrange(len(shape) - 1)
        shape[i : i + 2] = [shape[i] * shape[i + 1]]
    elif (dim := d.dim()) is not None and len(shape) < 4:
        n = shape[dim]
        major = d.rng.choice([k for k in range(1, n + 1) if n % k == 0])
        shape[dim : dim + 1] = [major, n // major]
    return Node("reshape", (d.at,), Tensor(tuple(shape), d.type.dtype))


def _broadcast(d: _Draw) -> Node | None:
    shape = list(d.type.shape)
    if len(shape) > 3:
        return None
    at = d.rng.randint(0, len(shape))
    dims = [i if i < at else i + 1 for i in range(len(shape))]
    shape.insert(at, d.rng.choice(SIZES[:6]))
    return Node(
        "broadcast_in_dim", (d.at,), Tensor(tuple(shape), d.type.dtype), _array("broadcast_dimensions", dims)
    )


def _dot(d: _Draw) -> Node | None:
    """A product with any value that has a dim of the same size."""
    dim = d.dim()
    if dim is None or d.type.dtype != "f32":
        return None
    n = d.type.shape[dim]
    others = [
        (i, j) for i, t in enumerate(d.values) if t.dtype == "f32" for j, m in enumerate(t.shape) if m == n
    ]
    other, j = d.rng.choice(others)
    left = [m for i, m in enumerate(d.type.shape) if i != dim]
    right = [m for i, m in enumerate(d.values[other].shape) if i != j]
    if len(left) + len(right) > 4:
        return None
    numbers = f"#stablehlo.dot<lhs_contracting_dimensions = [{dim}], rhs_contracting_dimensions = [{j}]>"
    return Node("dot_general", (d.at, other), Tensor((*left, *right)), f"dot_dimension_numbers = {numbers}")


def _reduce(d: _Draw) -> Node | None:
    dim = d.dim()
    if dim is None:
        return None
    name, start = d.rng.choice((("add", "0"), ("maximum", "-9"), ("minimum", "9")))
    scalar = Tensor((), d.type.dtype)
    zero = f"{start}.0" if d.type.dtype == "f32" else start
    shape = tuple(n for i, n in enumerate(d.type.shape) if i != dim)
    # The initial value is a constant of its own, written just before; see `text`.
    region = f"({{ ^bb0(%p: {scalar}, %q: {scalar}): %r = stablehlo.{name} %p, %q : {scalar} stablehlo.return %r : {scalar} }})"
    return Node(
        "reduce", (d.at,), Tensor(shape, d.type.dtype), _array("dimensions", [dim]), f"{zero}|{region}"
    )


def _slice(d: _Draw) -> Node | None:
    dim = d.dim()
    if dim is None:
        return None
    starts, limits, strides = [0] * len(d.type.shape), list(d.type.shape), [1] * len(d.type.shape)
    starts[dim] = d.rng.randrange(d.type.shape[dim])
    limits[dim] = d.rng.randint(starts[dim] + 1, d.type.shape[dim])
    strides[dim] = d.rng.randint(1, 2)
    shape = tuple(-(-(b - a) // s) for a, b, s in zip(starts, limits, strides, strict=True))
    attrs = ", ".join(
        _array(k, v) for k, v in (("start_indices", starts), ("limit_indices", limits), ("strides", strides))
    )
    return Node("slice", (d.at,), Tensor(shape, d.type.dtype), attrs)


def _pad(d: _Draw) -> Node | None:
    dim = d.dim()
    if dim is None:
        return None
    low, high = [0] * len(d.type.shape), [0] * len(d.type.shape)
    low[dim], high[dim] = d.rng.randint(-1, 3), d.rng.randint(0, 3)
    shape = tuple(n + a + b for n, a, b in zip(d.type.shape, low, high, strict=True))
    inner = _array("interior_padding", [0] * len(shape))
    attrs = f"{_array('edge_padding_low', low)}, {_array('edge_padding_high', high)}, {inner}"
    return Node(
        "pad", (d.at,), Tensor(shape, d.type.dtype), attrs, ("1.0" if d.type.dtype == "f32" else "1") + "|"
    )


def _concatenate(d: _Draw) -> Node | None:
    dim = d.dim()
    if dim is None:
        return None
    other = d.like()
    shape = tuple(n + n if i == dim else n for i, n in enumerate(d.type.shape))
    return Node("concatenate", (d.at, other), Tensor(shape, d.type.dtype), f"dimension = {dim} : i64")


def _reverse(d: _Draw) -> Node | None:
    dim = d.dim()
    return None if dim is None else Node("reverse", (d.at,), d.type, _array("dimensions", [dim]))


def _sort(d: _Draw) -> Node | None:
    dim = d.dim()
    if dim is None:
        return None
    scalar = Tensor((), d.type.dtype)
    region = (
        f"({{ ^bb0(%p: {scalar}, %q: {scalar}): %r = stablehlo.compare LT, %p, %q : ({scalar}, {scalar}) -> "
        f"tensor<i1> stablehlo.return %r : tensor<i1> }})"
    )
    return Node("sort", (d.at,), d.type, f"dimension = {dim} : i64, is_stable = true", f"|{region}")


def _barrier(d: _Draw) -> Node:
    return Node("optimization_barrier", (d.at,), d.type)


def _inner(d: _Draw, *args: Tensor) -> Body:
    """A body that gives a value of the type of its first argument."""
    nodes = _nodes(d.rng, args, 4, d.depth + 1)
    body = Body(args, nodes, ())
    same = [v for v in range(len(args) + len(nodes)) if body.type_of(v) == args[0]]
    return body._replace(returns=(same[-1],))


def _while(d: _Draw) -> Node:
    return Node("while", (d.at,), d.type, bodies=(_inner(d, d.type),))


def _case(d: _Draw) -> Node:
    return Node("case", (d.at,), d.type, bodies=(_inner(d, d.type), _inner(d, d.type)))


def _call(d: _Draw) -> Node:
    other = d.rng.randrange(len(d.values))
    return Node("call", (d.at, other), d.type, bodies=(_inner(d, d.type, d.values[other]),))


Maker = Callable[[_Draw], Node | None]
OPS: list[Maker] = [
    _unary,
    _unary,
    _binary,
    _binary,
    _convert,
    _transpose,
    _reshape,
    _reshape,
    _broadcast,
    _dot,
    _dot,
    _reduce,
    _slice,
    _pad,
    _concatenate,
    _reverse,
    _sort,
    _barrier,
]
