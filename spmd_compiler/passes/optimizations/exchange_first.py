"""Arguments that are exchanged move before they are computed with.

`permute(f(x))` is `f(permute(x))` for an elementwise f, and so is an all-to-all. Where x is an argument of the program, the
devices that exchange it first wait for nothing; computed first, it is read and written once more, in most runtimes while
the other devices are still being started. An all-to-all of two pieces stays, unless it would send less: XLA for CPUs computes each
as it is cut. A collective never moves to where it would send more bytes.
"""

from __future__ import annotations

from collections import Counter
from typing import cast

from ...ir.graph import Block, Op, Value
from ...ir.mesh import Mesh
from ...ir.optable import ELEMENTWISE, FEW_SLICES
from ...ir.types import TensorType
from ..emit.builder import Builder
from ..estimate import read_in


def exchange_first(block: Block, mesh: Mesh) -> bool:
    """Changes the body of a program, which no one else holds. Whether it did: some ops are left that no one uses."""
    made = block.makers()
    used = Counter(read_in(block))
    gone: set[Op] = set()
    ops: list[Op] = []
    for op in block.ops:
        chain = _chain(op, made, used) if _moves_all(op, mesh) else []
        if not chain or not _is_worth_it(op, _source(chain[-1], made), mesh):
            ops.append(op)
            continue
        b = Builder.beside(mesh, op)
        value = _exchanged(b, op, _source(chain[-1], made))
        for step in reversed(chain):
            value = _again(b, step, value, made)
        b.gives(op.results)
        gone.update(chain)
        ops += b.block.ops
    block.ops[:] = [op for op in ops if op not in gone]
    return bool(gone)


def _moves_all(op: Op, mesh: Mesh) -> bool:
    """Whether an op only moves numbers: to devices that get none a permute gives zeros."""
    if "axes" not in op.attrs or len(op.operands) != 1:
        return False
    if op.name != "collective_permute":
        return op.name == "all_to_all"
    if "pairs" in op.attrs:
        return len({receiver for _, receiver in op.attrs["pairs"]}) == mesh.axes_size(op.attrs["axes"])
    return "target_axes" in op.attrs or bool(op.attrs.get("wrap"))


def _chain(op: Op, made: dict[Value, Op], used: Counter[Value]) -> list[Op]:
    """The elementwise ops, last first, that lead from an argument of the program to the operand of `op`; [] if others do."""
    chain: list[Op] = []
    value = op.operands[0]
    while (step := made.get(value)) is not None:
        if used[value] != 1 or not _is_elementwise(step, made):
            return []
        chain.append(step)
        value = _source(step, made)
    return chain


def _is_worth_it(op: Op, source: Value, mesh: Mesh) -> bool:
    """Whether an op should rather move what its operand is computed from."""
    saved = op.operands[0].type.nbytes - source.type.nbytes
    in_few_pieces = op.name == "all_to_all" and mesh.axes_size(op.attrs["axes"]) <= FEW_SLICES
    return saved > 0 or (saved == 0 and not in_few_pieces)


def _is_elementwise(op: Op, made: dict[Value, Op]) -> bool:
    if op.name not in ELEMENTWISE or len(op.results) != 1:
        return False
    full = [v for v in op.operands if v.type.shape and _scalar(v, made) is None]
    return len(full) == 1 and full[0].type.shape == op.results[0].type.shape


def _source(op: Op, made: dict[Value, Op]) -> Value:
    return next(v for v in op.operands if v.type.shape and _scalar(v, made) is None)


def _scalar(value: Value, made: dict[Value, Op]) -> Value | None:
    """What a broadcast scalar is a broadcast of."""
    op = made.get(value)
    if op is None or op.name != "broadcast_in_dim" or op.operands[0].type.shape:
        return None
    return op.operands[0]


def _exchanged(b: Builder, op: Op, value: Value) -> Value:
    shape, dtype = op.results[0].type.shape, cast(TensorType, value.type).dtype
    return b.op(op.name, [value], TensorType(shape, dtype), op.attrs)


def _again(b: Builder, op: Op, value: Value, made: dict[Value, Op]) -> Value:
    """An elementwise op on its full operand in another shape."""
    b.loc = op.loc
    shape, source = value.type.shape, _source(op, made)
    operands: list[Value] = []
    for v in op.operands:
        scalar = _scalar(v, made)
        operands.append(value if v is source else v if scalar is None else b.broadcast(scalar, shape))
    return b.op(op.name, operands, TensorType(shape, cast(TensorType, op.results[0].type).dtype), op.attrs)
