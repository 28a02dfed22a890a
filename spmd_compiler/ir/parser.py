"""Reads the text form back: a scanner of one regular expression, and a parser by recursive descent."""

from __future__ import annotations

import json
import re
from collections import ChainMap
from typing import Any

import ml_dtypes
import numpy as np

from ..errors import ParseError
from .graph import UNKNOWN_LOC, Block, Dense, Function, Loc, Module, Op, Raw, Value
from .layout import Layout
from .mesh import Mesh
from .opnames import OP_NAMES, expected_op
from .types import DTYPES, TOKEN, TensorType, Type, dtype_from_numpy, numpy_dtype

_DIM = re.compile(r"(-|[A-Za-z_][\w.:()]*)(?:@(\d+))?\Z")
_LAYOUT = re.compile(r"\{[^{}\"=]*\}")
_TYPE = re.compile(r"([a-z]\w*)\[([\d,]*)\]")
_EQUALS = re.compile(r"\s*=")
_TOKEN = re.compile(
    r"""\s*(?:
      (?P<loc>//[ ]?[^\n]*) | (?P<string>"(?:[^"\\]|\\.)*") | (?P<raw>`(?:[^`\\]|\\.)*`)
    | (?P<dense>dense<[^>]*>) | (?P<value>%[\w.$-]+) | (?P<symbol>@(?:[\w.$-]+|"(?:[^"\\]|\\.)*"))
    | (?P<arrow>->) | (?P<number>-?(?:0x[0-9a-f.]+p[+-]\d+|\d+(?:\.\d+)?(?:e[+-]?\d+)?)(?![\w.]))
    | (?P<word>-?[A-Za-z_][\w.$-]*) | (?P<punct>[()\[\]{},:=|])
    )""",
    re.VERBOSE,
)


def parse_layout(text: str) -> Layout:
    """`{a.b,-,c@128 | +d max:e}`; raises ParseError."""
    body = text.strip()
    if not (body.startswith("{") and body.endswith("}")):
        raise ParseError(f"{text!r} is no layout: one is written like {{a.b,-}}")
    dims_text, _, partial_text = body[1:-1].partition("|")
    dims: list[tuple[str, ...]] = []
    blocks: list[int] = []
    for part in filter(None, (p.strip() for p in dims_text.split(","))):
        match = _DIM.match(part)
        if match is None:
            raise ParseError(f"layout {text!r}: {part!r} is no dim: write -, an axis, or axes joined by dots")
        dims.append(() if match[1] == "-" else tuple(match[1].split(".")))
        blocks.append(int(match[2] or 0))
    partial: list[tuple[str, str]] = []
    for part in partial_text.split():
        if part[0] == "+":
            partial.append((part[1:], "sum"))
        else:
            kind, _, axis = part.partition(":")
            partial.append((axis, kind))
    try:
        return Layout(tuple(dims), tuple(partial), tuple(blocks))
    except ValueError as error:
        raise ParseError(str(error)) from None


def parse(text: str) -> Module:
    """The module that `print_module` printed. Raises ParseError with line and column."""
    if not isinstance(text, str):
        raise ParseError(f"a {type(text).__name__} is no text of a module", 1, 1)
    return _Parser(text).module()


class _Parser:
    def __init__(self, text: str):
        self.text = text
        self.at = 0
        self.end = 0
        self.kind, self.token = "", ""
        self.values: ChainMap[str, Value] = ChainMap()  # by name, those of a region first
        self.mesh = Mesh([])
        self.advance()

    # ------------------------------------------------------------------------------------------ scanning
    def advance(self) -> str:
        token = self.token
        match = _TOKEN.match(self.text, self.end)
        if match is None:
            if self.text[self.end :].strip():
                self.at = self.end
                self.fail("unexpected character")
            self.at, self.kind, self.token = len(self.text), "end", ""
            return token
        self.kind = match.lastgroup or ""
        self.token = match[self.kind]
        self.at = match.start(self.kind)
        self.end = match.end()
        return token

    def fail(self, what: str) -> Any:
        before = self.text[: self.at]
        line = before.count("\n") + 1
        column = self.at - before.rfind("\n")
        found = repr(self.token) if self.token else "the end of the text"
        raise ParseError(f"line {line}, column {column}: {what}, found {found}", line, column)

    def expect(self, token: str) -> None:
        if self.token != token:
            self.fail(f"expected {token!r}")
        self.advance()

    def take(self, token: str) -> bool:
        if self.token == token and self.kind != "string":
            self.advance()
            return True
        return False

    def matched(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """A piece of text that is no single token, from the present one on."""
        match = pattern.match(self.text, self.at)
        if match is None:
            self.fail(f"expected {what}")
            raise AssertionError
        self.end = match.end()
        self.advance()
        return match

    # ------------------------------------------------------------------------------------------ structure
    def module(self) -> Module:
        self.expect("mesh")
        axes: list[tuple[str, int]] = []
        self.expect("{")
        while not self.take("}"):
            name = self.advance()
            self.expect("=")
            axes.append((name, self.integer()))
            self.take(",")
        try:
            mesh = self.mesh = Mesh(axes)
        except ValueError as error:
            self.fail(str(error))
            raise AssertionError from None
        name = "main"
        if self.take("name"):
            self.expect("=")
            name = self.word()
        attrs: dict[str, Any] = {}
        while self.take("attr"):
            key = self.word()
            self.expect("=")
            attrs[key] = self.attribute(key)
        functions: dict[str, Function] = {}
        while self.token == "func":
            function = self.function()
            functions[function.name] = function
        if self.kind != "end":
            self.fail("expected a function")
        return Module(mesh, functions, name, attrs)

    def function(self) -> Function:
        self.expect("func")
        public = not self.take("private")
        if self.kind != "symbol":
            self.fail("expected @name")
        name = self.advance()[1:]
        if name.startswith('"'):
            name = json.loads(name)
        self.values = ChainMap()
        self.expect("(")
        args: list[Value] = []
        arg_attrs: list[dict[str, Any]] = []
        while not self.take(")"):
            args.append(self.argument())
            arg_attrs.append(self.extras())
            self.take(",")
        self.expect("->")
        self.expect("(")
        result_attrs: list[dict[str, Any]] = []
        layouts: list[Layout | None] = []
        while not self.take(")"):
            self.type()
            layouts.append(self.layout())
            result_attrs.append(self.extras())
            self.take(",")
        self.expect("{")
        body = self.block(args)
        self.expect("}")
        if len(body.returns) != len(layouts):
            self.fail(f"@{name} returns {len(body.returns)} values, its signature says {len(layouts)}")
        for value, layout, attrs in zip(body.returns, layouts, result_attrs, strict=True):
            if value.layout is None and layout is not None:
                attrs["layout"] = layout
        return Function(name, body, public, arg_attrs, result_attrs)

    def extras(self) -> dict[str, Any]:
        attrs: dict[str, Any] = {}
        if self.take("["):
            while not self.take("]"):
                key = self.advance()
                self.expect("=")
                attrs[key] = self.attribute(key)
        return attrs

    def argument(self) -> Value:
        name, value = self.declaration()
        self.values[name] = value
        return value

    def declaration(self) -> tuple[str, Value]:
        if self.kind != "value":
            self.fail("expected a value, as in %x: f32[2]")
        name = self.advance()[1:]
        self.expect(":")
        type = self.type()
        value = Value(type, self.layout(), "" if name[0].isdigit() else name)
        if isinstance(type, TensorType) and value.layout is not None and value.layout.rank != type.rank:
            self.fail(f"%{name}: layout {value.layout} does not have the rank of {type}")
        return name, value

    def type(self) -> Type:
        if self.take("token"):
            return TOKEN
        match = self.matched(_TYPE, "a type, as in f32[2,3]")
        if match[1] not in DTYPES:
            self.fail(f"unknown element type {match[1]!r} before this")
        return TensorType(tuple(int(n) for n in match[2].split(",") if n), match[1])

    def layout(self) -> Layout | None:
        if self.token != "{" or not _LAYOUT.match(self.text, self.at):
            return None
        place = self.at, self.end, self.kind, self.token
        text = self.matched(_LAYOUT, "a layout")[0]
        try:
            layout = parse_layout(text)
        except ParseError as error:
            self.fail(str(error))
            raise AssertionError from None
        for axis in layout.axes:
            if axis not in self.mesh:
                self.at, self.end, self.kind, self.token = place
                self.fail(f"layout {layout}: {self.mesh} has no axis {axis!r}")
        return layout

    def block(self, args: list[Value]) -> Block:
        ops: list[Op] = []
        while not self.take("return"):
            ops.append(self.op())
        returns: list[Value] = []
        while self.kind == "value":
            returns.append(self.use())
            if not self.take(","):
                break
        return Block(args, ops, returns)

    def use(self) -> Value:
        value = self.values.get(self.token[1:])
        if value is None:
            self.fail("this value is not defined before")
            raise AssertionError
        self.advance()
        return value

    def op(self) -> Op:
        declared: list[tuple[str, Value]] = []  # not seen by the op's own regions
        while self.kind == "value":
            declared.append(self.declaration())
            self.take(",")
        if declared:
            self.expect("=")
        name = self.op_name()
        self.expect("(")
        operands: list[Value] = []
        while not self.take(")"):
            operands.append(self.use())
            self.take(",")
        attrs: dict[str, Any] = {}
        while self.kind == "word" and _EQUALS.match(self.text, self.end):
            key = self.advance()
            self.expect("=")
            attrs[key] = self.attribute(key)
        regions: list[Block] = []
        if self.take("("):
            while not self.take(")"):
                self.expect("{")
                self.values = self.values.new_child()
                self.expect("(")
                args: list[Value] = []
                while not self.take(")"):
                    args.append(self.argument())
                    self.take(",")
                regions.append(self.block(args))
                self.values = self.values.parents
                self.expect("}")
                self.take(",")
        self.values.update(declared)
        return Op(name, operands, [v for _, v in declared], attrs, tuple(regions), self.location())

    def op_name(self) -> str:
        if self.kind == "string":
            return self.string()
        if self.kind != "word" or self.token not in OP_NAMES:
            self.fail(expected_op(self.token))
        return self.advance()

    def location(self) -> Loc:
        if self.kind != "loc":
            return UNKNOWN_LOC
        file, _, line = self.advance()[2:].strip().rpartition(":")
        return Loc(file, int(line)) if line.isdigit() else UNKNOWN_LOC

    # ------------------------------------------------------------------------------------------ attributes
    def integer(self) -> int:
        if self.kind != "number" or not self.token.lstrip("-").isdigit():
            self.fail("expected an integer")
        return int(self.advance())

    def attribute(self, key: str = "") -> Any:
        if self.kind == "string":
            return self.string()
        if self.kind == "raw":
            text = self.advance()[1:-1]
            return Raw(re.sub(r"\\(.)", lambda m: "\n" if m[1] == "n" else m[1], text))
        if self.kind == "dense":
            return self.dense(self.advance())
        if self.token == "{":
            return self.layout() or self.fail("expected a layout")
        if self.kind == "number":
            token = self.advance()
            if "0x" in token:
                return float.fromhex(token)
            return float(token) if any(c in token for c in ".e") else int(token)
        if self.take("["):
            items: list[Any] = []
            while not self.take("]"):
                items.append(self.attribute())
                self.take(",")
            if self.kind == "word" and self.token == "x" and self.text[self.end : self.end + 1] == "[":
                self.advance()
                return (tuple(items), self.attribute())
            return tuple(items)
        words = {"true": True, "false": False, "none": None}
        if self.token in words:
            return words[self.advance()]
        if self.token in ("inf", "-inf", "nan"):
            return float(self.advance())
        return self.fail(f"expected the value of {key or 'an attribute'}")

    def word(self) -> str:
        """A name, in quotes if it is no plain word."""
        return self.string() if self.kind == "string" else self.advance()

    def string(self) -> str:
        try:
            text = json.loads(self.token)
        except json.JSONDecodeError as error:
            return self.fail(f"a string that can't be read ({error})")
        self.advance()
        return text

    def dense(self, text: str) -> Dense:
        head, _, body = text[6:-1].partition(": ")
        name, _, shape_text = head.partition("[")
        splat = shape_text.endswith("!")
        try:
            shape = tuple(int(n) for n in shape_text.rstrip("!").rstrip("]").split(",") if n)
            dtype = numpy_dtype(dtype_from_numpy(np.dtype(name))) if name in np.sctypeDict else _small(name)
            if body.startswith("0x"):
                array = np.frombuffer(bytes.fromhex(body[2:]), dtype).reshape(shape)
            elif dtype.kind == "b":
                array = np.array([x == "true" for x in body.split()]).reshape(shape)
            elif dtype.kind == "f":
                array = np.array([float(x) for x in body.split()]).astype(dtype).reshape(shape)
            else:
                array = np.array([int(x) for x in body.split()], dtype=object).astype(dtype).reshape(shape)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return self.fail(f"a constant that can't be read ({error})")
        return Dense(array, splat)


def _small(name: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, name))
