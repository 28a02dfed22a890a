"""transposed_products: the transpose of a matrix product, `(g.T @ x).T`, is the product of its operands in the other order,
`x.T @ g`; and one that only puts dims of the left operand last is a transpose of that, with less to move.

JAX writes the gradient of every weight like the first, and what attention reads from its values like the second. The transpose
would have to be laid out and moved like the product itself, and XLA's CPU compiler, which turns the operands round too, but
only after it has settled how the product reads them, ends up with a form for which it has no fast kernel.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

from ...ir.graph import Module, Op, Value
from ...ir.types import TensorType


@dataclass(frozen=True)
class TransposedProducts:
    name: ClassVar[str] = "transposed_products"

    def __call__(self, module: Module) -> Module:
        ops = list(module.main.body.walk())
        uses = Counter(v for op in ops for v in (*op.operands, *(v for r in op.regions for v in r.returns)))
        uses.update(module.main.body.returns)
        transposes = {
            op.operands[0]: op for op in ops if op.name == "transpose" and uses[op.operands[0]] == 1
        }
        turned: dict[Op, list[Op]] = {}  # in place of products, and of their transposes
        for op in ops:
            transpose = transposes.get(op.results[0]) if op.name == "dot_general" else None
            if transpose and (product := _turned(transpose, op)):
                turned.update({op: product, transpose: []})
        return module.with_body(module.main.body.with_ops(turned)) if turned else module


def _turned(transpose: Op, product: Op) -> list[Op]:
    """The transpose of a product as a product in the other order, transposed if it still needs to be; nothing unless it
    puts dims of the left operand last."""
    left, right = product.operands
    attrs, order = product.attrs, transpose.attrs["permutation"]
    (left_batch, right_batch), (left_inner, right_inner) = attrs["batch"], attrs["contract"]
    batch, rank = len(left_batch), len(order)
    middle = left.type.rank - len(left_inner)  # in front of it the dims of the left operand
    alike = "algorithm" not in attrs  # one may treat the sides unlike
    if not (alike and order and batch <= order[-1] < middle < rank):
        return []
    new = {**attrs, "batch": (right_batch, left_batch), "contract": (right_inner, left_inner)}
    if "precision_config" in attrs:
        new["precision_config"] = tuple(reversed(attrs["precision_config"]))
    # the dims of the old product, in the order in which the new one has them
    dims = (*range(batch), *range(middle, rank), *range(batch, middle))
    if order == dims:
        return [Op("dot_general", [right, left], transpose.results, new, (), product.loc)]
    old = product.results[0].type
    value = Value(TensorType(tuple(old.shape[d] for d in dims), old.dtype))
    again = {**transpose.attrs, "permutation": tuple(map(dims.index, order))}
    return [
        Op("dot_general", [right, left], [value], new, (), product.loc),
        Op("transpose", [value], transpose.results, again, (), transpose.loc),
    ]
