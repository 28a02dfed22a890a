"""Products that sum over the rows of both operands, as gradients of weights do, sum over two dims instead.

XLA for CPUs runs a product of matrices that reads its left operand by columns as it is, without its fastest kernels, which takes
up to twice as long. Where a product sums over several dims it first transposes the operand, and then has them. That is worth it
where what it copies is little beside what it computes, or lies in a core's cache.
"""

from __future__ import annotations

from ...ir.graph import Block, Op, Value
from ..estimate import peak_bytes
from ..simplify import drop_unused

ROWS, COLUMNS = 64, 64  # that are summed over, and that the right operand has, from which on it is worth it
CACHED = 1 << 20  # bytes of the left operand, up to which its columns lie in a cache
MANY_COLUMNS = 384  # from which on it is worth it beyond that
PART = 1 / 12  # of the memory that the program takes by estimate, which the operand's transpose may take
FLOATS = {"bf16", "f16", "f32", "f64"}


def split_sums(block: Block) -> None:
    """Changes a block that no one else holds, and the blocks inside."""
    _split_sums(block, PART * peak_bytes(block, set()))


def _split_sums(block: Block, room: float) -> None:
    ops: list[Op] = []
    turned: dict[Value, Value] = {}  # transposes of matrices, which XLA reads by columns instead
    for op in block.ops:
        for region in op.regions:
            _split_sums(region, room)
        if op.name == "transpose" and op.attrs["permutation"] == (1, 0):
            turned[op.results[0]] = op.operands[0]
        summed = _by_columns(op, turned)
        ops += _split(op, *summed) if summed and _suits(*summed, room) else [op]
    if len(ops) > len(block.ops):
        block.ops[:] = ops
        drop_unused(block)


def _by_columns(op: Op, turned: dict[Value, Value]) -> tuple[Value, Value] | None:
    """The operands of a product of matrices, if it reads both by columns."""
    if op.name != "dot_general" or any(v.type.rank != 2 for v in (*op.operands, *op.results)):
        return None
    sides = zip(op.operands, op.attrs["contract"], strict=True)
    left, right = (v if rows == (0,) else turned.get(v) for v, rows in sides)
    return left and right and (left, right)


def _suits(left: Value, right: Value, room: float) -> bool:
    (rows, _), (_, columns) = left.type.shape, right.type.shape
    enough = COLUMNS if left.type.nbytes <= CACHED else MANY_COLUMNS
    fits = left.type.nbytes <= room
    floats = {left.type.dtype, right.type.dtype} <= FLOATS
    return fits and floats and rows >= ROWS and rows % 2 == 0 and columns >= enough


def _split(op: Op, *operands: Value) -> list[Op]:
    halves = [Value(v.type.with_shape((2, v.type.shape[0] // 2, v.type.shape[1]))) for v in operands]
    reshapes = [Op("reshape", [v], [half], loc=op.loc) for v, half in zip(operands, halves, strict=True)]
    attrs = {**op.attrs, "contract": ((0, 1), (0, 1))}
    return [*reshapes, Op("dot_general", halves, op.results, attrs, loc=op.loc)]
