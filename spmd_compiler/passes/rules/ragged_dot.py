"""chlo.ragged_dot, what JAX lowers `jax.lax.ragged_dot` to on GPUs and TPUs: a product in which groups of rows that lie one behind
the other have a matrix each, or, of two operands with such rows, a product of each group's. Rows in no group give zeros.

Devices that have rows of their own count how many of these are in each group. Those that have groups of their own take all rows
before these for one more group, whose matrix is zero, or whose product nobody reads."""

from __future__ import annotations

import math

from ...ir.graph import Op, Value
from ...ir.layout import Axes, local_block, local_type
from ...ir.types import TensorType
from ..builder import INDEX, Builder
from ..cost import Work
from .base import R, Rule, Strategy, factored, shape_of


def ragged_dot(op: Op) -> Rule | None:
    """None if the sizes of groups differ along other dims, or if it is a batch dim that has the groups."""
    attrs, (lhs, rhs, sizes) = op.attrs, map(shape_of, op.operands)
    (ragged,) = attrs["lhs_ragged_dimensions"]
    lhs_batch, rhs_batch = attrs["lhs_batching_dimensions"], attrs["rhs_batching_dimensions"]
    lhs_contract, rhs_contract = attrs["lhs_contracting_dimensions"], attrs["rhs_contracting_dimensions"]
    if len(sizes) != 1 or ragged in lhs_batch:
        return None
    groups, of = 0, [*sizes]
    left: dict[int, int] = {}
    right = dict.fromkeys(attrs["rhs_group_dimensions"], groups)
    own = Strategy((R, *(right or (R,)), R), ("sum",) if right else (0,), groups)
    result = [] if right else [groups]
    for i, j in zip(lhs_batch + lhs_contract, rhs_batch + rhs_contract, strict=True):
        left[i] = right[j] = len(of)
        of.append(lhs[i])
    result += [left[i] for i in lhs_batch]
    for shape, factors in ((lhs, left), (rhs, right)):
        for d, size in enumerate(shape):
            if d not in factors:
                factors[d] = len(of)
                result.append(len(of))
                of.append(size)
    return factored(
        [[left[d] for d in range(len(lhs))], [right[d] for d in range(len(rhs))], [None]],
        [result],
        of,
        _expand,
        reduced={left[i]: "sum" for i in lhs_contract},
        whole=[groups],
        extra=[own],
        linear=[((0,), ("sum",)), ((1,), ("sum",))],
        work=Work.over(op)._replace(flops=2.0 * math.prod(of[1:]), dtype=op.operands[0].type.dtype),
    )


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    lhs, rhs, sizes = args
    contract = op.attrs["lhs_contracting_dimensions"], op.attrs["rhs_contracting_dimensions"]
    masked: list[Value] = []
    for value, arg, dims in zip(op.operands, (lhs, rhs), contract, strict=False):
        assert value.layout is not None
        masked.append(b.masked(arg, value.layout, value.type, dims, 0))
    (ragged,), layout = op.attrs["lhs_ragged_dimensions"], op.operands[0].layout
    assert layout is not None
    if sizes.type.dtype != INDEX:
        sizes = b.op("convert", [sizes], TensorType(sizes.type.shape, INDEX))
    if axes := layout.dims[ragged]:
        sizes = _of_rows(b, sizes, axes, lhs.type.shape[ragged])
    of_rhs, (result,) = op.attrs["rhs_group_dimensions"], op.results
    having, dim = (op.operands[1], of_rhs[0]) if of_rhs else (result, 0)
    assert having.layout is not None and result.layout is not None
    if not (axes := having.layout.dims[dim]):
        return b.local(op, [*masked, sizes])
    block = local_block(having.layout, dim, shape_of(having)[dim], b.mesh)
    before, sizes = _of_groups(b, sizes, axes, block)
    if of_rhs:
        x, w = masked
        assert isinstance(x.type, TensorType)
        row = b.iota(TensorType(x.type.shape, INDEX), ragged)
        its = b.compare("GE", row, b.broadcast(before, x.type.shape, (ragged,)))  # of no group before
        masked = [b.select(its, x, b.constant(0, x.type)), b.pad(w, dim, 1, 0)]
        return b.local(op, [*masked, b.concatenate([before, sizes], 0)])
    type = local_type(result.type, result.layout, b.mesh)
    assert isinstance(type, TensorType)
    more = type.with_shape((block + 1, *type.shape[1:]))
    product = b.op(op.name, [*masked, b.concatenate([before, sizes], 0)], more, op.attrs)
    return [b.slice(product, 0, 1, block + 1)]


def _of_groups(b: Builder, sizes: Value, axes: Axes, block: int) -> tuple[Value, Value]:
    """How many rows are before this device's `block` of groups, i32[1], and in each of these."""
    sizes = b.pad(sizes, 0, 0, block * b.mesh.axes_size(axes) - sizes.type.shape[0])
    start = b.offset(axes, block)
    before = b.binary("subtract", _ends(b, sizes), sizes)
    return b.dynamic_slice(before, 0, start, 1), b.dynamic_slice(sizes, 0, start, block)


def _of_rows(b: Builder, sizes: Value, axes: Axes, rows: int) -> Value:
    """How many of this device's `rows` are in each group."""
    type, ends = sizes.type, _ends(b, sizes)
    assert isinstance(type, TensorType)
    low = b.broadcast(b.offset(axes, rows), type.shape)
    high = b.binary("add", low, b.constant(rows, type))

    def within(at: Value) -> Value:
        return b.binary("minimum", b.binary("maximum", at, low), high)

    return b.binary("subtract", within(ends), within(b.binary("subtract", ends, sizes)))


def _ends(b: Builder, sizes: Value) -> Value:
    """Where each group ends: the sums of the sizes up to there, by doubling."""
    step = 1
    while step < sizes.type.shape[0]:
        sizes = b.binary("add", sizes, b.pad(sizes, 0, step, -step))
        step *= 2
    return sizes


RULES = {"chlo.ragged_dot": ragged_dot}
