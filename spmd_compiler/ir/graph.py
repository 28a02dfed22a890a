"""The IR: values, ops, blocks, functions, modules. It all fits on this screen.

An op's attributes are plain hashable Python data: bool, int, float, str, (nested) tuples of those, `Dense` for the data
of a constant, `Raw` for an MLIR attribute that no pass looks at. Names are StableHLO's, see `optable`. Passes don't
change a module in place: they build a new one, with new values and ops, and share types, attributes and locations.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from .layout import Layout
from .mesh import Mesh
from .types import TensorType, Type, numpy_dtype


class Loc(NamedTuple):
    """Where an op comes from: the user's file and line (may be ""), and JAX's name stack, `jit(step)/dot_general`."""

    file: str = ""
    line: int = 0
    scope: str = ""
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file.rsplit('/', 1)[-1]}:{self.line}" if self.file else self.scope


UNKNOWN_LOC = Loc()


class Raw(NamedTuple):
    """An MLIR attribute, as its text."""

    text: str


class Dense:
    """The data of a constant: a numpy array of its shape, or one of shape () that fills it (`splat`)."""

    __slots__ = ("_hash", "array", "splat")

    def __init__(self, array: np.ndarray, splat: bool = False):
        self.array = array
        self.splat = splat
        self._hash: int | None = None

    def broadcast(self, type: TensorType) -> np.ndarray:
        return np.broadcast_to(self.array, type.shape)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Dense) or self.splat != other.splat or self.array.dtype != other.array.dtype:
            return False
        a, b = self.array, other.array
        return a.shape == b.shape and hash(self) == hash(other) and a.tobytes() == b.tobytes()

    def __hash__(self) -> int:
        if self._hash is None:
            head = self.array.reshape(-1)[:64]  # equality settles the rest
            self._hash = hash((self.array.shape, self.array.dtype.name, head.tobytes()))
        return self._hash

    def __repr__(self) -> str:
        return f"Dense({self.array!r}, splat={self.splat})"


class Value:
    """The result of an op or an argument of a block. `name` is a hint for printing ("" prints as a number)."""

    __slots__ = ("layout", "name", "type")

    def __init__(self, type: Type, layout: Layout | None = None, name: str = ""):
        self.type = type
        self.layout = layout
        self.name = name

    def __repr__(self) -> str:
        return f"%{self.name or '?'}: {self.type}{'' if self.layout is None else f' {self.layout}'}"


class Op:
    __slots__ = ("attrs", "loc", "name", "operands", "regions", "results")

    def __init__(
        self,
        name: str,
        operands: list[Value],
        results: list[Value],
        attrs: dict[str, Any] | None = None,
        regions: tuple[Block, ...] = (),
        loc: Loc = UNKNOWN_LOC,
    ):
        self.name = name
        self.operands = operands
        self.results = results
        self.attrs = attrs if attrs is not None else {}
        self.regions = regions
        self.loc = loc

    @property
    def result(self) -> Value:
        return self.results[0]

    @property
    def result_regions(self) -> tuple[Block, ...]:
        """The regions of a control-flow op that return what become its results: all but the condition of a loop."""
        return self.regions[self.name == "while" :]

    def __repr__(self) -> str:
        return f"<{self.name}({', '.join(map(repr, self.operands))}) -> {', '.join(map(repr, self.results))}>"


class Block:
    """A straight line of ops. `returns` are the operands of its terminator. A region is one block; it may use values of
    the blocks around it."""

    __slots__ = ("args", "ops", "returns")

    def __init__(self, args: list[Value], ops: list[Op], returns: list[Value]):
        self.args = args
        self.ops = ops
        self.returns = returns

    def walk(self) -> Iterator[Op]:
        """Every op, an op before those of its regions."""
        for op in self.ops:
            yield op
            for region in op.regions:
                yield from region.walk()

    def makers(self) -> dict[Value, Op]:
        """The op that makes each value of the block, but for its arguments."""
        return {v: op for op in self.ops for v in op.results}

    def captured(self) -> list[Value]:
        """The values of enclosing blocks that the block uses, in the order in which it does."""
        used: dict[Value, None] = {}
        made = set(self.args)
        for op in self.ops:
            used.update(dict.fromkeys(op.operands))
            for region in op.regions:
                used.update(dict.fromkeys(region.captured()))
            made.update(op.results)
        used.update(dict.fromkeys(self.returns))
        return [v for v in used if v not in made]

    def with_ops(self, others: Mapping[Op, list[Op]]) -> Block:
        """The block with others in place of some ops, in the blocks inside too."""
        ops: list[Op] = []
        for op in self.ops:
            if op in others:
                ops += others[op]
            elif op.regions:
                regions = tuple(r.with_ops(others) for r in op.regions)
                ops.append(Op(op.name, op.operands, op.results, op.attrs, regions, op.loc))
            else:
                ops.append(op)
        return Block(self.args, ops, self.returns)

    def replace(self, values: dict[Value, Value]) -> None:
        """Has the ops read other values, those of the blocks inside too. For a block that no one else holds."""
        for op in self.ops:
            op.operands = [values.get(v, v) for v in op.operands]
            for region in op.regions:
                region.replace(values)
        self.returns = [values.get(v, v) for v in self.returns]


class Function:
    """`arg_attrs` and `result_attrs`: per argument and result a dict of attributes (donation, user layouts)."""

    __slots__ = ("arg_attrs", "body", "name", "public", "result_attrs")

    def __init__(
        self,
        name: str,
        body: Block,
        public: bool = True,
        arg_attrs: list[dict[str, Any]] | None = None,
        result_attrs: list[dict[str, Any]] | None = None,
    ):
        self.name = name
        self.body = body
        self.public = public
        self.arg_attrs = arg_attrs if arg_attrs is not None else [{} for _ in body.args]
        self.result_attrs = result_attrs if result_attrs is not None else [{} for _ in body.returns]


class Module:
    """`functions` by name, in order; `main` is the entry."""

    __slots__ = ("attrs", "functions", "mesh", "name")

    def __init__(
        self,
        mesh: Mesh,
        functions: dict[str, Function],
        name: str = "main",
        attrs: dict[str, Any] | None = None,
    ):
        self.mesh = mesh
        self.functions = functions
        self.name = name
        self.attrs = attrs if attrs is not None else {}

    @property
    def main(self) -> Function:
        return self.functions["main"]

    def with_body(self, body: Block) -> Module:
        """The module with another body of `main`."""
        main = self.main
        functions = {
            **self.functions,
            "main": Function("main", body, True, main.arg_attrs, main.result_attrs),
        }
        return Module(self.mesh, functions, self.name, self.attrs)

    def walk(self) -> Iterator[Op]:
        for function in self.functions.values():
            yield from function.body.walk()

    def __str__(self) -> str:
        from .text import print_module

        return print_module(self)


def constant(type: TensorType, value: Any, layout: Layout | None = None) -> Op:
    """A constant op; a scalar `value` fills the type."""
    array = np.asarray(value).astype(numpy_dtype(type.dtype))
    splat = array.shape == () and type.shape != ()
    return Op("constant", [], [Value(type, layout)], {"value": Dense(array, splat)})
