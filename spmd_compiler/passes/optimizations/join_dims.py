"""All-gathers of one value along several dims become one, and so do reduce-scatters: over all of their axes, along a dim in front that
each device moves to where it belongs. That is one message, with as many bytes; on CPUs it takes 0.3 to 0.9 of the time, since XLA
moves numbers for each dim that is not the first one anyway. But a large result is gathered along its first dim by itself, last: it lies
in place then, where all of it would be moved, in 0.5 to 0.9 of the time and hardly more than half of the memory. And all-reduces of one
value over several axes, one after the other as a program may have them in its manual regions, become one over all of these, which sends
less."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

from ...ir.graph import Block, Op, Value
from ...ir.mesh import Mesh, merge_axes
from ...ir.optable import sends
from ..emit.builder import Builder
from ..estimate import read_in

REDUCES, GATHERS, BOTH = ("all_reduce",), ("all_gather",), ("all_gather", "reduce_scatter")
LARGE, HUGE = 1 << 17, 1 << 23  # bytes that it costs more to move than a message: on CPUs, on GPUs and TPUs
Chain = Sequence[Op]  # in the order in which they run


def join_dims(
    block: Block, mesh: Mesh, names: Collection[str] = BOTH, alone: bool = False, large: int = LARGE
) -> None:
    """Changes a block that no one else holds, and the blocks inside. names: of the collectives that are joined. alone: only those
    that could go together with others of their axes in no other way than joined. large: bytes of a result that is gathered
    along its first dim by itself."""
    for op in block.ops:
        for region in op.regions:
            join_dims(region, mesh, names, alone, large)
    chains = _chains(block, mesh, names)
    if alone:
        chains = _with_same_partners(block, chains)
    instead = {op: [] for chain in chains for op in chain[:-1]}
    for chain in chains:
        b = Builder.beside(mesh, chain[-1])
        b.cause = chain[-1].attrs.get("cause", "")
        value, last = chain[0].operands[0], _in_place(chain, large)
        if rest := [op for op in chain if op not in last]:
            value = _JOINED[chain[0].name](b, value, rest)
        if last:
            b.all_gather(value, _axes(last[::-1]), last[0].attrs["dim"])
        b.gives(chain[-1].results)
        instead[chain[-1]] = b.block.ops
    if chains:
        block.ops[:] = [new for op in block.ops for new in instead.get(op, (op,))]


def _chains(block: Block, mesh: Mesh, names: Collection[str]) -> list[Chain]:
    """Two or more such collectives of one kind, each of which alone reads what the one before it makes."""
    used = Counter(read_in(block))
    ends: dict[Value, list[Op]] = {}
    for op in block.ops:
        if op.name not in names or not sends(op) or len(op.operands) != 1:
            continue
        chain = ends.get(op.operands[0], []) if used[op.operands[0]] == 1 else []
        alike = chain and (chain[0].name, chain[0].attrs.get("kind")) == (op.name, op.attrs.get("kind"))
        if alike and not any(_overlap(mesh, op, before) for before in chain):
            del ends[op.operands[0]]
            ends[op.results[0]] = [*chain, op]
        else:
            ends[op.results[0]] = [op]
    return [chain for chain in ends.values() if len(chain) > 1]


def _overlap(mesh: Mesh, op: Op, other: Op) -> bool:
    """Whether they run over pieces of the same digits of the devices' numbers."""
    pieces = [[mesh.stride_and_size(a) for a in x.attrs["axes"]] for x in (op, other)]
    return any(max(s, t) < min(s * n, t * m) for s, n in pieces[0] for t, m in pieces[1])


def _with_same_partners(block: Block, chains: list[Chain]) -> list[Chain]:
    """Those all of whose axes are only those of chains over the same axes, in the same order."""
    partners: dict[tuple, set[tuple]] = {}
    joined = {op: tuple(o.attrs["axes"] for o in chain) for chain in chains for op in chain}
    for op in block.ops:
        if op.name in BOTH and sends(op):
            key = op.name, op.attrs["axes"]
            partners.setdefault(key, set()).add(joined.get(op, (op.attrs["axes"],)))
    return [c for c in chains if all(len(partners[op.name, op.attrs["axes"]]) == 1 for op in c)]


def _in_place(chain: Chain, large: int) -> Chain:
    """The gathers of a large result along its first dim."""
    whole = chain[-1].results[0].type
    if chain[0].name != "all_gather" or whole.nbytes < large:
        return []
    return [op for op in chain if math.prod(whole.shape[: op.attrs["dim"]]) == 1]


def _axes(ops: Chain) -> tuple[str, ...]:
    return tuple(a for op in ops for a in op.attrs["axes"])


def gather(b: Builder, value: Value, chain: Chain) -> Value:
    """What is gathered later lies outside of what was gathered before."""
    shape, later = value.type.shape, chain[::-1]
    sizes = [b.mesh.axes_size(op.attrs["axes"]) for op in later]
    blocks = b.all_gather(b.reshape(value, (1, *shape)), _axes(later), 0)
    order: list[int] = []
    whole = [*shape]
    for d in range(len(shape)):
        order += [*(k for k, op in enumerate(later) if op.attrs["dim"] == d), len(sizes) + d]
    for op, n in zip(later, sizes, strict=True):
        whole[op.attrs["dim"]] *= n
    return b.reshape(b.transpose(b.reshape(blocks, (*sizes, *shape)), order), tuple(whole))


def reduce(b: Builder, value: Value, chain: Chain) -> Value:
    """In which order doesn't matter."""
    over = {a for op in chain for a in op.attrs["axes"]}
    axes = tuple(sorted(over, key=lambda a: (-b.mesh.stride_and_size(a)[0], a)))
    return b.all_reduce(value, merge_axes(b.mesh, axes), chain[0].attrs["kind"])


def scatter(b: Builder, value: Value, chain: Chain) -> Value:
    """What is scattered later is cut within what was cut before."""
    part = chain[-1].results[0].type
    sizes = [b.mesh.axes_size(op.attrs["axes"]) for op in chain]
    cut: list[int] = []
    places: dict[int, int] = {}
    for d, n in enumerate(part.shape):
        for k, op in enumerate(chain):
            if op.attrs["dim"] == d:
                places[k] = len(cut)
                cut.append(sizes[k])
        places[len(chain) + d] = len(cut)
        cut.append(n)
    moved = b.transpose(b.reshape(value, tuple(cut)), [places[k] for k in range(len(places))])
    blocks = b.reshape(moved, (math.prod(sizes), *part.shape))
    mine = b.reduce_scatter(blocks, _axes(chain), 0, chain[0].attrs["kind"])
    return b.op("reshape", [mine], part)


_JOINED = {"all_gather": gather, "reduce_scatter": scatter, "all_reduce": reduce}
