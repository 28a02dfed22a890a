"""Tokens at the border of a program: no array holds one, so a token that `main` takes is made inside, and none leaves."""

from __future__ import annotations

from ...ir.graph import Module, Op
from ...ir.types import TOKEN


def drop_boundary_tokens(module: Module) -> None:
    """Removes the arguments and results of `main` that are tokens, in place."""
    main = module.main
    body = main.body
    if not any(v.type is TOKEN for v in (*body.args, *body.returns)):
        return
    made = [Op("after_all", [], [v]) for v in body.args if v.type is TOKEN]
    main.arg_attrs[:] = [a for a, v in zip(main.arg_attrs, body.args, strict=True) if v.type is not TOKEN]
    main.result_attrs[:] = [
        a for a, v in zip(main.result_attrs, body.returns, strict=True) if v.type is not TOKEN
    ]
    body.args[:] = [v for v in body.args if v.type is not TOKEN]
    body.returns[:] = [v for v in body.returns if v.type is not TOKEN]
    body.ops[:0] = made
