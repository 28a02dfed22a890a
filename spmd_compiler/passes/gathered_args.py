"""Arguments that XLA's partitioners gather before anything else, so that every device computes what is made of them.

Where that is little data it sends least, though work is repeated. The search weighs the work and may go past it, so that plain
propagation also begins from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..ir.graph import Block, Op, Value
from ..ir.layout import Layout
from .engine import Engine
from .estimate import PRODUCTS

Seen = Mapping[Value, Layout]
PARTS = ("dynamic_slice", "reshape")


def scanned_args(engine: Engine, body: Block) -> Seen:
    """Arguments that are sliced along a dim on which they are sharded, as by a scan over it, without the axes on such dims."""
    seen: dict[Value, Layout] = {}
    for value, dims in _sliced(body, {v: v for v in body.args}):
        layout = seen.get(value) or engine.given(value.layout)
        if layout is not None and (axes := [a for d in dims for a in layout.dims[d]]):
            seen[value] = layout.drop(axes)
    return seen


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


def shared_args(engine: Engine, body: Block) -> Seen:
    """Arguments that products cut along what they sum over, where one gather costs less than to reduce all these sums: without the
    axes there."""
    products: dict[Value, list[Op]] = {}
    for op in body.walk():
        if op.name in PRODUCTS:
            for v in dict.fromkeys(op.operands):
                products.setdefault(v, []).append(op)
    seen: dict[Value, Layout] = {}
    for value, arg in _parts(body, {v: v for v in body.args}):
        given = seen.get(arg) or engine.given(arg.layout)
        if given is None or value not in products:
            continue
        paid, summed = 0.0, set[str]()
        for op in products[value]:
            (result,) = op.results
            layout = engine.layouts[result]
            if over := given.axes.intersection(layout.partial_axes):
                summed |= over
                paid += engine.weights.get(op, 1) * engine.costs.serve(
                    result.type, layout, engine.wanted(result)
                )
        gathered = given.drop(summed)
        if summed and engine.costs.relayout(arg.type, given, gathered) < paid:
            seen[arg] = gathered
    return seen


def crossing_args(engine: Engine, body: Block) -> Seen:
    """Of two arguments that a product reads the one that costs less to gather, without the axes that the other one has along another
    dim: what is larger stays where it is, as where a partitioner propagates from there."""
    seen: dict[Value, Layout] = {}
    whole = {v: arg for v, arg in _parts(body, {v: v for v in body.args}) if v.type == arg.type}
    for op in body.walk():
        if op.name != "dot_general" or not whole.keys() >= {*op.operands}:
            continue
        args = [whole[v] for v in op.operands]
        given = [x for v in args if (x := seen.get(v) or engine.given(v.layout)) is not None]
        if len(given) < len(args):
            continue
        lines = [_lines(op, k, layout) for k, layout in enumerate(given)]
        crossing = [a for a in lines[0] if lines[0][a] != lines[1].get(a, lines[0][a])]
        if crossing:
            options = [(v, layout, layout.drop(crossing)) for v, layout in zip(args, given, strict=True)]
            arg, _, gathered = min(options, key=lambda x: engine.costs.relayout(x[0].type, *x[1:]))
            seen[arg] = gathered
    return seen


def _lines(op: Op, operand: int, layout: Layout) -> dict[str, tuple[str, int]]:
    """What a product's operand is cut along by each axis: a dim of it that both have, or one of its own."""
    lines = {}
    for a, d in layout.placement.items():
        for kind in ("contract", "batch"):
            if d in (dims := op.attrs[kind][operand]):
                lines[a] = kind, dims.index(d)
        lines.setdefault(a, (("left", "right")[operand], d))
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
