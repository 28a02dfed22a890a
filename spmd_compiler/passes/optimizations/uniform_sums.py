"""All-reduces of what is the same on all of their devices: the number of these times it, or it itself.

Derivatives of manual regions have such (that of a `psum` is a `psum`), and XLA finds them where they stand alone, but not where
they are combined with others.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...ir.graph import Block, Op, Value
from ...ir.mesh import Mesh, parse_axis
from ...ir.optable import COLLECTIVES, SIDE_EFFECTS, sends
from ...ir.types import TensorType
from ..emit.builder import Builder
from ..prepare.varying import Axes, Varying

_OWN = SIDE_EFFECTS | {"partition_id", "replica_id"}  # differ from device to device
_SAME = ("max", "min", "and", "or")  # kinds of reductions of equal values that make these again


def drop_uniform_sums(block: Block, mesh: Mesh) -> None:
    """Changes the body of a `main` that no one else holds, whose arguments have layouts."""
    found = _Uniform(mesh)
    for value in block.args:
        found.axes[value] = found.all if value.layout is None else _whole(value.layout.axes)
    found.block(block)
    _drop(block, mesh, found.axes)


def _whole(axes: Iterable[str]) -> Axes:
    """The axes of which these are pieces, or which they are."""
    return frozenset(parse_axis(a)[0] for a in axes)


class _Uniform(Varying):
    def __init__(self, mesh: Mesh):
        super().__init__()
        self.all: Axes = frozenset(mesh.axis_names)

    def of(self, op: Op, over: Axes) -> Axes:
        if op.name in _OWN or (op.name == "custom_call" and op.attrs.get("has_side_effect", False)):
            return self.all
        if op.name == "axis_index":
            return _whole(op.attrs["axes"])
        if op.name not in COLLECTIVES:
            return over
        if not sends(op):
            return self.all
        if op.name in ("all_reduce", "all_gather"):
            return over.difference(op.attrs["axes"])  # pieces of an axis leave it there
        return over | _whole(op.attrs["axes"])


def _drop(block: Block, mesh: Mesh, varying: dict[Value, Axes]) -> None:
    ops: list[Op] = []
    for op in block.ops:
        for region in op.regions:
            _drop(region, mesh, varying)
        if op.name == "all_reduce" and sends(op) and op.attrs["kind"] in ("sum", *_SAME):
            over = tuple(a for a in op.attrs["axes"] if parse_axis(a)[0] in varying[op.operands[0]])
            alike = all(varying[v] == varying[op.operands[0]] for v in op.operands)
            if alike and len(over) < len(op.attrs["axes"]):
                ops += _smaller(op, over, mesh)
                continue
        ops.append(op)
    block.ops[:] = ops


def _smaller(op: Op, over: tuple[str, ...], mesh: Mesh) -> list[Op]:
    """The same over fewer axes."""
    b, kind = Builder.beside(mesh, op), op.attrs["kind"]
    times = mesh.axes_size(op.attrs["axes"]) // mesh.axes_size(over)
    for x, result in zip(op.operands, op.results, strict=True):
        assert isinstance(x.type, TensorType)
        y = b.op("all_reduce", [x], x.type, {**op.attrs, "axes": over}) if over else x
        if kind == "sum":
            b.binary("multiply", y, b.constant(times, x.type))
        else:
            b.op("reshape", [y], x.type)
        b.gives([result])
    return b.block.ops
