"""How often a while loop runs, where its condition says so: a counter that a constant step takes to a constant bound."""

from __future__ import annotations

from .graph import Block, Op, Value


def trip_count(loop: Op, constants: dict[Value, int] | None = None) -> int | None:
    """Iterations of a `while` whose condition compares a carried counter with a constant; None if it isn't so simple.

    `constants`: integers that the enclosing block is known to hold. Without the counter's start it is taken to be 0,
    which is where JAX's scan and fori_loop with a static length start.
    """
    condition, body = loop.regions
    test = _producer(condition, condition.returns[0])
    if test is None or test.name != "compare":
        return None
    direction: str = test.attrs["comparison_direction"]
    left, right = test.operands
    bound = _integer(condition, right, constants)
    counter = left
    if bound is None:
        bound, counter = _integer(condition, left, constants), right
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
    if bound is None or counter not in condition.args:
        return None
    i = condition.args.index(counter)
    update = _producer(body, body.returns[i])
    if update is None or update.name not in ("add", "subtract") or body.args[i] not in update.operands:
        return None
    other = update.operands[1] if update.operands[0] is body.args[i] else update.operands[0]
    step = _integer(body, other, constants)
    if not step:
        return None
    if update.name == "subtract":
        step = -step
    start = (constants or {}).get(loop.operands[i], 0)
    span = {"LT": bound - start, "LE": bound - start + 1, "GT": bound - start, "GE": bound - start - 1}.get(
        direction
    )
    if direction == "NE":
        span = bound - start
    if span is None:
        return None
    return max(0, -(-span // step)) if step > 0 else max(0, -(span // -step))


def _producer(block: Block, value: Value) -> Op | None:
    return next((op for op in block.ops if value in op.results), None)


def _integer(block: Block, value: Value, constants: dict[Value, int] | None) -> int | None:
    if constants and value in constants:
        return constants[value]
    op = _producer(block, value)
    if op is not None and op.name == "convert":
        return _integer(block, op.operands[0], constants)
    if op is None or op.name != "constant" or op.results[0].type.rank != 0:
        return None
    return int(op.attrs["value"].array)
