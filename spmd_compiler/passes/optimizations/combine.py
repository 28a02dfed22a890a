"""Combines collectives of one block into few.

A collective may run anywhere between its operand's definition and its first use; those of one kind, axes and type whose
ranges have a point in common can run there together. Small ones cost latency, not bytes: they are packed into one buffer,
sent at once, and unpacked, as bits where what only moves has several types of one size. So that ranges are long, small ops
behind small collectives first move to where their results are used. Larger all-reduces become one of several operands,
without a copy, as XLA's own combiner runs them on all platforms; so do larger all-gathers, which XLA keeps so on CPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar

from ...ir.graph import Block, Op, Value
from ...ir.layout import Axes
from ...ir.mesh import Mesh
from ...ir.optable import COLLECTIVES, SLICES, is_pure, sends
from ...ir.types import TensorType
from ..emit.builder import Builder
from ..estimate import is_light, reads
from ..hardware import Hardware
from .packing import COPIED, PACK, SMALL, Emit, all_gather, all_reduce, carrier
from .together_memory import TogetherMemory

SMALL_OF = {  # the same as SMALL where XLA copies blocks anyway, or what comes is smaller, or one may have several operands
    "all_reduce": 32 * 1024,
    "all_gather": 256 * 1024,
    "all_to_all": 256 * 1024,
    "reduce_scatter": 8 * 1024 * 1024,
}
GATHERED = 4 * 1024 * 1024  # bytes of what one gives, at most: on many devices little becomes much
BUCKET = 30 * 1024 * 1024  # bytes that are held for one collective: what XLA for GPUs combines
HELD = ("all_gather", "reduce_scatter")  # what XLA holds more for if they go together
PART = 1 / 64  # of the memory that a device has, if that is limited
LATENCIES = 4  # that one all-reduce takes to send, at most, where others could be hidden behind what is computed meanwhile

# the place in a block before which to run, and collectives that can run there together
Group = tuple[int, list[Op]]
Keys = Mapping[Op, Any]  # of collectives, in the block's order, what they must share to go together
ReductionKey = tuple[Axes, str, str]  # axes, what reduces, element type

K = TypeVar("K")
_SHARED = ("axes", "kind", "shift", "wrap", "pairs", "target_axes")  # what packed collectives have in common
_COMBINED = re.compile(r"(\d+) combined; ")


def bucket_sizes(hardware: Hardware | None, memory: float | None) -> set[int]:
    """Bytes that may be held for one collective, which are worth comparing. memory: bytes that a device has, if limited."""
    most = BUCKET if memory is None else min(BUCKET, int(memory * PART))
    if hardware is None or not hardware.asynchronous:
        return {most}
    return {most, min(most, int(LATENCIES * hardware.link_latency * hardware.link_bandwidth))}


def combine_collectives(block: Block, mesh: Mesh, bucket: int = BUCKET, copied: int = COPIED) -> None:
    """Changes a block that no one else holds, and the blocks inside. bucket: bytes that are held for one collective. copied: bytes
    of an operand of an all-gather up to which it is packed into a buffer with others, rather than an operand of its own."""
    for op in block.ops:
        for region in op.regions:
            combine_collectives(region, mesh, bucket, copied)
    _combine_kinds(block, mesh, {**PACK, "all_gather": partial(all_gather, copied=copied)}, bucket, copied)


def combine_reductions(block: Block, mesh: Mesh, bucket: int) -> None:
    """The same of the all-reduces of a block alone."""
    _combine_kinds(block, mesh, {"all_reduce": all_reduce}, bucket)


def _combine_kinds(
    block: Block, mesh: Mesh, emit: Mapping[str, Emit], bucket: int, copied: int = COPIED
) -> None:
    """Small collectives of the kinds that `emit` has, then larger all-reduces."""

    def key(op: Op) -> Any:
        return _small(op) if op.name in emit else None

    while _combine(block, mesh, _keys(block, key), emit, SMALL, bucket, copied):
        pass  # what waited for several collectives waits for one: others may now run together
    large = {"all_reduce": partial(all_reduce, copied=0)}
    _combine(block, mesh, reduction_keys(block, bucket), large, None, bucket)


def _combine(
    block: Block,
    mesh: Mesh,
    keys: Keys,
    emit: Mapping[str, Emit],
    small: int | None,
    bucket: int,
    copied: int = COPIED,
) -> bool:
    """Runs together what can of the collectives with keys, if ops behind it wait: those of `small` bytes at most, if given. True
    if others may be able to afterwards: what waited for them is done together now."""
    if len({*keys.values()}) == len(keys):
        return False
    _make_at_once(block, keys)
    ops, chained = _delayed(block, keys, small)
    late = Block(block.args, ops, block.returns)
    groups = list(_groups(late, keys, bucket, copied))
    if groups:
        block.ops[:] = late.ops
        _merge(block, mesh, groups, emit)
    return any(op in chained for _, together in groups for op in together)


def _merge(block: Block, mesh: Mesh, groups: list[Group], emit: Mapping[str, Emit]) -> None:
    """Each group's collectives replaced by what `emit` emits for them, at the group's place."""
    # at one place, the group of the op that is there comes last: it may need what the others make
    groups.sort(key=lambda g: g[0] < len(block.ops) and block.ops[g[0]] in g[1])
    renamed: dict[Value, Value] = {}
    packed: dict[int, list[Op]] = {}
    gone: set[Op] = set()
    for position, ops in groups:
        b = Builder.beside(mesh, ops[0])
        b.cause = _cause(ops)
        made = emit[ops[0].name](b, ops, ops[0].attrs["axes"])
        for old, value in made.items():
            value.layout = old.layout  # of a result of the program
        renamed.update(made)
        packed.setdefault(position, []).extend(b.block.ops)
        gone.update(ops)
    if not gone:
        return
    new: list[Op] = []
    for i, op in enumerate(block.ops):
        new += packed.get(i, [])
        if op not in gone:
            new.append(op)
    new += packed.get(len(block.ops), [])
    block.ops[:] = new
    block.replace(renamed)


def _cause(ops: list[Op]) -> str:
    """The first one's, with how many there were before any were combined."""
    counts = [_COMBINED.match(op.attrs.get("cause", "")) for op in ops]
    cause = _COMBINED.sub("", ops[0].attrs.get("cause", ""))
    return f"{sum(int(c[1]) if c else 1 for c in counts)} combined; {cause}"


def _make_at_once(block: Block, keys: Keys) -> None:
    """Reshapes, which move nothing, and small ops in passing that make what collectives send, come directly behind what makes their
    operands, and are no reason to wait."""
    made = block.makers()
    wanted, small = [v for op in keys for v in op.operands], set[Op]()
    while wanted:
        op = made.get(wanted.pop())
        if op is None or op in small or op.regions or not is_light(op):
            continue
        if _within(op, SMALL) or (op.name in SLICES and op.results[0].type.nbytes <= SMALL):
            small.add(op)
            wanted += op.operands
    early = small.union(op for op in block.ops if op.name == "reshape")
    lacking = {op: {*op.operands} & made.keys() for op in block.ops if op in early}
    users: dict[Value, list[Op]] = {}
    for op, values in lacking.items():
        for v in values:
            users.setdefault(v, []).append(op)
    new: list[Op] = []

    def place(op: Op) -> None:
        ready = [op]
        while ready:
            new.append(ready.pop())
            for v in new[-1].results:
                for user in users.get(v, ()):
                    lacking[user].discard(v)
                    if not lacking[user]:
                        ready.append(user)

    for op in [op for op, values in lacking.items() if not values]:
        place(op)
    for op in block.ops:
        if op not in early:
            place(op)
    block.ops[:] = new


def _delayed(block: Block, keys: Keys, small: int | None) -> tuple[list[Op], set[Op]]:
    """The ops in an order in which those that wait for collectives with a key come where they are needed; and which of these
    collectives wait for others."""
    waiting: dict[Value, tuple[int, Op]] = {}  # what makes a value, with its place
    late: set[Value] = set()  # results of these collectives, and of what waits for them
    new: list[Op] = []
    chained: set[Op] = set()

    def place(wanted: list[Value]) -> None:
        held: dict[int, Op] = {}
        while wanted:
            if found := waiting.get(wanted.pop()):
                held[found[0]] = found[1]
                for v in found[1].results:
                    del waiting[v]
                wanted += reads(found[1])
        new.extend(held[i] for i in sorted(held))

    for i, op in enumerate(block.ops):
        behind, keyed = any(v in late for v in op.operands), op in keys
        waits = behind and op.name not in COLLECTIVES and is_pure(op) and _within(op, small)
        if keyed and behind:
            chained.add(op)
        if waits or keyed:
            late.update(op.results)
        if waits:
            waiting.update(dict.fromkeys(op.results, (i, op)))
        else:
            place(reads(op))
            new.append(op)
    place(list(waiting))
    return new, chained


def _within(op: Op, size: int | None) -> bool:
    """Whether what an op takes and gives is no larger than some bytes each, if given; a reshape moves nothing."""
    return (
        size is None
        or op.name == "reshape"
        or all(v.type.nbytes <= size for v in (*op.operands, *op.results))
    )


def _groups(block: Block, keys: Keys, bucket: int, copied: int = COPIED) -> Iterator[Group]:
    """Collectives with equal keys that can run together, and hold no more bytes than a bucket, of all-gathers and reduce-scatters
    what memory has room for: those first whose results are used first, so that what is gathered for later does not lie about."""
    defined: dict[Value, int] = {}
    used: dict[Value, int] = {}
    waiting: dict[Any, list[tuple[int, int, Op]]] = {}
    for i, op in enumerate(block.ops):
        for v in reads(op):
            used.setdefault(v, i)
        for v in op.results:
            defined[v] = i
    end = len(block.ops)
    moved = {v: key for op, key in keys.items() for v in op.results}
    for i, op in enumerate(block.ops):
        if (key := keys.get(op)) is not None:
            ready = max(defined.get(v, -1) for v in op.operands) + 1
            if late := [moved[v] for v in op.operands if v in moved]:
                # what a collective that moves itself makes is there when it is used, and no sooner; its user can't go with it
                ready = i + (key in late)
            waiting.setdefault(key, []).append((min(used.get(v, end) for v in op.results), ready, op))
    weighed = {op for op in keys if op.name in HELD and not _sends_at_most(op, COPIED)}
    memory = TogetherMemory(block, weighed, copied) if len(weighed) > 1 else None
    for ranges in waiting.values():
        ranges.sort(key=lambda r: r[:2])
        while len(ranges) > 1:
            last = ranges[0][0]  # the first that must be done: what is ready by then goes with it
            together, left, held = ranges[:1], list[tuple[int, int, Op]](), _held(ranges[0][2])
            for r in ranges[1:]:
                fits = r[1] <= last and held + _held(r[2]) <= bucket
                if fits and memory is not None and r[2] in weighed:
                    fits = memory.holds([*(op for *_, op in together if op in weighed), r[2]])
                (together if fits else left).append(r)
                held += _held(r[2]) if fits else 0
            if len(together) > 1:
                yield max(r[1] for r in together), [r[2] for r in together]
            ranges = left


def _held(op: Op) -> int:
    """Bytes that a collective takes or gives."""
    return max(sum(v.type.nbytes for v in values) for values in (op.operands, op.results))


def _small(op: Op) -> Any:
    """The key of small collectives."""
    limit = SMALL_OF.get(op.name, SMALL)
    if not _sends_at_most(op, limit) or _held(op) > GATHERED:
        return None
    type = carrier(op.operands[0].type.dtype, op.attrs.get("kind"))
    return op.name, type, *(op.attrs.get(name) for name in _SHARED)


def reduction_keys(block: Block, bucket: int) -> dict[Op, ReductionKey]:
    """Of the all-reduces of a block that fit in a bucket: their axes, what they reduce by, and the element type."""

    def key(op: Op) -> ReductionKey | None:
        if op.name != "all_reduce" or not _sends_at_most(op, bucket):
            return None
        return op.attrs["axes"], op.attrs["kind"], op.operands[0].type.dtype

    return _keys(block, key)


def lone_reductions(block: Block, keys: Mapping[Op, ReductionKey], bucket: int) -> list[Op]:
    """Of the all-reduces of a block with `reduction_keys` those that no other one goes with."""
    late = Block(block.args, _delayed(block, keys, None)[0], block.returns)
    joined = {op for _, together in _groups(late, keys, bucket) for op in together}
    return [op for op in keys if op not in joined]


def _keys(block: Block, key_of: Callable[[Op], K | None]) -> dict[Op, K]:
    return {op: key for op in block.ops if (key := key_of(op)) is not None}


def _sends_at_most(op: Op, size: int) -> bool:
    """Whether a collective is the compiler's, and its operands tensors of elements, in no more bytes than `size` each."""
    types = [v.type for v in op.operands]
    return sends(op) and all(isinstance(t, TensorType) and 0 < t.nbytes <= size for t in types)
