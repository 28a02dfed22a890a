"""A block being filled with random ops, and the values to choose from in it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from ...ir.graph import Block, Function, Op, Value, constant
from ...ir.types import TensorType, Type, numpy_dtype

FLOATS = ("f32", "f64", "bf16", "f16")
COMPLEX = ("c64", "c128")
SIGNED = ("i8", "i16", "i32", "i64")
UNSIGNED = ("u8", "u16", "u32", "u64")
INTS = (*SIGNED, *UNSIGNED)
NUMBERS = (*FLOATS, *INTS)

# Up to here sums and products of small integers are exact; integers wrap around, in any order to the same.
EXACT = {
    "f32": 2.0**22,
    "f64": 2.0**50,
    "bf16": 2.0**7,
    "f16": 2.0**10,
    "c64": 2.0**22,
    "c128": 2.0**50,
}
DTYPES = (
    *("f32",) * 20,
    *("i32",) * 7,
    *("i1", "f64", "bf16", "c64") * 2,
    *("f16", "c128", "i8", "i16", "i64", "u8", "u16", "u32", "u64"),
)


class Scope:
    """`bound`: the largest magnitude that a value may have. `exact`: all floats are small integers. `functions`: those
    that calls may name."""

    def __init__(
        self,
        rng: random.Random,
        block: Block,
        depth: int = 0,
        exact: bool = True,
        functions: dict[str, Function] | None = None,
    ):
        self.rng, self.block, self.depth, self.exact = rng, block, depth, exact
        self.functions = functions if functions is not None else {}
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
        bounds: Sequence[float],
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

    def small(self, value: Value, most: float = 8.0) -> Value:
        """The value, brought back to -3 … 3 if it may be larger than `most`."""
        return value if self.bound[value] <= most else self.tame(value)

    def finite(self, value: Value) -> Value:
        """The value with 0 for what is no finite number, whose bits and place among others are not defined."""
        type = value.type
        assert isinstance(type, TensorType)
        if type.dtype not in FLOATS:
            return value
        flags = self.op("is_finite", [value], TensorType(type.shape, "i1"), 1)
        zeros = self.constant(np.zeros(()), type)
        return self.op("select", [flags, value, zeros], type, self.bound[value])

    def tame(self, value: Value) -> Value:
        """Brings a value that grew large back to -3 … 3."""
        type, bound = value.type, self.bound.get(value, 4.0)
        assert isinstance(type, TensorType)
        if type.dtype in COMPLEX:
            scale = 0.0 if self.exact else 2.0 ** -np.ceil(np.log2(max(bound, 4.0) / 3))
            factor = self.constant(np.asarray(scale), type)
            out = Value(type)
            self.block.ops.append(Op("multiply", [value, factor], [out], {}))
        else:
            scalar = TensorType((), type.dtype)
            low = 0 if type.dtype in UNSIGNED else -3
            bounds = [self.constant(np.asarray(n), scalar) for n in (low, 3)]
            out = Value(type)
            self.block.ops.append(Op("clamp", [bounds[0], value, bounds[1]], [out], {}))
        self.bound[out] = 3.0
        return out

    def constant(self, array: np.ndarray, type: TensorType) -> Value:
        dtype = numpy_dtype(type.dtype)
        real = array if dtype.kind == "c" or array.dtype.kind != "c" else array.real
        op = constant(type, real.astype(dtype))
        self.block.ops.append(op)
        self.bound[op.results[0]] = float(np.abs(array.astype(np.complex128)).max(initial=1))
        return op.results[0]

    def scalar(self, dtype: str, value: float) -> Value:
        return self.constant(np.asarray(value), TensorType((), dtype))

    def data(self, type: TensorType, low: int = -3, high: int = 3) -> Value:
        """A constant of random small integers, or of other numbers where programs may round."""
        state = np.random.RandomState(self.rng.randrange(2**31))
        if type.dtype == "i1":
            return self.constant(state.randint(0, 2, type.shape) > 0, type)
        low = max(low, 0) if type.dtype in UNSIGNED else low
        if self.exact or type.dtype in INTS:
            return self.constant(state.randint(low, high + 1, type.shape), type)
        return self.constant(np.asarray(state.uniform(low, high, type.shape)), type)


def reducer(name: str, dtype: str) -> Block:
    scalar = TensorType((), dtype)
    a, b, out = Value(scalar), Value(scalar), Value(scalar)
    return Block([a, b], [Op(name, [a, b], [out], {})], [out])


def compare_type(dtype: str) -> str:
    return "FLOAT" if dtype[0] in "fbc" else "SIGNED" if dtype in SIGNED else "UNSIGNED"


def comparison(direction: str, x: Value, y: Value) -> tuple[Op, Value]:
    flag = Value(TensorType(x.type.shape, "i1"))
    attrs = {"comparison_direction": direction, "compare_type": compare_type(x.type.dtype)}
    return Op("compare", [x, y], [flag], attrs), flag


def neutral(s: Scope, name: str, dtype: str) -> Value:
    """What leaves the other operand as it is, or sometimes not."""
    if s.rng.random() < 0.15:
        return s.scalar(dtype, 1 if dtype == "i1" else 2)
    if name in ("maximum", "minimum"):
        low, high = -np.inf, np.inf
        if dtype in INTS:
            info = np.iinfo(numpy_dtype(dtype))
            low, high = info.min, info.max
        return s.constant(np.asarray(low if name == "maximum" else high), TensorType((), dtype))
    if name == "and":
        return s.scalar(dtype, 1 if dtype == "i1" else 0 if dtype in UNSIGNED else -1)
    return s.scalar(dtype, 1 if name == "multiply" else 0)


def some_dims(s: Scope, rank: int, least: int = 1) -> tuple[int, ...]:
    return tuple(sorted(s.rng.sample(range(rank), s.rng.randint(least, rank))))


def size(rng: random.Random) -> int:
    return 0 if rng.random() < 0.005 else rng.choice((1, 2, 3, 4, 4, 5, 6, 7, 8, 8, 9, 12, 13, 16))


def tensor(rng: random.Random, dtype: str | None = None) -> TensorType:
    rank = rng.choice((1, 1, 2, 2, 2, 3, 3, 4))
    shape = [size(rng) for _ in range(rank)]
    while np.prod(shape) > 600:
        shape[rng.randrange(rank)] = 2
    return TensorType(tuple(shape), dtype or rng.choice(DTYPES))


def indices_of(s: Scope, shape: tuple[int, ...], dtype: str = "i32") -> Value:
    """Known integers or new ones, some of them out of range."""
    known = s.pick(lambda v: v.type.shape == shape and v.type.dtype == dtype)
    return known if known is not None and s.rng.random() < 0.5 else s.data(TensorType(shape, dtype), -2, 9)


def index_dtype(s: Scope) -> str:
    return s.rng.choice(("i32",) * 8 + ("i64", "i8", "u8", "u32"))
