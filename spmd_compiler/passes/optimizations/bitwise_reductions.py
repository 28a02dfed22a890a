"""Reductions between devices that XLA has on no CPU and no GPU: and, or, xor of integers, and xor of booleans. They become
exchanges that send as much (`reduce_by_exchange`)."""

from __future__ import annotations

from typing import cast

from ...ir.graph import Block, Op, Value
from ...ir.mesh import Mesh
from ...ir.types import TensorType
from ..emit.builder import Builder
from ..emit.reduce_by_exchange import reduce_by_exchange, rewrite_collectives


def expand_bitwise(block: Block, mesh: Mesh) -> None:
    """Replaces them in a block that no one else holds."""
    rewrite_collectives(block, mesh, _emit)


def _emit(b: Builder, op: Op, value: Value) -> Value | None:
    if op.name not in ("all_reduce", "reduce_scatter"):
        return None
    boolean = cast(TensorType, value.type).dtype == "i1"
    lacking = ("xor",) if boolean else ("and", "or", "xor")
    return reduce_by_exchange(b, op, value) if op.attrs["kind"] in lacking else None
