"""Checks that a module is well formed, whatever stage it is of. Linear in the number of ops."""

from __future__ import annotations

from .graph import Block, Module, Op, Value
from .layout import check_layout
from .optable import CALLS, ELEMENTWISE, sends
from .types import TensorType

_DATA = {"case", "if"}  # their regions take no arguments


class VerifyError(ValueError):
    """A module that breaks a rule of the IR; the message names the op and its source line."""


def verify(module: Module) -> None:
    """Every value is defined once and before its use; regions, and functions that are called, take and return what their op expects;
    layouts fit types and mesh; collectives that the compiler inserted name axes of the mesh and have results of the right size.

    Raises VerifyError."""
    if "main" not in module.functions:
        raise VerifyError("the module has no function main")
    for function in module.functions.values():
        _Verifier(module).block(function.body)


class _Verifier:
    def __init__(self, module: Module):
        self.module = module
        self.mesh = module.mesh
        self.fits: set[tuple[object, object]] = set()  # (type, layout) pairs that are known to fit
        self.visible: dict[Value, bool] = {}  # values met so far; False: of a block that has ended

    def block(self, block: Block) -> None:
        visible = self.visible
        mine = list(block.args)
        for value in block.args:
            self.define(value, None)
        for op in block.ops:
            for value in op.operands:
                if not visible.get(value):
                    raise _error(op, f"uses {value}, which is not defined before it")
            self.op(op)
            for region in op.regions:
                self.block(region)
            for value in op.results:
                self.define(value, op)
            mine += op.results
        for value in block.returns:
            if not visible.get(value):
                raise VerifyError(f"a block returns {value}, which is not defined in it")
        visible.update(dict.fromkeys(mine, False))

    def define(self, value: Value, op: Op | None) -> None:
        if value in self.visible:
            raise _error(op, f"defines {value} twice")
        self.visible[value] = True
        layout = value.layout
        if layout is not None and (value.type, layout) not in self.fits:
            try:
                check_layout(layout, value.type, self.mesh)
            except ValueError as error:
                raise _error(op, str(error)) from None
            self.fits.add((value.type, layout))

    def op(self, op: Op) -> None:
        name = op.name
        if name in ELEMENTWISE and name not in ("select", "clamp", "bitcast_convert"):
            shape = op.results[0].type.shape
            if len(op.operands) != ELEMENTWISE[name] or any(v.type.shape != shape for v in op.operands):
                raise _error(op, "has operands of other shapes than its result")
        elif name == "while":
            self.loop(op)
        elif name in _DATA:
            for region in op.regions:
                self.ends(op, region.returns, op.results)
        elif name in CALLS:
            self.call(op)
        elif sends(op):
            self.collective(op)
        elif name == "relayout" and op.operands[0].type is not op.results[0].type:
            raise _error(op, "changes the type of its operand")

    def loop(self, op: Op) -> None:
        condition, body = op.regions
        for values in (condition.args, body.args, body.returns, op.results):
            self.ends(op, values, op.operands)
        if len(condition.returns) != 1 or condition.returns[0].type is not TensorType((), "i1"):
            raise _error(op, "has a condition that is no i1")

    def call(self, op: Op) -> None:
        name = op.attrs[CALLS[op.name]]
        callee = self.module.functions.get(name)
        if callee is None:
            raise _error(op, f"runs a function that is not there, {name!r}")
        self.ends(op, callee.body.args, op.operands)
        self.ends(op, callee.body.returns, op.results)

    def ends(self, op: Op, values: list[Value], wanted: list[Value]) -> None:
        if [v.type for v in values] != [v.type for v in wanted]:
            raise _error(op, "has regions, or runs a function, whose values differ in type from its own")

    def collective(self, op: Op) -> None:
        axes = op.attrs["axes"]
        if unknown := [a for a in axes if a not in self.mesh]:
            raise _error(op, f"runs over {unknown[0]!r}, which {self.mesh} does not have")
        n = self.mesh.axes_size(axes)
        grows = {"all_gather": n, "reduce_scatter": 1 / n}.get(op.name, 1)
        if len(op.operands) != len(op.results):
            raise _error(op, "has not one result for each operand")
        for x, y in zip(op.operands, op.results, strict=True):
            if y.type.size != x.type.size * grows:
                raise _error(op, f"has a result {y.type} that does not fit its operand {x.type}")


def _error(op: Op | None, text: str) -> VerifyError:
    if op is None:
        return VerifyError(f"a block {text}")
    where = f" ({op.loc})" if str(op.loc) else ""
    return VerifyError(f"{op.name}{where} {text}")
