"""Ops that work on whole trailing dims (or one dim) of many independent problems: the other dims are batch and shard.

cholesky, triangular_solve, and the custom calls of LAPACK, cuSOLVER and friends.
"""

from __future__ import annotations

import math

from ...ir.graph import Op, Value
from ..builder import Builder
from ..cost import FLOP
from .base import Dims, Rule, factored, numbered, shape_of


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    return b.local(op, args)


def cholesky(op: Op) -> Rule:
    shape = shape_of(op.operands[0])
    dims: Dims = (*numbered(shape[:-2]), None, None)
    return factored([dims], [dims], shape[:-2], _expand, work=FLOP * math.prod(shape) * shape[-1] / 3)


def triangular_solve(op: Op) -> Rule:
    """a x = b (or x a = b): right-hand sides are independent, and the solution is linear in b."""
    a, b = shape_of(op.operands[0]), shape_of(op.operands[1])
    n = len(a) - 2
    batch = numbered(a[:-2])
    sides: Dims = (None, n) if op.attrs["left_side"] else (n, None)
    free = b[-1] if op.attrs["left_side"] else b[-2]
    return factored(
        [(*batch, None, None), (*batch, *sides)],
        [(*batch, *sides)],
        [*a[:-2], free],
        _expand,
        linear=[((1,), ("sum",))],
        work=FLOP * math.prod(b) * a[-1],
    )


# kernels of JAX's linear algebra: every operand and result has the same leading batch dims
BATCHED_TARGETS = (
    "lapack_",
    "cusolver_",
    "cublas_",
    "hipsolver_",
    "hipblas_",
    "cusparse_",
    "cu_",
    "hip_",
    "Eigh",
    "Qr",
    "LuDecomposition",
    "ProductOfElementaryHouseholderReflectors",
)


def is_batched_call(op: Op) -> bool:
    target = str(op.attrs.get("call_target_name", ""))
    return target.startswith(BATCHED_TARGETS) and not op.attrs.get("called_computations")


def batched_call(op: Op) -> Rule:
    values = (*op.operands, *op.results)
    largest = max((v.type.shape for v in op.operands), key=len)
    # pivots -> permutation works on vectors, all others on matrices
    rank = max(0, len(largest) - (1 if "pivots" in op.attrs["call_target_name"] else 2))
    lead = largest[:rank]
    if any(v.type.shape[:rank] != lead for v in values):
        rank, lead = 0, ()
    batch = numbered(lead)
    dims: list[Dims] = [(*batch, *(None for _ in v.type.shape[rank:])) for v in values]
    n = len(op.operands)
    return factored(
        dims[:n], dims[n:], lead, _expand, work=FLOP * 10 * math.prod(largest) * (largest or (1,))[-1]
    )


RULES = {
    "cholesky": cholesky,
    "triangular_solve": triangular_solve,
}
