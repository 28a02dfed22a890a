"""How many collectives a program with relayouts comes to, if those that can run together do (`combine`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable
from functools import reduce
from operator import or_

from ...ir.graph import Block, Op, Value
from ...ir.layout import local_type
from ...ir.mesh import Mesh
from ...ir.optable import CONTROL_FLOW
from ...ir.types import TensorType
from ..estimate import reads
from ..optimizations.combine import SMALL_OF
from ..optimizations.packing import carrier
from ..relayout.planner import plan


def count_messages(block: Block, mesh: Mesh, trips: Callable[[Op], int]) -> int:
    """Of the relayouts in a block and those inside, as often as these run. What ops exchange themselves is not counted."""
    inside = 0
    waits: dict[Value, int] = {}  # the messages that a value waits for, as bits
    keys: list[Hashable] = []  # of a message: what it shares with those that it can go with
    befores: list[int] = []  # the messages that one waits for
    for op in block.ops:
        before = reduce(or_, (waits.get(v, 0) for v in reads(op)), 0)
        if op.name == "relayout":
            for key in _keys(op, mesh):
                keys.append(key)
                befores.append(before)
                before |= 1 << len(keys) - 1
        for region in op.regions if op.name in CONTROL_FLOW else ():
            inside += count_messages(region, mesh, trips) * (trips(op) if op.name == "while" else 1)
        waits.update(dict.fromkeys(op.results, before))
    return inside + _together(keys, befores)


def _keys(op: Op, mesh: Mesh) -> list[Hashable]:
    """Those of a relayout's messages; a message with a key of its own goes with none."""
    type, source, target = op.results[0].type, op.operands[0].layout, op.results[0].layout
    assert isinstance(type, TensorType) and source is not None and target is not None
    keys: list[Hashable] = []
    for i, step in enumerate(plan(type, source, target, mesh).steps):
        if not step.sends:
            continue
        block = local_type(type, step.source, mesh)
        small = step.kind == "all_reduce" or block.nbytes <= SMALL_OF.get(step.kind, 0)
        alike = step.kind, step.axes, step.reduction, carrier(block.dtype, step.reduction)
        keys.append(alike if small else (op, i))
    return keys


def _together(keys: list[Hashable], befores: list[int]) -> int:
    """How many times something is sent, if of what is ready those go first that fewest others could go with later."""
    left, done, count = {*range(len(keys))}, 0, 0
    while left:
        ready: dict[Hashable, int] = {}
        later = Counter[Hashable]()
        for i in sorted(left):  # behind what it waits for
            if not befores[i] & ~done:
                ready[keys[i]] = ready.get(keys[i], 0) | 1 << i
            elif not befores[i] & ready.get(keys[i], 0):
                later[keys[i]] += 1
        now = ready[min(ready, key=later.__getitem__)]
        done |= now
        left = {i for i in left if not now >> i & 1}
        count += 1
    return count
