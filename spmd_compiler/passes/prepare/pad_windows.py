"""Pads that join the window op which reads them: padding and dilation of a reduce_window or a convolution, and the
padding around a select_and_scatter that is cropped again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ...ir.graph import Op
from .chains import Defs, fill_of, same_scalar


class _Joined(NamedTuple):
    padding: tuple[tuple[int, int], ...]
    base: tuple[int, ...]


def _join(
    pad: Op, dims: Sequence[int], padding: Sequence[tuple[int, int]], base: Sequence[int]
) -> _Joined | None:
    """Padding and dilation along `dims` that do what the pad and the op's own do together. None if they can't, or if it
    would be negative: XLA's CPU backend gets convolutions with negative padding wrong."""
    at = pad.attrs
    sides: list[tuple[int, int]] = []
    dilation: list[int] = []
    for d, own, step in zip(dims, padding, base, strict=True):
        low, high, inside = (at[k][d] for k in ("edge_padding_low", "edge_padding_high", "interior_padding"))
        if step > 1 and (low or high or inside):
            return None
        if (low < 0 and own[0] > 0) or (high < 0 and own[1] > 0):
            return None
        sides.append((low + own[0], high + own[1]))
        dilation.append(step * (inside + 1))
    if any(x < 0 for side in sides for x in side):
        return None
    return _Joined(tuple(sides), tuple(dilation))


def reduce_window(op: Op, defs: Defs) -> list[Op] | None:
    """A pad with the init is the op's own padding."""
    pad = defs.get(op.operands[0])
    if pad is None or pad.name != "pad" or len(op.operands) != 2:
        return None
    if not same_scalar(pad.operands[1], op.operands[1], defs):
        return None
    rank = op.results[0].type.rank
    padding = op.attrs.get("padding") or ((0, 0),) * rank
    base = op.attrs.get("base_dilations") or (1,) * rank
    joined = _join(pad, range(rank), padding, base)
    if joined is None:
        return None
    attrs = {**op.attrs, "padding": joined.padding, "base_dilations": joined.base}
    return [Op(op.name, [pad.operands[0], op.operands[1]], op.results, attrs, op.regions, op.loc)]


def convolution(op: Op, defs: Defs) -> list[Op] | None:
    """Zeros around and between the positions of spatial dims are the op's own padding and dilation."""
    pad = defs.get(op.operands[0])
    if pad is None or pad.name != "pad":
        return None
    fill = fill_of(pad.operands[1], defs)
    if fill is None or fill != 0:
        return None
    at = op.attrs
    dims = at["input_spatial_dimensions"]
    for d in (at["input_batch_dimension"], at["input_feature_dimension"]):
        if any(pad.attrs[k][d] for k in ("edge_padding_low", "edge_padding_high", "interior_padding")):
            return None
    padding = at.get("padding") or ((0, 0),) * len(dims)
    base = at.get("lhs_dilation") or (1,) * len(dims)
    joined = _join(pad, dims, padding, base)
    if joined is None:
        return None
    attrs = {**at, "padding": joined.padding, "lhs_dilation": joined.base}
    return [Op(op.name, [pad.operands[0], op.operands[1]], op.results, attrs, op.regions, op.loc)]


def cropped_scatter(op: Op, defs: Defs) -> list[Op] | None:
    """slice(select_and_scatter(pad(x))) that ends where it began: the gradient of max-pooling as JAX writes it."""
    scatter = defs.get(op.operands[0])
    if (
        scatter is None
        or scatter.name != "select_and_scatter"
        or any(map(any, scatter.attrs.get("padding") or ()))
    ):
        return None
    pad = defs.get(scatter.operands[0])
    if pad is None or pad.name != "pad" or any(pad.attrs["interior_padding"]):
        return None
    low, high = pad.attrs["edge_padding_low"], pad.attrs["edge_padding_high"]
    shape = pad.operands[0].type.shape
    if op.results[0].type.shape != shape or op.attrs["start_indices"] != low or min((*low, *high)) < 0:
        return None
    attrs = {**scatter.attrs, "padding": tuple(zip(low, high, strict=True))}
    operands = [pad.operands[0], *scatter.operands[1:], pad.operands[1]]
    return [Op("padded_select_and_scatter", operands, op.results, attrs, scatter.regions, op.loc)]
