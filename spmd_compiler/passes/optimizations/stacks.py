"""Arrays that a loop takes slices of, one in each iteration, and that it stacks one by one: the layers of a `scan`, and their
gradients."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping

from ...ir.graph import Block, Op, Value
from ...ir.optable import sends
from ...ir.trips import known_length
from ...ir.types import TensorType
from ..emit.builder import is_zeros
from ..estimate import read_in, reads


def slices_in(
    loop: Op, value: Value, dim: int, used: Container[Value], known: Mapping[Value, int]
) -> list[Op]:
    """The slices that a loop whose length is known takes of a value, all of them whole along `dim`; none if it uses the value
    otherwise. `used`: what the block around it reads; `known`: integers that this is known to hold."""
    if known_length(loop, known) is None:
        return []
    found = sliced_in(loop, value, used)
    return found if all(op.attrs["slice_sizes"][dim] == value.type.shape[dim] for op in found) else []


def sliced_in(loop: Op, value: Value, used: Container[Value]) -> list[Op]:
    """The slices that a `while` takes of a value; none if it uses the value otherwise. `used`: what the block around it reads."""
    condition, body = loop.regions
    found: list[Op] = []
    for k, operand in enumerate(loop.operands):
        if operand is value:
            arg = body.args[k]
            users = [op for op in body.ops if arg in reads(op)]
            sliced = all(
                op.name == "dynamic_slice" and op.operands.count(arg) == 1 and op.operands[0] is arg
                for op in users
            )
            passed = body.returns[k] is arg and body.returns.count(arg) == 1
            if not sliced or not passed or loop.results[k] in used or condition.args[k] in read_in(condition):
                return []
            found += users
    return [] if value in {*read_in(condition), *read_in(body)} else found


def sums_stacked_in(
    loop: Op, block: Block, readers: Mapping[Value, list[Op]], known: Mapping[Value, int]
) -> Iterator[tuple[int, Op, Op]]:
    """The carries in which a loop of a block stacks partial sums, from zeros; what puts one of them there, and what reduces and
    scatters them after the loop. readers: the ops of the block that read a value; known: integers that it is known to hold."""
    if known_length(loop, known) is None:
        return
    condition, body = loop.regions
    stacked = {v: op for op in body.ops if op.name == "dynamic_update_slice" for v in op.results}
    inside, tested = read_in(body), read_in(condition)
    for k, arg in enumerate(body.args):
        update = stacked.get(body.returns[k])
        users = readers.get(loop.results[k], [])
        if update is None or update.operands[0] is not arg or len(users) != 1:
            continue
        (scatter,) = users
        if scatter.name != "reduce_scatter" or not sends(scatter) or scatter.attrs["kind"] != "sum":
            continue
        dim = scatter.attrs["dim"]
        alone = inside.count(arg) == inside.count(body.returns[k]) == 1 and condition.args[k] not in tested
        whole = update.operands[1].type.shape[dim] == arg.type.shape[dim]
        if alone and whole and loop.results[k] not in block.returns and is_zeros(block, loop.operands[k]):
            yield k, update, scatter


def retype_carry(loop: Op, k: int, type: TensorType) -> None:
    """What a loop carries at a position gets another type, in its body too."""
    condition, body = loop.regions
    for v in (condition.args[k], body.args[k], body.returns[k], loop.results[k]):
        v.type = type
