"""transposed_products: the transpose of a matrix product, `(g.T @ x).T`, is the product of its operands in the other order,
`x.T @ g`.

So JAX writes the gradient of every weight. The transpose would have to be laid out and moved like the product itself, and
XLA's CPU compiler, which turns the operands round too, but only after it has settled how the product reads them, ends up
with a form for which it has no fast kernel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Block, Module, Op, Value
from .chains import Defs
from .simplify import drop_unused


@dataclass(frozen=True)
class TransposedProducts:
    name: ClassVar[str] = "transposed_products"

    def __call__(self, module: Module) -> Module:
        ops = list(module.main.body.walk())
        if not any(op.name == "transpose" for op in ops):
            return module
        uses = Counter(v for op in ops for v in (*op.operands, *(v for r in op.regions for v in r.returns)))
        uses.update(module.main.body.returns)
        body = _block(module.main.body, {}, uses)
        drop_unused(body)
        return module.with_body(body)


def _block(block: Block, defs: Defs, uses: Counter[Value]) -> Block:
    ops: list[Op] = []
    for op in block.ops:
        if op.regions:
            regions = tuple(_block(r, defs, uses) for r in op.regions)
            op = Op(op.name, op.operands, op.results, op.attrs, regions, op.loc)
        elif op.name == "transpose" and (product := defs.get(op.operands[0])) and uses[op.operands[0]] == 1:
            op = _turned(op, product) or op
        elif op.name == "dot_general":
            defs[op.results[0]] = op
        ops.append(op)
    return Block(block.args, ops, block.returns)


def _turned(op: Op, product: Op) -> Op | None:
    """The transpose `op` of a product as a product; None unless it puts the right operand's dims before the left one's."""
    left, right = product.operands
    attrs = product.attrs
    if "algorithm" in attrs:  # it may treat the sides unlike
        return None
    (left_batch, right_batch), (left_inner, right_inner) = attrs["batch"], attrs["contract"]
    batch, rank = len(left_batch), op.results[0].type.rank
    middle = left.type.rank - len(left_inner)
    if op.attrs["permutation"] != (*range(batch), *range(middle, rank), *range(batch, middle)):
        return None
    new = {**attrs, "batch": (right_batch, left_batch), "contract": (right_inner, left_inner)}
    if "precision_config" in attrs:
        new["precision_config"] = tuple(reversed(attrs["precision_config"]))
    return Op("dot_general", [right, left], op.results, new, (), op.loc)
