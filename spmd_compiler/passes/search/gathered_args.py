"""Arguments that XLA's partitioners gather before anything else, so that every device computes what is made of them; also what is
made and then sorted, transformed, or summed over by several products.

Where that is little data it sends least, though work is repeated. The search weighs the work and may go past it, so that plain
propagation also begins from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations

from ...ir.graph import Block, Op, Value
from ...ir.layout import Layout
from ...ir.optable import ELEMENTWISE
from ..estimate import PRODUCTS
from .engine import Engine

Seen = Mapping[Value, Layout]
PARTS = ("dynamic_slice", "reshape")


def scanned_args(engine: Engine, body: Block) -> Seen:
    """Arguments that are sliced along a dim on which they are sharded, as by a scan over it, without the axes on such dims."""
    return _whole_along(engine, _sliced(body, {v: v for v in body.args}))


def contested_args(engine: Engine, body: Block) -> Seen:
    """Arguments with several axes on a dim, of which an assignment gathers some, since other operands have these on another dim:
    without all axes on such dims. GSPMD, which knows no axes but numbers of tiles, can't gather some; nor does Shardy in loops."""
    seen: dict[Value, Layout] = {}
    for value, arg in _parts(body, {v: v for v in body.args}):
        layout, given = engine.layouts[value], engine.given(arg.layout)
        if given is None or len(layout.axes) < 2:
            continue
        for wanted in engine.wanted(value):
            for axes in layout.dims:
                left = [a for a in axes if a in wanted.axes]
                if 0 < len(left) < len(axes) and not given.axes.isdisjoint(axes):
                    seen[arg] = seen.get(arg, given).drop(axes)
    return seen


def broadcast_args(engine: Engine, body: Block) -> Seen:
    """Arguments that are broadcast along other dims, as biases are, to go with values that have their axes there: without these."""
    seen: dict[Value, Layout] = {}
    parts = dict(_parts(body, {v: v for v in body.args}))
    for op in body.walk():
        if op.name == "broadcast_in_dim" and op.operands[0] in parts:
            parts[op.results[0]] = parts[op.operands[0]]
        elif op.name in ELEMENTWISE:
            for v, other in permutations(op.operands, 2):
                given = engine.given(parts[v].layout) if v in parts else None
                if given is None or parts[v].type.size == v.type.size:
                    continue
                own, taken = engine.layouts[v].placement, engine.layouts[other].placement
                contested = [a for a in given.axes if a in own and taken.get(a, own[a]) != own[a]]
                if contested:
                    seen[parts[v]] = seen.get(parts[v], given).drop(contested)
    return seen


def shared_args(engine: Engine, body: Block) -> Seen:
    """Arguments that products cut along what they sum over, with other operands that are not cut so before, where one gather costs
    less than to reduce all these sums: without the axes there."""
    parts = [
        (v, arg, layout)
        for v, arg in _parts(body, {v: v for v in body.args})
        if (layout := engine.given(arg.layout))
    ]
    return _summed_over(engine, body, parts)


def shared_values(engine: Engine, body: Block) -> Seen:
    """The same of what is made before, outside of loops, behind which sums may be reduced once."""
    parts = dict(_parts(body, {v: v for v in body.args}))
    operands = dict.fromkeys(
        v for op in body.ops if op.name in PRODUCTS for v in op.operands if v not in parts
    )
    return _summed_over(engine, body, [(v, v, engine.layouts[v]) for v in operands])


def _summed_over(engine: Engine, body: Block, parts: Iterable[tuple[Value, Value, Layout]]) -> Seen:
    """What is to be gathered of values that products read, parts of others that have a layout."""
    products: dict[Value, list[tuple[Op, Value]]] = {}
    for op in body.walk():
        if op.name in PRODUCTS:
            left, right = op.operands
            products.setdefault(left, []).append((op, right))
            products.setdefault(right, []).append((op, left))
    seen: dict[Value, Layout] = {}
    for value, whole, layout in parts:
        if value not in products:
            continue
        given = seen.get(whole, layout)
        paid, summed = 0.0, set[str]()
        for op, other in products[value]:
            (result,) = op.results
            made = engine.layouts[result]
            if over := given.axes.intersection(made.partial_axes) - engine.layouts[other].axes:
                summed |= over
                paid += engine.weights.get(op, 1) * engine.costs.serve(
                    result.type, made, engine.wanted(result)
                )
        gathered = given.drop(summed)
        if summed and engine.costs.relayout(whole.type, given, gathered) < paid:
            seen[whole] = gathered
    return seen


def transformed_values(engine: Engine, body: Block) -> Seen:
    """What is sorted or transformed along dims on which it is sharded, without the axes there, and so arguments that this is made
    from part by part: XLA's partitioners gather them."""
    seen = _whole_along(engine, _transformed(body))
    for op in body.walk():
        if op.name in ("fft", "sort"):
            for value in op.operands:
                layout = engine.layouts.get(value)  # blocks of one device have none
                if layout is not None and (axes := [a for d in _mixed(op) for a in layout.dims[d]]):
                    seen[value] = layout.drop(axes)
    return seen


def crossing_args(engine: Engine, body: Block, yielding: int) -> Seen:
    """Arguments of products that have an axis along different dims, one of them without it: that which is summed over along it, or
    if the result has both dims, the first or second operand, as `yielding` says. The other one stays where it is, as where a
    partitioner propagates from there."""
    seen: dict[Value, Layout] = {}
    whole = {v: arg for v, arg in _parts(body, {v: v for v in body.args}) if v.type == arg.type}
    for op in body.walk():
        if op.name != "dot_general" or not whole.keys() >= {*op.operands}:
            continue
        args = [whole[v] for v in op.operands]
        layouts = [x for v in args if (x := seen.get(v) or engine.given(v.layout)) is not None]
        if len(layouts) < len(args):
            continue
        left, right = (_lines(op, k, x) for k, x in enumerate(layouts))
        leaving: tuple[list[str], list[str]] = [], []
        for axis in left.keys() & right.keys():
            lines = left[axis], right[axis]
            if lines[0] != lines[1] and None in lines:
                leaving[lines.index(None) ^ 1].append(axis)
            elif lines[0] is None or lines[0] != lines[1]:
                leaving[yielding].append(axis)
        demands = engine.choices[op].demands
        if all(wanted.axes.isdisjoint(axes) for wanted, axes in zip(demands, leaving, strict=True)):
            continue  # they are gathered anyway
        for v, layout, axes in zip(args, layouts, leaving, strict=True):
            if axes:
                seen[v] = layout.drop(axes)
    return seen


def weights(engine: Engine, body: Block) -> Seen:
    """Arguments that products read, without the axes along which other operands of such products are cut on dims of their own: XLA
    gathers weights on the axes of the batch."""
    whole = {v: arg for v, arg in _parts(body, {v: v for v in body.args}) if v.type == arg.type}
    read: dict[Value, Layout] = {}
    axes: set[str] = set()
    for op in body.walk():
        if op.name != "dot_general":
            continue
        for k in (1, 0):
            v, other = op.operands[k], op.operands[1 - k]
            given = engine.given(whole[v].layout) if v in whole else None
            layout = engine.layouts.get(other)  # blocks of one device have none
            if given is None or layout is None or (k == 0 and other in whole):
                continue
            read[whole[v]] = given
            own = [a for a, line in _lines(op, 1 - k, layout).items() if line is None]
            axes.update(given.axes.intersection(own))
    return {v: given.drop(axes) for v, given in read.items() if not given.axes.isdisjoint(axes)}


def _whole_along(engine: Engine, cut: Iterable[tuple[Value, Iterable[int]]]) -> dict[Value, Layout]:
    """Arguments without the axes on some of their dims, those that have any there."""
    seen: dict[Value, Layout] = {}
    for value, dims in cut:
        layout = seen.get(value) or engine.given(value.layout)
        if layout is not None and (axes := [a for d in dims for a in layout.dims[d]]):
            seen[value] = layout.drop(axes)
    return seen


def _lines(op: Op, operand: int, layout: Layout) -> dict[str, tuple[str, int] | None]:
    """Per axis what it cuts a product's operand along: a dim that the other one has too, or None, one of its own."""
    lines: dict[str, tuple[str, int] | None] = dict.fromkeys(layout.placement)
    for kind in ("contract", "batch"):
        for k, d in enumerate(op.attrs[kind][operand]):
            lines |= dict.fromkeys(layout.dims[d], (kind, k))
    return lines


def _sliced(block: Block, args: dict[Value, Value]) -> Iterator[tuple[Value, list[int]]]:
    """Arguments, and the dims along which they are sliced, also in loops that they pass through. args: by what stands for them."""
    for op in block.ops:
        if op.name == "dynamic_slice" and op.operands[0] in args:
            value = op.operands[0]
            sizes = zip(value.type.shape, op.attrs["slice_sizes"], strict=True)
            yield args[value], [d for d, (size, part) in enumerate(sizes) if part < size]
        elif op.name == "while":
            yield from _sliced(op.regions[1], _inside(op, args))


def _transformed(body: Block) -> Iterator[tuple[Value, Iterable[int]]]:
    """Arguments, and the dims along which they are transformed."""
    parts = dict(_parts(body, {v: v for v in body.args}))
    for op in body.walk():
        if op.name == "fft" and (arg := parts.get(op.operands[0])) is not None:
            yield arg, _mixed(op)


def _mixed(op: Op) -> Sequence[int]:
    """The dims that an op sorts or transforms along."""
    if op.name == "sort":
        return (op.attrs["dimension"],)
    rank = op.operands[0].type.rank
    return range(rank - len(op.attrs["fft_length"]), rank)


def _parts(block: Block, args: dict[Value, Value]) -> Iterator[tuple[Value, Value]]:
    """What is an argument, or a slice of it as a loop over it reads it, with the argument. args: by what stands for them."""
    yield from args.items()
    parts = dict(args)
    for op in block.ops:
        if op.name in PARTS and op.operands[0] in parts:
            parts[op.results[0]] = parts[op.operands[0]]
            yield op.results[0], parts[op.results[0]]
        elif op.name == "while":
            yield from _parts(op.regions[1], _inside(op, parts))


def _inside(loop: Op, args: dict[Value, Value]) -> dict[Value, Value]:
    """What stands for arguments in the body of a loop."""
    return {inner: args[v] for v, inner in zip(loop.operands, loop.regions[1].args, strict=True) if v in args}
