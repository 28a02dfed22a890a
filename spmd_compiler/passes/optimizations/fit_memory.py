"""Makes a per-device program need less memory, where it needs more than there is, at the price of more communication.

What is gathered takes the most: a search by time gathers a parameter once, and keeps it for whoever uses it later. Where
the most is live, in the order in which the ops are written, in turn:

* A gather moves behind that place, if it isn't needed before; a reduce-scatter moves to where its operand is made.
* A loop over slices of a gathered array (the layers of a `scan`) gathers each slice in its iteration; one that stacks partial
  sums reduces and scatters each (ZeRO-3: Rajbhandari et al. 2020). Both send as many bytes as before, in more messages.
* What is used before and after that place is dropped between, and gathered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple, cast

from ...ir.graph import Block, Op, Value
from ...ir.mesh import Mesh
from ...ir.optable import sends
from ...ir.trips import NONE, integers_in
from ...ir.types import TensorType
from ..emit.builder import Builder
from ..estimate import inner_bytes, last_reads, live_bytes, reads
from ..simplify import drop_unused
from .slice_first import LOCAL
from .stacks import retype_carry, slices_in, sums_stacked_in

ROUNDS = 100  # of looking where the most is live
_LOCAL = ("slice", *LOCAL)  # done again with a gather, if nothing else uses it
_CAUSE = "to save memory; "


class _Change(NamedTuple):
    """sent: bytes of what it gathers again. saved: bytes that are live no longer. make: changes the program."""

    sent: int
    saved: int
    make: Callable[[], None]


def fit_memory(block: Block, mesh: Mesh, limit: float, outer: Mapping[Value, int] = NONE) -> bool:
    """Changes a block that no one else holds, and the blocks inside, until at most `limit` bytes are live at once by estimate
    (`estimate.peak_bytes`). False if more are even so. outer: integers that are known around the block."""
    known = integers_in(block, outer)
    for _ in range(ROUNDS):
        during = live_bytes(block, set())
        over = [i for i, bytes in enumerate(during) if bytes > limit]
        if not over:
            return True
        over.sort(key=lambda i: -during[i])
        uses = _Uses(block)
        if not any(_relieve(block, mesh, uses, i, during[i] - limit, known) for i in over):
            break
    return False


class _Uses:
    """Where the values of a block, as it is now, are made and read."""

    def __init__(self, block: Block):
        self.readers: dict[Value, list[int]] = {}
        for i, op in enumerate(block.ops):
            for v in dict.fromkeys(reads(op)):
                self.readers.setdefault(v, []).append(i)
        self.last, self.given, self.returned = last_reads(block), set(block.args), set(block.returns)
        self.used = {*self.readers, *self.returned}
        self.made = {v: i for i, op in enumerate(block.ops) for v in op.results}
        self.gathers, self.scatters = (
            [i for i, op in enumerate(block.ops) if op.name == name and sends(op)]
            for name in ("all_gather", "reduce_scatter")
        )


def _relieve(
    block: Block, mesh: Mesh, uses: _Uses, place: int, need: float, known: Mapping[Value, int]
) -> bool:
    """Makes `need` bytes less live while the op at `place` runs, or as many as can be. False if none."""
    op, freed = block.ops[place], 0
    for change in sorted(_changes(block, mesh, uses, place, known), key=lambda c: (c.sent, -c.saved)):
        if freed < need:
            change.make()
            freed += change.saved
    if freed:
        drop_unused(block)
        return True
    inside = inner_bytes(op)
    if inside > need and op.name in ("while", "case", "if"):
        for region in op.regions:
            fit_memory(region, mesh, sum(v.type.nbytes for v in region.args) + inside - need, known)
    return inner_bytes(op) < inside


def _changes(
    block: Block, mesh: Mesh, uses: _Uses, place: int, known: Mapping[Value, int]
) -> Iterator[_Change]:
    op, readers = block.ops[place], uses.readers
    moved: set[Value] = set()
    for chain in _gathered(block, uses, place):
        source, value = chain[0].operands[0], chain[-1].results[0]
        before, later = any(i < place for i in readers[value]), [i for i in readers[value] if i > place]
        held = 0 if source in uses.given or uses.last[source] > place else source.type.nbytes
        here = place in readers[value]
        if here:
            slices = slices_in(op, value, chain[0].attrs["dim"], uses.used, known) if len(chain) == 1 else []
            if not slices:
                continue
            held += sum(x.results[0].type.nbytes for x in slices)
        saved = value.type.nbytes - held
        if saved > 0 and (here or later):
            sent = (before + here + bool(later) - 1) * value.type.nbytes
            first = block.ops[later[0]] if later else None
            moved.add(value)
            make = partial(_gather_later, block, mesh, chain, op if here else None, first)
            yield _Change(sent, saved, make)
    for scatter in (block.ops[i] for i in uses.scatters if i > place):
        term = scatter.operands[0]
        made = uses.made.get(term, place)
        if made < place and len(readers[term]) == 1 and term not in uses.returned and term not in moved:
            saved = term.type.nbytes - scatter.results[0].type.nbytes
            yield _Change(0, saved, partial(_move_behind, block, scatter, block.ops[made]))
    if op.name == "while":
        users = {v: [block.ops[i] for i in at] for v, at in readers.items()}
        for k, update, scatter in sums_stacked_in(op, block, users, known):
            saved = op.operands[k].type.nbytes - scatter.results[0].type.nbytes
            yield _Change(0, saved, partial(_scatter_inside, block, mesh, op, k, update, scatter))


def _gathered(block: Block, uses: _Uses, place: int) -> Iterator[list[Op]]:
    """Gathers in front of a place, with the local ops behind each that alone use it, whose results are live there."""
    for gather in (block.ops[i] for i in uses.gathers if i < place):
        chain = [gather]
        while True:
            value = chain[-1].results[0]
            users = uses.readers.get(value, [])
            user = block.ops[users[0]] if len(users) == 1 and users[0] < place else None
            if user is None or user.name not in _LOCAL or value in uses.returned:
                break
            chain.append(user)
        if value not in uses.returned and users and users[-1] >= place:
            yield chain


# ---------------------------------------------------------------------------------------------------- gathers
def _gather_later(block: Block, mesh: Mesh, chain: list[Op], loop: Op | None, first: Op | None) -> None:
    """What `chain` gathers is gathered slice by slice inside the loop that uses it, and anew for `first` and what comes
    behind it. Behind a barrier with what else `first` waits for: XLA would gather it as early as before."""
    if loop is not None:
        _gather_inside(chain[0], loop)
    if first is None:
        return
    value = chain[-1].results[0]
    b = Builder.beside(mesh, chain[0])
    at = block.ops.index(first)
    others = {v for v in first.operands if v is not value and isinstance(v.type, TensorType)}
    waits = [v for op in reversed(block.ops[:at]) for v in op.results if v in others]
    held = [chain[0].operands[0], *waits[:1]]
    new, *waited = b.multi("optimization_barrier", held, [v.type for v in held])
    for op in chain:
        attrs = {**op.attrs, "cause": _CAUSE + op.attrs["cause"]} if op is chain[0] else op.attrs
        new = b.op(op.name, [new], op.results[0].type, attrs)
    Block([], block.ops[at:], []).replace({value: new, **dict(zip(waits, waited, strict=False))})
    block.ops[at:at] = b.block.ops


def _gather_inside(gather: Op, loop: Op) -> None:
    source, dim, body = gather.operands[0], gather.attrs["dim"], loop.regions[1]
    for k, operand in enumerate(loop.operands):
        if operand is not gather.results[0]:
            continue
        loop.operands[k] = source
        arg = body.args[k]
        retype_carry(loop, k, cast(TensorType, source.type))
        for op in [op for op in body.ops if arg in op.operands]:
            (whole,) = op.results
            sizes = list(op.attrs["slice_sizes"])
            sizes[dim] = source.type.shape[dim]
            op.attrs = {**op.attrs, "slice_sizes": tuple(sizes)}
            op.results = [Value(TensorType(tuple(sizes), source.type.dtype))]
            attrs = {**gather.attrs, "cause": _CAUSE + gather.attrs["cause"]}
            at = body.ops.index(op) + 1
            body.ops.insert(at, Op("all_gather", [op.results[0]], [whole], attrs, (), op.loc))


# ---------------------------------------------------------------------------------------------------- scatters
def _move_behind(block: Block, op: Op, other: Op) -> None:
    block.ops.remove(op)
    block.ops.insert(block.ops.index(other) + 1, op)


def _scatter_inside(block: Block, mesh: Mesh, loop: Op, k: int, update: Op, scatter: Op) -> None:
    body, part = loop.regions[1], cast(TensorType, scatter.results[0].type)
    b = Builder.beside(mesh, scatter)
    b.cause = _CAUSE + scatter.attrs["cause"]
    term = b.reduce_scatter(update.operands[1], scatter.attrs["axes"], scatter.attrs["dim"], "sum")
    at = body.ops.index(update)
    body.ops[at:at] = b.block.ops
    update.operands[1] = term
    zeros = Builder(mesh, Block([], [], []))
    loop.operands[k] = zeros.constant(0, part)
    at = block.ops.index(loop)
    block.ops[at:at] = zeros.block.ops
    retype_carry(loop, k, part)
    loop.results[k] = scatter.results[0]
    block.ops.remove(scatter)
