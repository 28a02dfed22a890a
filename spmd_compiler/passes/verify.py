"""Checks what passes promise of each other, beyond what `ir.verify` asks of every module."""

from __future__ import annotations

from ..ir.graph import Block, Module, Op
from ..ir.verify import VerifyError
from .rules.table import CONTROL, RuleBook


def verify_layouts(module: Module) -> None:
    """After propagation: every value has a layout, every relayout changes one, and every op has layouts in which its rule
    can run it. Raises VerifyError."""
    checker = _Checker(module)
    checker.block(module.main.body)


class _Checker:
    def __init__(self, module: Module):
        self.mesh = module.mesh
        self.book = RuleBook()
        self.covered: set[object] = set()

    def block(self, block: Block) -> None:
        for op in block.ops:
            if any(v.layout is None for v in (*op.operands, *op.results)):
                raise VerifyError(f"{op.name} ({op.loc}) has a value without a layout")
            if op.name == "relayout":
                if op.operands[0].layout is op.results[0].layout:
                    raise VerifyError(f"relayout ({op.loc}) does not change the layout")
            elif op.name in CONTROL:
                self.holder(op)
            else:
                self.covers(op)

    def holder(self, op: Op) -> None:
        """What enters, stays in and leaves the blocks of an op has one layout."""
        if op.name == "manual_computation":
            return
        layouts = [v.layout for v in op.results]
        same = [region.returns for region in op.regions]
        if op.name == "while":
            condition, body = op.regions
            same = [op.operands, condition.args, body.args, body.returns]
        if any([v.layout for v in values] != layouts for values in same):
            raise VerifyError(f"{op.name} ({op.loc}) has blocks whose values differ in layout from its own")
        for region in op.regions:
            self.block(region)

    def covers(self, op: Op) -> None:
        self.book.note(op)
        rule = self.book.rule(op)
        key = (id(rule), *(v.layout for v in op.operands), *(v.layout for v in op.results))
        if key in self.covered:
            return
        if not rule.covers(op, self.mesh):
            layouts = ", ".join(str(v.layout) for v in op.operands)
            results = ", ".join(str(v.layout) for v in op.results)
            raise VerifyError(f"{op.name} ({op.loc}) can't run as ({layouts}) -> ({results})")
        self.covered.add(key)
