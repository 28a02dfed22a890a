"""Random programs in IR: ops of the whole table, regions, layouts on arguments, results and values between.

Floats hold small integers, which every order of summation adds up to the same: results are compared bit by bit.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from ...ir.graph import Block, Function, Module, Op, Value
from ...ir.layout import Layout
from ...ir.mesh import Mesh
from ...ir.types import TensorType, Type, numpy_dtype

EXACT = {
    "f32": 2.0**22,
    "f64": 2.0**50,
    "i32": np.inf,
    "i64": np.inf,
    "bf16": 2.0**7,
    "c64": 2.0**22,
}
DTYPES = ("f32",) * 10 + ("i32",) * 4 + ("i1", "f64", "bf16", "c64")
MESHES: tuple[tuple[int, ...], ...] = (
    (2,),
    (3,),
    (4,),
    (5,),
    (7,),
    (8,),
    (1,),
    (2, 2),
    (4, 2),
    (2, 3),
    (3, 1),
    (2, 2, 2),
    (3, 2, 2),
)


FLOATS = ("f32", "f64", "bf16")
NUMBERS = (*FLOATS, "i32")


class Scope:
    """A block being filled. `bound`: the largest magnitude that a value may have."""

    def __init__(self, rng: random.Random, block: Block, depth: int = 0):
        self.rng, self.block, self.depth = rng, block, depth
        self.values: list[Value] = list(block.args)
        self.bound: dict[Value, float] = dict.fromkeys(block.args, 4.0)

    # ------------------------------------------------------------------------------------------ picking
    def pick(self, test: Callable[[Value], bool] = lambda v: True) -> Value | None:
        """One of the values that pass, late ones more often."""
        fits = [v for v in self.values if test(v)]
        if not fits:
            return None
        k = min(int(self.rng.expovariate(0.25)), len(fits) - 1)
        return fits[-1 - k]

    def array(self, *dtypes: str, rank: int = 1) -> Value | None:
        return self.pick(lambda v: v.type.rank >= rank and (not dtypes or v.type.dtype in dtypes))

    def like(self, value: Value) -> Value:
        """A value of the same type, perhaps the same one."""
        found = self.pick(lambda v: v.type is value.type and v is not value)
        return found if found is not None and self.rng.random() < 0.8 else value

    # ------------------------------------------------------------------------------------------ making
    def op(
        self,
        name: str,
        operands: list[Value],
        type: Type,
        bound: float,
        attrs: dict[str, object] | None = None,
        regions: tuple[Block, ...] = (),
    ) -> Value:
        return self.multi(name, operands, [type], [bound], attrs, regions)[0]

    def multi(
        self,
        name: str,
        operands: list[Value],
        types: Sequence[Type],
        bounds: list[float],
        attrs: dict[str, object] | None = None,
        regions: tuple[Block, ...] = (),
    ) -> list[Value]:
        results = [Value(t) for t in types]
        self.block.ops.append(Op(name, list(operands), list(results), attrs or {}, regions))
        for i, (v, bound) in enumerate(zip(results, bounds, strict=True)):
            self.bound[v] = bound
            if bound * 8 > EXACT.get(v.type.dtype, np.inf):
                results[i] = v = self.tame(v)
            self.values.append(v)
        return results

    def tame(self, value: Value) -> Value:
        """Brings a value that grew large back to -3 … 3."""
        type = value.type
        assert isinstance(type, TensorType)
        if type.dtype == "c64":
            zero = self.constant(np.zeros((), np.complex64), type)
            out = Value(type)
            self.block.ops.append(Op("multiply", [value, zero], [out], {}))
        else:
            scalar = TensorType((), type.dtype)
            low, high = (self.constant(np.asarray(n), scalar) for n in (-3, 3))
            out = Value(type)
            self.block.ops.append(Op("clamp", [low, value, high], [out], {}))
        self.bound[out] = 3.0
        return out

    def constant(self, array: np.ndarray, type: TensorType) -> Value:
        from ...ir.graph import constant

        op = constant(type, array.astype(numpy_dtype(type.dtype)))
        self.block.ops.append(op)
        self.bound[op.results[0]] = float(np.abs(array.astype(np.complex128)).max(initial=1))
        return op.results[0]

    def scalar(self, dtype: str, value: float) -> Value:
        return self.constant(np.asarray(value), TensorType((), dtype))

    def data(self, type: TensorType, low: int = -3, high: int = 3) -> Value:
        """A constant of random small integers."""
        numbers = np.random.RandomState(self.rng.randrange(2**31)).randint(low, high + 1, type.shape)
        return self.constant(numbers > 0 if type.dtype == "i1" else numbers, type)


def reducer(name: str, dtype: str) -> Block:
    scalar = TensorType((), dtype)
    a, b, out = Value(scalar), Value(scalar), Value(scalar)
    return Block([a, b], [Op(name, [a, b], [out], {})], [out])


def neutral(s: Scope, name: str, dtype: str) -> Value:
    """What leaves the other operand as it is, or sometimes not."""
    if s.rng.random() < 0.15:
        return s.scalar(dtype, 2)
    if name in ("maximum", "minimum"):
        low = -(2**31) if dtype == "i32" else -np.inf
        high = 2**31 - 1 if dtype == "i32" else np.inf
        return s.scalar(dtype, low if name == "maximum" else high)
    return s.scalar(dtype, 1 if name in ("multiply", "and") else 0)


def some_dims(s: Scope, rank: int, least: int = 1) -> tuple[int, ...]:
    return tuple(sorted(s.rng.sample(range(rank), s.rng.randint(least, rank))))


def size(rng: random.Random) -> int:
    return rng.choice((1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 12, 13, 16))


def tensor(rng: random.Random, dtype: str | None = None) -> TensorType:
    rank = rng.choice((1, 1, 2, 2, 2, 3, 3, 4))
    shape = [size(rng) for _ in range(rank)]
    while np.prod(shape) > 600:
        shape[rng.randrange(rank)] = 2 if rng.random() < 0.9 else 0
    return TensorType(tuple(shape), dtype or rng.choice(DTYPES))


def indices_of(s: Scope, shape: tuple[int, ...]) -> Value:
    known = s.pick(lambda v: v.type.shape == shape and v.type.dtype == "i32")
    return known if known is not None and s.rng.random() < 0.5 else s.data(TensorType(shape, "i32"), -2, 9)


def layout(rng: random.Random, rank: int, mesh: Mesh, density: float = 0.8) -> Layout:
    dims: list[tuple[str, ...]] = [()] * rank
    for axis in rng.sample(list(mesh.shape), len(mesh.shape)):
        if rank and rng.random() < density:
            d = rng.randrange(rank)
            dims[d] += (axis,)
    return Layout(tuple(dims))


def program(seed: int) -> Module:
    """A module with layouts on its arguments and some results, as it enters the passes."""
    from .kinds import KINDS

    rng = random.Random(seed)
    sizes = rng.choice(MESHES)
    mesh = Mesh(list(zip("abc", sizes, strict=False)))
    args = [Value(tensor(rng), None, f"x{i}") for i in range(rng.randint(1, 4))]
    for v in args:
        v.layout = layout(rng, v.type.rank, mesh)
    body = Block(args, [], [])
    scope = Scope(rng, body)
    kinds, weights = zip(*KINDS, strict=True)
    want = rng.randint(3, 40)
    for _ in range(4 * want):
        if len(body.ops) >= want:
            break
        rng.choices(kinds, weights)[0](scope)
        if rng.random() < 0.08 and (v := scope.array()) is not None:
            pinned = Value(v.type, layout(rng, v.type.rank, mesh))
            body.ops.append(Op("relayout", [v], [pinned], {"cause": "user"}))
            scope.values.append(pinned)
            scope.bound[pinned] = scope.bound[v]
    made = {v for op in body.ops for v in op.results}
    used = {v for op in body.ops for v in op.operands}
    ends = [v for v in scope.values if v in made and v not in used] or scope.values[-1:]
    body.returns = rng.sample(ends, min(len(ends), rng.randint(1, 4)))
    attrs = [{"layout": layout(rng, v.type.rank, mesh)} if rng.random() < 0.6 else {} for v in body.returns]
    return Module(mesh, {"main": Function("main", body, True, None, attrs)})


def arguments(module: Module, seed: int = 0) -> list[np.ndarray]:
    """Small integers of each argument's type."""
    random_state = np.random.RandomState(seed)
    return [
        random_state.randint(-4, 5, v.type.shape).astype(numpy_dtype(v.type.dtype))
        for v in module.main.body.args
    ]
