"""boundary: arguments and results in layouts that no JAX array can have, because an axis does not divide a dim.

Outside the program such a value lies in the even part of its layout (`even_part`); a relayout inside brings it to the
layout asked for, which is free for an argument (it is cut), and back, which gathers a result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..ir.graph import Block, Function, Loc, Module, Op, Value
from ..ir.layout import even_part


@dataclass(frozen=True)
class Boundary:
    name: ClassVar[str] = "boundary"

    def __call__(self, module: Module) -> Module:
        main, mesh = module.main, module.mesh
        body = main.body
        args, returns = list(body.args), list(body.returns)
        attrs = [dict(a) for a in main.result_attrs]
        enter: list[Op] = []
        leave: list[Op] = []
        for i, value in enumerate(args):
            if value.layout is None:
                continue
            stored = even_part(value.layout, value.type, mesh)
            if stored is not value.layout:
                args[i] = Value(value.type, stored, value.name)
                cause = f"argument {value.name or i} is wanted in {value.layout}, which does not divide it"
                enter.append(Op("relayout", [args[i]], [value], {"cause": cause}, (), Loc()))
        for i, value in enumerate(returns):
            asked = attrs[i].get("layout")
            if asked is None:
                continue
            attrs[i]["layout"] = stored = even_part(asked, value.type, mesh)
            if stored is not asked:
                returns[i] = Value(value.type, asked)
                cause = f"result {i} is wanted in {asked}, which does not divide it"
                leave.append(Op("relayout", [value], [returns[i]], {"cause": cause}, (), Loc()))
        if not enter and not leave:
            return module
        functions = {
            **module.functions,
            "main": Function(
                "main", Block(args, [*enter, *body.ops, *leave], returns), True, main.arg_attrs, attrs
            ),
        }
        return Module(mesh, functions, module.name, module.attrs)
