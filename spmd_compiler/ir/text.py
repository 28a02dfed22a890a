"""Prints the IR. `parser` reads it back: print ∘ parse ∘ print = print.

    mesh {batch=4, model=2}
    func @main(%x: f32[128,784] {batch,-}) -> (f32[128,784] {batch,-}) {
      %0: f32[128,784] {batch,-} = tanh(%x)      // mlp.py:42
      return %0
    }

An op is `results = name(operands) attributes`, then its regions, each `({ (arguments) … })`, then where it comes from.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from .graph import Block, Dense, Function, Loc, Module, Op, Raw, Value
from .layout import Layout
from .opnames import print_op_name

PAIRS = ("contract", "batch")  # printed [1]x[0]
READABLE = 16  # constants of so few elements print as numbers, others as bytes


def _symbol(name: str) -> str:
    """`@name`, in quotes if it is no plain word."""
    return f"@{name}" if re.fullmatch(r"[\w.$-]+", name) else f"@{json.dumps(name)}"


def _word(name: str) -> str:
    """The same of what stands alone."""
    return name if re.fullmatch(r"[A-Za-z_][\w.$-]*", name, re.ASCII) else json.dumps(name)


def print_module(module: Module) -> str:
    """The text of a module; values without a name are numbered in each function."""
    lines = [repr(module.mesh)]
    if module.name != "main":
        lines[0] += f" name={_word(module.name)}"
    for key, value in module.attrs.items():
        lines.append(f"attr {_word(key)}={print_attr(value)}")
    for function in module.functions.values():
        _Printer().function(function, lines)
    return "\n".join(lines) + "\n"


def value_names(function: Function) -> dict[Value, str]:
    """The names under which the values of a function print, `%` included."""
    printer = _Printer()
    printer.function(function, [])
    return printer.names


def print_attr(value: Any, key: str = "") -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, Raw):
        return "`" + value.text.replace("\\", "\\\\").replace("`", "\\`").replace("\n", "\\n") + "`"
    if isinstance(value, float):
        return value.hex() if math.isfinite(value) else repr(value)
    if isinstance(value, tuple):
        if key in PAIRS and len(value) == 2:
            return "x".join(print_attr(x) for x in value)
        return "[" + ",".join(print_attr(x) for x in value) + "]"
    if isinstance(value, Dense):
        return print_dense(value)
    if isinstance(value, np.generic):
        return print_attr(value.item())
    if value is None:
        return "none"
    return repr(value)  # int, Layout


def print_dense(value: Dense) -> str:
    """`dense<f32[2]: 1.0 2.0>`; bytes in hexadecimal where numbers would be long or inexact; a splat's shape is []!"""
    array = value.array
    shape = ",".join(map(str, array.shape))
    head = f"dense<{array.dtype.name}[{shape}]{'!' if value.splat else ''}: "
    kind = array.dtype.kind
    if array.size <= READABLE and (kind in "biu" or (kind == "f" and np.isfinite(array).all())):
        if kind == "b":
            body = " ".join("true" if x else "false" for x in array.ravel())
        else:
            body = " ".join(repr(x) for x in array.ravel().tolist())
        return head + body + ">"
    return head + "0x" + array.tobytes().hex() + ">"


class _Printer:
    def __init__(self) -> None:
        self.names: dict[Value, str] = {}
        self.used: set[str] = set()
        self.next = 0

    def name(self, value: Value) -> str:
        name = self.names.get(value)
        if name is None:
            name = value.name
            if not name or name in self.used or name[0].isdigit():
                name = str(self.next)
                self.next += 1
            self.used.add(name)
            name = self.names[value] = "%" + name
        return name

    def declared(self, value: Value) -> str:
        layout = "" if value.layout is None else f" {value.layout}"
        return f"{self.name(value)}: {value.type}{layout}"

    def function(self, function: Function, lines: list[str]) -> None:
        body = function.body
        args = ", ".join(
            self.declared(v) + _extras(a) for v, a in zip(body.args, function.arg_attrs, strict=True)
        )
        results = ", ".join(
            f"{v.type}{_result_layout(v, a)}{_extras(a)}"
            for v, a in zip(body.returns, function.result_attrs, strict=True)
        )
        private = "" if function.public else "private "
        lines.append(f"func {private}{_symbol(function.name)}({args}) -> ({results}) {{")
        self.block(body, lines, "  ")
        lines.append("}")

    def block(self, block: Block, lines: list[str], indent: str) -> None:
        for op in block.ops:
            self.op(op, lines, indent)
        lines.append(f"{indent}return {', '.join(map(self.name, block.returns))}".rstrip())

    def op(self, op: Op, lines: list[str], indent: str) -> None:
        operands = ", ".join(map(self.name, op.operands))
        attrs = "".join(f" {k}={print_attr(v, k)}" for k, v in op.attrs.items())
        body: list[str] = []
        for k, region in enumerate(op.regions):
            args = ", ".join(map(self.declared, region.args))
            body.append(f"({{ ({args})" if k == 0 else f"{indent}}}, {{ ({args})")
            self.block(region, body, indent + "  ")
        results = ", ".join(map(self.declared, op.results))
        line = f"{indent}{results} = " if results else indent
        line += f"{print_op_name(op.name)}({operands}){attrs}"
        loc = print_loc(op.loc)
        if not body:
            lines.append(line + loc)
            return
        lines.append(f"{line} {body[0]}")
        lines.extend(body[1:])
        lines.append(f"{indent}}}){loc}")


def _extras(attrs: dict[str, Any]) -> str:
    rest = {k: v for k, v in attrs.items() if k != "layout"}
    return " [" + " ".join(f"{k}={print_attr(v)}" for k, v in rest.items()) + "]" if rest else ""


def _result_layout(value: Value, attrs: dict[str, Any]) -> str:
    layout = value.layout if value.layout is not None else attrs.get("layout")
    return f" {layout}" if isinstance(layout, Layout) else ""


def print_loc(loc: Loc) -> str:
    return f"      // {loc.file}:{loc.line}" if loc.file else ""
