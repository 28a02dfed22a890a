"""Clamps the starts of dynamic slices that are sliced dynamically again, as their definition does anyway. A gather of one
lookup is such a slice to XLA.

XLA makes one slice of the two, from the sum of their starts, and clamps the first start only so far that the smaller slice
fits: one that was out of range then reads from the wrong place (openxla/xla#49122, also on one device). On CPU an all-to-all
is such slices too (`ir.cpu_forms`).
"""

from __future__ import annotations

from ...ir.graph import Block, Op
from ...ir.mesh import Mesh
from ..emit.builder import Builder
from ..rules import lookups, slicing


def clamp_starts(block: Block, mesh: Mesh) -> None:
    """Changes a block that no one else holds, and the blocks inside."""
    for op in block.ops:
        for region in op.regions:
            clamp_starts(region, mesh)
    sliced = {op.operands[0] for op in block.ops if op.name == "dynamic_slice"}
    sliced.update(v for op in block.ops if op.name == "all_to_all" for v in op.operands)
    new: list[Op] = []
    for op in block.ops:
        clamp = _CLAMPS.get(op.name)
        if clamp is not None and op.results[0] in sliced:
            b = Builder.beside(mesh, op)
            clamp(b, op)
            new += b.block.ops
        new.append(op)
    block.ops[:] = new


def _dynamic_slice(b: Builder, op: Op) -> None:
    lasts = [n - k for n, k in zip(op.operands[0].type.shape, op.attrs["slice_sizes"], strict=True)]
    starts = [slicing.clamped(b, start, last) for start, last in zip(op.operands[1:], lasts, strict=True)]
    op.operands = [op.operands[0], *starts]


def _gather(b: Builder, op: Op) -> None:
    at, (operand, indices) = op.attrs, op.operands
    found = lookups.index_dims(op, indices.type.rank)
    if not at["start_index_map"] or any(indices.type.shape[d] != 1 for d in found):
        return
    apart = lookups.take_apart(b, op, indices, at.get("start_indices_batching_dims", ()))
    lasts = [operand.type.shape[d] - at["slice_sizes"][d] for d in at["start_index_map"]]
    parts = [lookups.clamped(b, part, last) for part, last in zip(apart.parts, lasts, strict=True)]
    op.operands = [operand, apart._replace(parts=parts).joined(b)]
    op.attrs = {
        **at,
        "index_vector_dim": len(apart.shape),
        "start_indices_batching_dims": tuple(apart.batching),
    }


_CLAMPS = {"dynamic_slice": _dynamic_slice, "gather": _gather}
