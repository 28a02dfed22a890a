"""chlo.ragged_dot, what JAX lowers `jax.lax.ragged_dot` to on GPUs and TPUs: a product in which groups of rows that lie one behind
the other have a matrix each, or, of two operands with such rows, a product of each group's. Rows in no group give zeros.

Devices that have rows of their own count how many of these are in each group. Those that have groups of their own take all rows
before these for one more group, whose matrix is zero, or whose product nobody reads."""

from __future__ import annotations

import math

from ...ir.graph import Op, Value
from ...ir.layout import Axes, local_block, local_type
from ...ir.types import TensorType
from ..cost import Work
from ..emit.builder import INDEX, Builder
from .base import R, Rule, Strategy, factored, shape_of
from .dot import Pair, product_factors, without_padding


def ragged_dot(op: Op) -> Rule | None:
    """None if the sizes of groups differ along other dims, or if it is a batch dim that has the groups."""
    attrs, groups = op.attrs, 0
    (ragged,), of_rhs = attrs["lhs_ragged_dimensions"], attrs["rhs_group_dimensions"]
    batch = attrs["lhs_batching_dimensions"], attrs["rhs_batching_dimensions"]
    sizes = [*shape_of(op.operands[2])]
    if len(sizes) != 1 or ragged in batch[0]:
        return None
    contract = _contract(op)
    own = Strategy((R, *(of_rhs or (R,)), R), ("sum",) if of_rhs else (0,), groups)
    left, right, result = product_factors(op, batch, contract, sizes, dict.fromkeys(of_rhs, groups))
    return factored(
        [left, right, [None]],
        [result if of_rhs else [groups, *result]],
        sizes,
        _expand,
        reduced={left[i]: "sum" for i in contract[0]},
        whole=[groups],
        extra=[own],
        linear=[((0,), ("sum",)), ((1,), ("sum",))],
        work=Work.over(op)._replace(flops=2.0 * math.prod(sizes[1:]), dtype=op.operands[0].type.dtype),
    )


def _contract(op: Op) -> Pair:
    return op.attrs["lhs_contracting_dimensions"], op.attrs["rhs_contracting_dimensions"]


def _expand(b: Builder, op: Op, args: list[Value]) -> list[Value]:
    sizes, masked = args[2], without_padding(b, op, args, _contract(op))
    (ragged,), layout = op.attrs["lhs_ragged_dimensions"], op.operands[0].layout
    assert layout is not None
    if sizes.type.dtype != INDEX:
        sizes = b.op("convert", [sizes], TensorType(sizes.type.shape, INDEX))
    if axes := layout.dims[ragged]:
        sizes = _of_rows(b, sizes, axes, masked[0].type.shape[ragged])
    of_rhs, (result,) = op.attrs["rhs_group_dimensions"], op.results
    having, dim = (op.operands[1], of_rhs[0]) if of_rhs else (result, 0)
    assert having.layout is not None and result.layout is not None
    if not (axes := having.layout.dims[dim]):
        return b.local(op, [*masked, sizes])
    block = local_block(having.layout, dim, shape_of(having)[dim], b.mesh)
    before, own = _of_groups(b, sizes, axes, block)
    sizes = b.concatenate([before, own], 0)
    if of_rhs:
        x, w = masked
        assert isinstance(x.type, TensorType)
        row = b.iota(TensorType(x.type.shape, INDEX), ragged)
        its = b.compare("GE", row, b.broadcast(before, x.type.shape, (ragged,)))  # of no group before
        masked = [b.select(its, x, b.constant(0, x.type)), b.pad(w, dim, 1, 0)]
        return b.local(op, [*masked, sizes])
    type = local_type(result.type, result.layout, b.mesh)
    assert isinstance(type, TensorType)
    more = type.with_shape((block + 1, *type.shape[1:]))
    product = b.op(op.name, [*masked, sizes], more, op.attrs)
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
