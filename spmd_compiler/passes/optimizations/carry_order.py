"""The order of what loops carry, which decides the one in which XLA computes it.

XLA's schedulers take the ops of a loop's body as they are reached from its results, one result after the other (XLA's
`ComputeInstructionPostOrder`). JAX puts results in the order of the user's parameters; gradients are made in the opposite one, so
that XLA would compute the last gradient first, and keep all that the others need meanwhile.
"""

from __future__ import annotations

from ...ir.graph import Block, Op, Value
from ..estimate import is_light, peak_bytes, reads
from ..post_order import reached_from

WORTH = 0.99  # of the memory that a body takes, from which on another order is taken


def order_carries(block: Block) -> None:
    """Changes a block that no one else holds, and the blocks inside: carries come in the order in which what they take is made,
    where the body then needs less memory."""
    for op in block.ops:
        for region in op.regions:
            order_carries(region)
        if op.name == "while":
            _order(op)


def _order(loop: Op) -> None:
    body = loop.regions[1]
    # the last op that XLA computes by itself among those that it takes to make a value
    made: dict[Value, int] = {}
    for i, op in enumerate(body.ops):
        last = max((made.get(v, -1) for v in reads(op)), default=-1)
        made.update(dict.fromkeys(op.results, last if is_light(op) else i))
    order = sorted(range(len(body.returns)), key=lambda k: made.get(body.returns[k], -1))
    if _peak(body, [body.returns[k] for k in order]) > WORTH * _peak(body, body.returns):
        return

    def ordered(values: list[Value]) -> list[Value]:
        return [values[k] for k in order]

    loop.operands, loop.results, body.returns = map(ordered, (loop.operands, loop.results, body.returns))
    for region in loop.regions:
        region.args = ordered(region.args)


def _peak(body: Block, returns: list[Value]) -> int:
    """The memory that a body takes if its ops run as they are reached from its results."""
    makers = body.makers()
    ops = reached_from(body, [makers[v] for v in returns if v in makers])
    return peak_bytes(Block(body.args, ops, body.returns), set(body.args))
