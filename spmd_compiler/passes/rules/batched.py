"""Ops that work on whole trailing dims (or one dim) of many independent problems: the other dims are batch and shard.

cholesky, triangular_solve, and the custom calls of LAPACK, cuSOLVER and friends.
"""

from __future__ import annotations

import math
import re

from ...ir.graph import Op, Raw, Value
from ..cost import Work
from ..emit.builder import Builder
from .base import Dims, Rule, factored, numbered, shape_of
from .custom import cleaned


def cholesky(op: Op) -> Rule:
    shape = shape_of(op.operands[0])
    dims: Dims = (*numbered(shape[:-2]), None, None)
    return factored(
        [dims], [dims], shape[:-2], Builder.local, work=Work(flops=math.prod(shape) * shape[-1] / 3)
    )


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
        Builder.local,
        linear=[((1,), ("sum",))],
        work=Work(flops=math.prod(b) * a[-1]),
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


_BATCH_DIMS = re.compile(r'\bnum_batch_dims = "(\d+)"')


def is_known_kernel(op: Op) -> bool:
    target = str(op.attrs.get("call_target_name", ""))
    return target.startswith(BATCHED_TARGETS) and not op.attrs.get("called_computations")


def declares_batch(op: Op) -> bool:
    return _declared_rank(op) is not None and not op.attrs.get("called_computations")


def batched_call(op: Op) -> Rule:
    """Where a solver has many right-hand sides, these are independent too. Scalars, such as factors, are of all problems."""
    values = (*op.operands, *op.results)
    rank = _batch_rank(op)
    lead = values[0].type.shape[:rank]
    if any(v.type.rank and v.type.shape[:rank] != lead for v in values):
        lead = ()
    batch = numbered(lead)
    dims: list[Dims] = [
        (*batch, *(None for _ in v.type.shape[len(lead) :])) if v.type.rank else () for v in values
    ]
    sizes = list(lead)
    n, linear = len(op.operands), ()
    sides = _right_hand_sides(op)
    if sides is not None:
        last, d = n - 1, values[n - 1].type.rank - sides
        for i in (last, n + _solution(op)):
            dims[i] = (*dims[i][:d], len(lead), *dims[i][d + 1 :])
        sizes.append(values[last].type.shape[d])
        linear = [((last,), ("sum",))] if len(op.results) == 1 else ()
    largest = max((v.type.shape for v in op.operands), key=len)
    work = Work(flops=10 * math.prod(largest) * (largest or (1,))[-1])
    rule = factored(dims[:n], dims[n:], sizes, _expand_call, linear=linear, work=work)
    rule.fallback = not sizes
    return rule


def _expand_call(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    """A kernel must not meet what padding happens to hold: a NaN may keep it from ending, a pivot may point anywhere."""
    attrs = {k: v for k, v in op.attrs.items() if k != "sharding_rule"}  # JAX's, of the whole shapes
    return b.local(op, cleaned(b, op, args), attrs)


def _declared_rank(op: Op) -> int | None:
    """The batch dims that JAX declares of its kernels."""
    attrs = op.attrs.get("mhlo.frontend_attributes")
    found = _BATCH_DIMS.search(attrs.text) if isinstance(attrs, Raw) else None
    return int(found[1]) if found else None


def _batch_rank(op: Op) -> int:
    declared = _declared_rank(op)
    if declared is not None:
        return declared
    largest = max((v.type.rank for v in op.operands), default=0)
    # pivots -> permutation works on vectors, all others on matrices
    return max(0, largest - (1 if "pivots" in op.attrs["call_target_name"] else 2))


_SOLVER = re.compile(r"(lapack|cusparse|hipsparse)_\w*(trsm|gtsv|ormqr|unmqr)")


def _right_hand_sides(op: Op) -> int | None:
    """Of a solver the dim, counted from the end, of the last operand that numbers its right-hand sides."""
    found = _SOLVER.match(str(op.attrs.get("call_target_name", "")))
    config = op.attrs.get("mhlo.backend_config")
    if found is None or not isinstance(config, Raw) or op.operands[-1].type.rank < 2:
        return None
    if found[2] == "gtsv":
        return 1
    side = re.search(r"\b(?:side|left) = (\w+)", config.text)
    if side is None:
        return None
    return 1 if side[1] in (str(ord("L")), "true") else 2


def _solution(op: Op) -> int:
    """The result that has the shape of the right-hand sides."""
    return max(j for j, v in enumerate(op.results) if v.type is op.operands[-1].type)


RULES = {
    "cholesky": cholesky,
    "triangular_solve": triangular_solve,
}
