"""What XLA for CPUs computes besides what is written, before it orders what it computes: copies of operands, and results that are made
again.

* Products of more than two dims read copies of operands that don't have the batch first, then the rows or columns, then what is
  summed over, or for the second one the other way round.
* Collectives along another dim than the outermost work on copies that have it there.
* What is cheap to compute of one operand of its size is computed again in all readers that it fuses with (`EffectivelyAtMostUnary`
  in XLA's `instruction_fusion`), what all readers fuse with in each of them: the operand is kept for them instead of the result.
* Of an all-reduce of several operands those that a later one of its kind does not wait for go with that one, and so they may be made
  as late (`CombineInstructionsByKey` in XLA, which begins with the last ones).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from ...ir.clone import clone_block
from ...ir.graph import Block, Op, Value
from ...ir.optable import ELEMENTWISE, sends
from ..estimate import is_light, readers, reads

_SLOW = "atan2 cbrt cosine divide exponential exponential_minus_one log log_plus_one logistic power rsqrt sine sqrt tan tanh"
SLOW = frozenset(name for name in ELEMENTWISE if name in _SLOW.split() or name.startswith("chlo."))
CHEAP = frozenset(ELEMENTWISE) - SLOW
MOST = 15  # readers that compute a value again: with more it is kept (`FusionNodeIndexingEvaluation` in XLA)
_SAME_EVERYWHERE = ("broadcast_in_dim", "constant", "iota")  # what counts for no operand


def as_computed(block: Block) -> Block:
    """A copy of a block with what XLA computes besides. Only what it reads, and how much that is, is right of the ops that are added."""
    block = clone_block(block)
    for made in _inner_first(block):
        _take_apart(made)
        made.ops[:] = [x for op in made.ops for x in _with_copies(op)]
        made.ops[:] = _repeated(made)
    return block


def _inner_first(block: Block) -> Iterator[Block]:
    for op in block.ops:
        for region in op.regions:
            yield from _inner_first(region)
    yield block


def _take_apart(block: Block) -> None:
    """All-reduces of several operands some of which go with others."""
    waits: dict[Value, int] = {}  # for which results of such all-reduces, a bit for each
    together: dict[Op, int] = {}  # the bits of their results
    late: dict[Op, int] = {}  # of those that may be made later
    bit = 1
    for op in block.ops:
        before = 0
        for v in reads(op):
            before |= waits.get(v, 0)
        waits.update(dict.fromkeys(op.results, before))
        if op.name != "all_reduce":
            continue
        for other, bits in together.items():
            if before & bits and _kind(other) == _kind(op):
                late[other] = late.get(other, 0) | (bits & ~before)
        if len(op.results) > 1:
            together[op] = ((1 << len(op.results)) - 1) * bit
            for v in op.results:
                waits[v] |= bit
                bit <<= 1
    if any(late.values()):
        block.ops[:] = [
            x for op in block.ops for x in _parts(op, [v for v in op.results if waits[v] & late.get(op, 0)])
        ]


def _kind(op: Op) -> tuple[object, object]:
    return op.attrs["axes"], op.attrs["kind"]


def _parts(op: Op, alone: list[Value]) -> list[Op]:
    """An op, but for what it makes alone: that is made by ops of their own."""
    if not alone:
        return [op]
    ends = [*zip(op.operands, op.results, strict=True)]
    kept = [(x, y) for x, y in ends if y not in alone]
    groups = [*([kept] if kept else []), *([(x, y)] for x, y in ends if y in alone)]
    return [Op(op.name, [x for x, _ in g], [y for _, y in g], op.attrs, op.regions, op.loc) for g in groups]


def _with_copies(op: Op) -> list[Op]:
    if op.name == "dot_general":
        copies = [_copy_for_product(op, side) for side in (0, 1)]
        return [*(c for c in copies if c), op]
    if op.name in ("all_gather", "reduce_scatter") and sends(op):
        before = op.name == "reduce_scatter"
        lies = (op.operands if before else op.results)[0].type
        if math.prod(lies.shape[: op.attrs["dim"]]) > 1:
            op.attrs = {**op.attrs, "dim": 0}
            values = op.operands if before else op.results
            copies = [_copied(values, k, op, before) for k in range(len(values))]
            return [*copies, op] if before else [op, *copies]
    return [op]


def _copied(values: list[Value], k: int, op: Op, before: bool) -> Op:
    """A copy of one of the values of an op, before or behind which it is made."""
    value, other = values[k], Value(values[k].type)
    values[k] = other
    ends = ([value], [other]) if before else ([other], [value])
    return Op("transpose", *ends, {}, (), op.loc)


def _copy_for_product(op: Op, side: int) -> Op | None:
    shape, batch, summed = op.operands[side].type.shape, op.attrs["batch"][side], op.attrs["contract"][side]
    if len(shape) <= 2 and not batch and len(summed) == 1:
        return None  # either way round
    free = [d for d in range(len(shape)) if d not in batch and d not in summed]
    order = (*batch, *free, *summed) if side == 0 else (*batch, *summed, *free)
    long = [d for d in order if shape[d] != 1]
    return _copied(op.operands, side, op, before=True) if long != sorted(long) else None


def _repeated(block: Block) -> list[Op]:
    """The ops of a block, those that XLA computes again too, in front of who reads them."""
    users, left = readers(block), {*block.returns}
    everywhere = {v for op in block.ops if op.name in _SAME_EVERYWHERE for v in op.results}
    ops: list[Op] = []
    for op in reversed(block.ops):
        ops.append(op)
        value = op.results[0] if op.name in CHEAP else None
        if value is None or not 2 <= len(users.get(value, ())) + (value in left) <= MOST:
            continue
        light = [user for user in users[value] if _computes(user, users, left)]
        kept = value in left or len(light) < len(users[value])
        if kept and not _is_unary(op, everywhere):
            continue
        for user in light[not kept :]:
            again = Op(op.name, list(op.operands), [Value(value.type)], op.attrs, (), op.loc)
            user.operands[:] = [again.results[0] if v is value else v for v in user.operands]
            for v in op.operands:
                users.setdefault(v, []).append(again)
            users[again.results[0]] = [user]
            ops.append(again)
    ops.reverse()
    return ops


def _computes(op: Op, users: Mapping[Value, list[Op]], left: set[Value]) -> bool:
    """Whether an op may compute what it reads: no sum does, which XLA has kernels for, nor who only hands it on to such as don't."""
    if op.name == "reshape":
        value = op.results[0]
        return value not in left and all(_computes(user, users, left) for user in users.get(value, ()))
    return op.name != "reduce" and is_light(op)


def _is_unary(op: Op, everywhere: set[Value]) -> bool:
    """Whether at most one operand has all dims, and is not the same everywhere along some."""
    rank = op.results[0].type.rank
    return sum(v.type.rank == rank and v not in everywhere for v in op.operands) <= 1
