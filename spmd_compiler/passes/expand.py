"""expand: from one global program to the program that each device runs: local shapes, explicit collectives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from ..ir.clone import clone_regions
from ..ir.graph import Block, Module, Op, Value
from ..ir.layout import local_type
from ..ir.mesh import Mesh
from ..ir.optable import CONTROL_FLOW
from ..ir.verify import VerifyError
from .emit.builder import Builder
from .relayout.emission import emit_relayout
from .rules.table import RuleBook
from .units import Units, expand_unit, unit_of
from .written_collectives import name_axes


@dataclass(frozen=True)
class Expand:
    """Every op becomes what its rule expands it to; a `relayout` becomes the collectives of its plan; calls of `units`
    become what these run on a device."""

    units: Units = field(default_factory=dict)
    name: ClassVar[str] = "expand"

    def __call__(self, module: Module) -> Module:
        expander = _Expander(module.mesh, self.units)
        done = module.with_body(expander.block(module.main.body, {}, keep_layouts=True))
        name_axes(done.main.body, module.mesh)
        if expander.fallbacks:
            done.attrs = {**module.attrs, "fallbacks": "\n".join(expander.fallbacks)}
        return done


class _Expander:
    def __init__(self, mesh: Mesh, units: Units):
        self.mesh = mesh
        self.units = units
        self.fallbacks: list[str] = []
        self.book = RuleBook()

    def block(
        self, block: Block, outer: dict[Value, Value], keep_layouts: bool = False, divergent: bool = False
    ) -> Block:
        env = dict(outer)
        out = Block([], [], [])
        b = Builder(self.mesh, out, divergent)
        for value in block.args:
            assert value.layout is not None
            layout = value.layout if keep_layouts else None
            new = Value(local_type(value.type, value.layout, self.mesh), layout, value.name)
            env[value] = new
            out.args.append(new)
        for op in block.ops:
            b.loc = op.loc
            args = [env[v] for v in op.operands]
            for value, new in zip(op.results, self.op(op, args, b, env), strict=True):
                if value.layout is not None and new.type is not local_type(
                    value.type, value.layout, self.mesh
                ):
                    raise VerifyError(f"{op.name} ({op.loc}) made {new.type} of {value.type} {value.layout}")
                new.name = new.name or value.name
                env[value] = new
        out.returns = [env[v] for v in block.returns]
        if keep_layouts:
            # one value may leave in two layouts' names: an alias keeps each result's own
            for value, new in zip(block.returns, out.returns, strict=True):
                new.layout = value.layout
        return out

    def op(self, op: Op, args: list[Value], b: Builder, env: dict[Value, Value]) -> list[Value]:
        self.book.note(op)
        if op.name == "relayout":
            (x,), (y,) = op.operands, op.results
            assert x.layout is not None and y.layout is not None
            b.cause = f"{op.attrs.get('cause', '')}: {x.layout} -> {y.layout}"
            return [emit_relayout(b, args[0], x.type, x.layout, y.layout)]
        if op.name in CONTROL_FLOW:
            divergent = b.divergent or op.attrs.get("divergent", False)
            regions = tuple(self.block(region, env, divergent=divergent) for region in op.regions)
            types = [local_type(v.type, v.layout, self.mesh) for v in op.results if v.layout is not None]
            attrs = {k: v for k, v in op.attrs.items() if k != "divergent"}
            return b.multi(op.name, args, types, attrs, regions)
        if op.name == "manual_computation":
            return self.inline(op.regions[0], args, b, env)
        if localize := unit_of(op, self.units):
            local = localize(op)
            if local.fallback:
                self.fallbacks.append(f"fallback: {local.fallback}  {op.loc}")
            return expand_unit(b, op, args, local)
        b.cause = f"part of {op.name}"
        return self.book.rule(op).expand(b, op, args)

    def inline(self, block: Block, args: list[Value], b: Builder, env: dict[Value, Value]) -> list[Value]:
        """A manual region is per device already: it runs as written."""
        env.update(zip(block.args, args, strict=True))
        for op in block.ops:
            results = [Value(v.type, None, v.name) for v in op.results]
            env.update(zip(op.results, results, strict=True))
            operands = [env[v] for v in op.operands]
            b.block.ops.append(
                Op(op.name, operands, results, op.attrs, clone_regions(op.regions, env), op.loc)
            )
        return [env[v] for v in block.returns]
