"""Arguments that XLA's partitioners gather before anything else, so that every device computes what is made of them.

Where that is little data it sends least, though work is repeated. The search weighs the work and may go past it, so that plain
propagation also begins from there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..ir.graph import Block, Value
from ..ir.layout import Layout
from .engine import Engine

Seen = Mapping[Value, Layout]


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
    without all axes on such dims. GSPMD, which knows no axes but numbers of tiles, can't gather some."""
    seen: dict[Value, Layout] = {}
    for value in body.args:
        layout = engine.given(value.layout)
        if layout is None:
            continue
        for wanted in engine.wanted(value):
            for axes in layout.dims:
                left = [a for a in axes if a in wanted.axes]
                if 0 < len(left) < len(axes):
                    seen[value] = seen.get(value, layout).drop(axes)
    return seen


def _sliced(block: Block, args: dict[Value, Value]) -> Iterator[tuple[Value, list[int]]]:
    """Arguments, and the dims along which they are sliced, also in loops that they pass through. args: by what stands for them."""
    for op in block.ops:
        if op.name == "dynamic_slice" and op.operands[0] in args:
            value = op.operands[0]
            sizes = zip(value.type.shape, op.attrs["slice_sizes"], strict=True)
            yield args[value], [d for d, (size, part) in enumerate(sizes) if part < size]
        elif op.name == "while":
            body = op.regions[1]
            pairs = zip(op.operands, body.args, strict=True)
            yield from _sliced(body, args | {inner: args[v] for v, inner in pairs if v in args})
