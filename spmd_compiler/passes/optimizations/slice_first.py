"""Slices of what is gathered are gathered one by one, where the whole is more than is held for one collective.

The layers of a model may be slices of one stacked parameter. Gathered whole it is live whole, as long as one of them is to
come; gathered layer by layer, where each is used first, each is live from there on, for as many bytes, and
`combine_collectives` puts those together that are small.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from ...ir.graph import Block, Op, Value
from ...ir.mesh import Mesh
from ...ir.optable import sends
from ...ir.types import TensorType
from ..emit.builder import Builder
from ..estimate import readers

LOCAL = ("reshape", "transpose", "convert")


def slice_first(block: Block, mesh: Mesh, most: int) -> None:
    """Changes a block that no one else holds, and the blocks inside. most: bytes that may be gathered at once."""
    for op in block.ops:
        for region in op.regions:
            slice_first(region, mesh, most)
    large = [
        op for op in block.ops if op.name == "all_gather" and sends(op) and op.results[0].type.nbytes > most
    ]
    if not large:
        return
    users, kept = readers(block), set(block.returns)
    gone, before = set[Op](), dict[Op, list[Op]]()
    for op in large:
        parts = users.get(op.results[0], [])
        if op.results[0] in kept or not _are_parts(op, parts):
            continue
        gone.add(op)
        for part in parts:
            chain = _chain(part, users, kept)
            gone.update(chain)
            first = users.get(chain[-1].results[0], [part])[0]
            before.setdefault(first, []).extend([*_gathered(op, part, mesh), *chain[1:]])
    block.ops[:] = [
        new for op in block.ops for new in (*before.get(op, ()), op) if new is not op or op not in gone
    ]


def _chain(part: Op, users: Mapping[Value, Sequence[Op]], kept: Container[Value]) -> list[Op]:
    """A slice, and the local ops behind it that alone use what it makes."""
    chain = [part]
    while (value := chain[-1].results[0]) not in kept and len(found := users.get(value, ())) == 1:
        if found[0].name not in LOCAL:
            break
        chain.append(found[0])
    return chain


def _are_parts(gather: Op, users: Sequence[Op]) -> bool:
    """Whether all users are slices that cut other dims than the one gathered, and need no more than the whole."""
    dim, whole = gather.attrs["dim"], gather.results[0].type
    return sum(op.results[0].type.nbytes for op in users) <= whole.nbytes and all(
        op.name == "slice" and op.results[0].type.shape[dim] == whole.shape[dim] for op in users
    )


def _gathered(gather: Op, part: Op, mesh: Mesh) -> list[Op]:
    """The ops that slice what a gather reads, and gather that."""
    b, dim, (value,) = Builder.beside(mesh, part), gather.attrs["dim"], gather.operands
    size, cut = value.type.shape[dim], part.results[0].type
    limits = tuple(size if d == dim else x for d, x in enumerate(part.attrs["limit_indices"]))
    shape = (*cut.shape[:dim], size, *cut.shape[dim + 1 :])
    local = b.op("slice", [value], TensorType(shape, cut.dtype), part.attrs | {"limit_indices": limits})
    b.op("all_gather", [local], cut, gather.attrs)
    b.gives(part.results)
    return b.block.ops
