"""The two orders in which XLA for CPUs may run a program, and the memory that it takes in them.

By default XLA runs first what is ready first: all that needs the arguments alone is computed at once, and kept. Asked for memory, it
makes one result after the other, with all that it needs, beginning with what most depends on. Either may take less: the second
keeps what gradients are made of until the last one is. Both are simulated on kernels: on what is left where ops fuse with others.
(`BFScheduler` and `DFSMemoryScheduler` in XLA's `hlo_memory_scheduler`.)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ...ir.clone import clone_block
from ...ir.graph import Block, Module, Op, Value
from ..estimate import held, is_fused, peak_bytes, reads, stored_values
from ..post_order import post_order, reached_from
from ..simplify import drop_unused
from .xla_kernels import as_computed

MANY = 400  # kernels, from which on it is nearly always less than the estimate: XLA finds places for fewer blocks at a time
WORTH_OF_MANY = 1.1  # of the memory that the first order takes, which the second may take then
LIGHTER = 0.99  # of the memory, by which a change counts
PATHS = 4  # times the number of kernels: what is counted on all paths counts no further


def saves_memory(block: Block) -> bool:
    """Whether what each device runs takes less memory by results, or as much in another order: estimates of that are rather too high."""
    return _compared(block)[0]


def if_lighter(module: Module, change: Callable[[Module], bool]) -> Module:
    """A copy of the module that was changed, if it takes less memory by a part that counts, each in the order that is chosen for it;
    else the module. change: says whether it did anything."""
    body = module.main.body
    changed = module.with_body(clone_block(body))
    if not change(changed):
        return module
    drop_unused(changed.main.body)
    return changed if _compared(changed.main.body)[1] <= LIGHTER * _compared(body)[1] else module


def _compared(block: Block) -> tuple[bool, int]:
    """Whether it runs by results, and the bytes that each device takes then, arguments too."""
    block = as_computed(block)
    kernels = _kernels_in(block)
    at_once, by_results = (_ordered(kernels, order) for order in (_at_once, _by_results))
    most = _peak(block, at_once)
    if at_once == by_results:
        return False, most
    worth = 1.0 if len(kernels[block].ops) < MANY else WORTH_OF_MANY
    least = _peak(block, by_results)
    return (True, least) if least <= worth * most else (False, most)


class _Kernels:
    """What XLA computes by itself in a block: by their numbers the op, the kernels whose results it reads, in the order of its
    operands, those that read its result, and its bytes. Arguments come first, without an op."""

    def __init__(self, block: Block):
        stored = stored_values(block)
        ops = [op for op in block.ops if not is_fused(op, stored)]
        self.ops: list[Op | None] = [*(None for _ in block.args), *ops]
        made = {v: i for i, v in enumerate(block.args)}
        for i, op in enumerate(ops, len(block.args)):
            made.update(dict.fromkeys(op.results, i))

        def needs(values: Sequence[Value]) -> list[int]:
            return list(dict.fromkeys(made[v] for v in held(values, stored) if v in made))

        self.needs: list[list[int]] = [*([] for _ in block.args), *(needs(reads(op)) for op in ops)]
        self.results = needs(block.returns)
        sizes = [sum(v.type.nbytes for v in op.results if v not in stored) for op in ops]
        self.bytes = [*(v.type.nbytes for v in block.args), *sizes]
        self.users: list[list[int]] = [[] for _ in self.ops]
        for i in self.visited():
            for j in self.needs[i]:
                self.users[j].append(i)

    def visited(self, key: Callable[[int], tuple[int, int]] | None = None) -> list[int]:
        """Each result behind all that it needs, in the order of results and operands, or of a key; then what no result needs."""

        def ordered(numbers: list[int]) -> list[int]:
            return numbers if key is None else sorted(numbers, key=key)

        return post_order([*ordered(self.results), *range(len(self.ops))], lambda i: ordered(self.needs[i]))


Order = Callable[[_Kernels], list[int]]


def _at_once(kernels: _Kernels) -> list[int]:
    waits = [len(needs) for needs in kernels.needs]
    queue = deque(i for i, n in enumerate(waits) if not n)
    order: list[int] = []
    while queue:
        order.append(queue.popleft())
        for i in kernels.users[order[-1]]:
            waits[i] -= 1
            if not waits[i]:
                queue.append(i)
    return order


def _by_results(kernels: _Kernels) -> list[int]:
    """What is read most often first, counted with all that it needs, then what is largest, counted so; arguments don't count."""
    readers, sizes = [max(0, len(users) - 1) for users in kernels.users], [*kernels.bytes]
    most, seen = PATHS * len(readers), 0
    for i in kernels.visited():
        if kernels.ops[i] is None:
            readers[i] = sizes[i] = 0
            continue
        seen += sizes[i]
        for total, limit in ((readers, most), (sizes, seen)):
            total[i] = min(limit, total[i] + sum(total[j] for j in kernels.needs[i]))
    return kernels.visited(lambda i: (-readers[i], -sizes[i]))


def _kernels_in(block: Block) -> dict[Block, _Kernels]:
    """Those of the blocks inside, inner ones first, and of the block."""
    inner = (_kernels_in(region) for op in block.ops for region in op.regions)
    return {b: kernels for found in inner for b, kernels in found.items()} | {block: _Kernels(block)}


def _ordered(kernels: dict[Block, _Kernels], order: Order) -> dict[Block, list[Op]]:
    return {block: [op for i in order(made) if (op := made.ops[i])] for block, made in kernels.items()}


def _peak(block: Block, ordered: dict[Block, list[Op]]) -> int:
    _sort(ordered)
    return peak_bytes(block, set())


def _sort(ordered: dict[Block, list[Op]]) -> None:
    """Brings the ops of blocks into an order; what fuses runs with the first kernel that reads it."""
    for block, ops in ordered.items():
        block.ops[:] = reached_from(block, ops)
